// The choice of a token: filters and argmax(score + noise), with the bits of paceline.sampling.pipeline and choice.
// The noise is that of paceline.sampling.noise ("paceline-mix32").
#pragma once
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "exact_math.h"

namespace paceline {

typedef uint32_t Words __attribute__((vector_size(kLanes * sizeof(uint32_t)), aligned(4)));

constexpr uint32_t kFirstMultiplier = 0x7FEB352D, kSecondMultiplier = 0x846CA68B, kIdLane = 0x03707344;
constexpr float kRounding = 0.01f;  // in bits, of the bound on a score with noise, and of single precision in it
constexpr float kNoScore = -std::numeric_limits<float>::infinity();
constexpr float kNoMass = -28.0f;  // below, exp_mass is 0
constexpr float kDepths[] = {-4.0f, -10.0f, -20.0f, kNoScore};  // where the best scores are looked for, in turn

// Columns by row.
struct Sampling {
  const float* temperature;
  const int64_t* top_k;
  const float* top_p;
  const float* min_p;
  const int64_t* seeds;
  const int64_t* positions;
};

template <typename Word>
Word lowbias32(Word x) {
  x = (x ^ (x >> 16)) * kFirstMultiplier;
  x = (x ^ (x >> 15)) * kSecondMultiplier;
  return x ^ (x >> 16);
}

template <typename Word>
Word mixed(Word ids, uint32_t first, uint32_t second) {
  Word x = lowbias32(ids + kIdLane) ^ first;
  x = (x ^ (x >> 16)) * kFirstMultiplier + second;
  x = (x ^ (x >> 15)) * kSecondMultiplier;
  return x ^ (x >> 16);
}

inline uint32_t row_key(uint64_t seed, uint64_t position, uint32_t state) {
  const uint64_t words[] = {seed, seed >> 32, position, position >> 32};
  for (const uint64_t word : words) state = lowbias32((state ^ static_cast<uint32_t>(word)) + 0x7F4A7C15u);
  return state;
}

// -log(-log(1 - w)) of w = (n + 1/2) / 2**32.
inline float gumbel(uint32_t n) {
  return static_cast<float>(-exact_log(-exact_log((4294967295.5 - n) * 0x1p-32)));
}

// The largest score; NaN if there is one.
inline float peak_of(const float* scores, int64_t size) {
  Vector best = all(kNoScore);
  Ints is_nan = {};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const Vector own = load(scores + i);
    is_nan |= own != own;
    best = own > best ? own : best;
  }
  float peak = largest(best);
  bool has_nan = any(is_nan);
  for (; i < size; ++i) {
    has_nan |= scores[i] != scores[i];
    peak = std::max(peak, scores[i]);
  }
  return has_nan ? std::numeric_limits<float>::quiet_NaN() : peak;
}

// Where a score stands first; it stands somewhere.
inline int64_t first_of(const float* scores, int64_t size, float score) {
  int64_t i = 0;
  while (i + kLanes <= size && !any(load(scores + i) == score)) i += kLanes;
  return std::find(scores + i, scores + size, score) - scores;
}

// The scores that are at least a bound, appended.
inline void collect(const float* scores, int64_t size, float bound, std::vector<float>& found) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const Ints is_high = load(scores + i) >= bound;
    if (!any(is_high)) continue;
    for (int lane = 0; lane < kLanes; ++lane)
      if (is_high[lane]) found.push_back(scores[i + lane]);
  }
  for (; i < size; ++i)
    if (scores[i] >= bound) found.push_back(scores[i]);
}

// The k-th best of the scores that are at least the floor; -inf if there are fewer.
inline float top_k_floor(const float* scores, int64_t size, float floor, int64_t k) {
  thread_local std::vector<float> found;
  for (const float depth : kDepths) {
    found.clear();
    collect(scores, size, std::max(depth, floor), found);
    if (static_cast<int64_t>(found.size()) >= k) {
      std::nth_element(found.begin(), found.begin() + (k - 1), found.end(), std::greater<float>());
      return found[k - 1];
    }
    if (depth <= floor) break;
  }
  return kNoScore;
}

inline Longs masses(const float* scores, float floor) {
  const Halves own = *reinterpret_cast<const Halves*>(scores);
  const Longs mass = __builtin_convertvector(exp_mass(__builtin_convertvector(own, Doubles)), Longs);
  return mass & __builtin_convertvector(own >= floor, Longs);
}

inline int64_t mass_of(float score) {
  float scores[kWide];
  std::fill_n(scores, kWide, score);
  return masses(scores, kNoScore)[0];
}

inline int64_t total_mass(const float* scores, int64_t size, float floor) {
  floor = std::max(floor, kNoMass);
  int64_t total = 0, i = 0;
  for (; i + kWide <= size; i += kWide) {
    bool any = false;
    for (int lane = 0; lane < kWide; ++lane) any |= scores[i + lane] >= floor;
    if (!any) continue;
    const Longs own = masses(scores + i, floor);
    for (int lane = 0; lane < kWide; ++lane) total += own[lane];
  }
  for (; i < size; ++i)
    if (scores[i] >= floor) total += mass_of(scores[i]);
  return total;
}

// The score at which the mass of the best first reaches a share of that of all that are at least the floor.
inline float top_p_floor(const float* scores, int64_t size, float floor, float top_p) {
  thread_local std::vector<float> found;
  const double target = product(static_cast<double>(total_mass(scores, size, floor)), static_cast<double>(top_p));
  for (const float depth : kDepths) {
    found.clear();
    collect(scores, size, std::max(depth, floor), found);
    std::sort(found.begin(), found.end(), std::greater<float>());
    int64_t mass = 0;
    for (const float score : found) {
      mass += mass_of(score);
      if (static_cast<double>(mass) >= target) return score;
    }
  }
  return found.back();
}

// (score - peak) / temperature into scaled; returns the floor that the filters leave.
inline float filtered(const float* scores, int64_t size, float peak, const Sampling& sampling, int64_t row,
                      float* scaled) {
  const float temperature = sampling.temperature[row];
  for (int64_t i = 0; i < size; ++i) scaled[i] = (scores[i] - peak) / temperature;
  float floor = kNoScore;
  if (sampling.min_p[row] > 0) floor = static_cast<float>(exact_log(sampling.min_p[row]));
  if (sampling.top_k[row] > 0)
    floor = std::max(floor, top_k_floor(scaled, size, floor, std::min(sampling.top_k[row], size)));
  if (sampling.top_p[row] < 1) floor = std::max(floor, top_p_floor(scaled, size, floor, sampling.top_p[row]));
  return floor;
}

struct Best {
  int64_t id;
  float sum;
};

// Which ids may have a sum of score and noise above a known one: the others do not. As noise <= -log w, such an id has
// log2 w <= (score - sum) / ln 2. A float's bits, as an integer, are no more than its logarithm in units of 2**-23.
inline Ints may_beat(float sum, Vector scores, Words n) {
  constexpr float kUnit = 0x1p23f, kPerNat = 1.44269504088896341f * kUnit;
  constexpr float kBias = (127 + 31 + kRounding) * kUnit;  // of a float's exponent, and for w = 2 * (n / 2) / 2**32
  const Ints bits = (Ints)__builtin_convertvector((Ints)(n >> 1), Vector);
  return bits <= __builtin_convertvector(scores * kPerNat + (kBias - sum * kPerNat), Ints);
}

// The best score + noise of those at least the floor, the lowest id in a tie.
inline Best best_with_noise(const float* scores, int64_t size, float floor, uint32_t first, uint32_t second) {
  const int64_t peak = first_of(scores, size, 0.0f);
  Best best{peak, gumbel(mixed(static_cast<uint32_t>(peak), first, second))};
  const auto consider = [&](int64_t i, uint32_t n) {
    if (!(scores[i] >= floor)) return;
    const float sum = scores[i] + gumbel(n);
    if (sum > best.sum || (sum == best.sum && i < best.id)) best = Best{i, sum};
  };
  Words lanes;
  for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = lane;
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const Words n = mixed(lanes + static_cast<uint32_t>(i), first, second);
    const Ints may = may_beat(best.sum, load(scores + i), n);
    if (!any(may)) continue;
    for (int lane = 0; lane < kLanes; ++lane)
      if (may[lane]) consider(i + lane, n[lane]);
  }
  for (; i < size; ++i) consider(i, mixed(static_cast<uint32_t>(i), first, second));
  return best;
}

// The token of a row; -1 if it has NaN or no finite best score.
inline int64_t sampled(const float* scores, int64_t size, const Sampling& sampling, int64_t row) {
  const float peak = peak_of(scores, size);
  if (!std::isfinite(peak)) return -1;
  if (!(sampling.temperature[row] > 0)) return first_of(scores, size, peak);
  thread_local std::vector<float> scaled;
  scaled.resize(size);
  const float floor = filtered(scores, size, peak, sampling, row, scaled.data());
  const uint64_t seed = sampling.seeds[row], position = sampling.positions[row];
  return best_with_noise(scaled.data(), size, floor, row_key(seed, position, 0x243F6A88),
                         row_key(seed, position, 0x13198A2E))
      .id;
}

}  // namespace paceline
