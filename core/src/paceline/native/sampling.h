// Which ids may win once noise is added. The integers are those of paceline.sampling.noise ("paceline-mix32").
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>

#include "vectors.h"

namespace paceline {

typedef uint32_t Words __attribute__((vector_size(kLanes * sizeof(uint32_t)), aligned(4)));

constexpr uint32_t kFirstMultiplier = 0x7FEB352D, kSecondMultiplier = 0x846CA68B, kIdLane = 0x03707344;
constexpr float kMostNoise = 22.9f;
constexpr float kRounding = 1.001f;  // of the bound below, and of single precision in it

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

// -log(-log(1 - w)) of w = (n + 1/2) / 2**32.
inline float gumbel(uint32_t n) {
  const double rest = (4294967295.5 - n) * 0x1p-32;
  return static_cast<float>(-std::log(-std::log(rest)));
}

// Writes the ids that may have the largest score + noise, in ascending order, and returns how many there are. As
// noise <= -log w, an id that beats a known sum has w <= exp(score - sum): most are refused by that alone.
inline int64_t contenders(const float* scores, int64_t size, uint32_t first, uint32_t second, int64_t* ids) {
  int64_t peak = 0;
  for (int64_t i = 1; i < size; ++i)
    if (scores[i] > scores[peak]) peak = i;
  float sum = scores[peak] + gumbel(mixed(static_cast<uint32_t>(peak), first, second));
  const auto may_win = [&](int64_t i) {
    if (!(scores[i] + kMostNoise >= sum)) return false;
    const uint32_t n = mixed(static_cast<uint32_t>(i), first, second);
    if (!(n * 0x1p-32f <= kRounding * exponential(scores[i] - sum))) return false;
    const float own = scores[i] + gumbel(n);
    if (own > sum) sum = own;
    return own >= sum - 1e-3f;
  };
  Words lanes;
  for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = lane;
  int64_t count = 0, i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const Words n = mixed(lanes + static_cast<uint32_t>(i), first, second);
    const Vector bound = kRounding * exponential(load(scores + i) - sum) * 0x1p32f;
    const Ints may = __builtin_convertvector(n, Vector) <= bound;
    bool any = false;
    for (int lane = 0; lane < kLanes; ++lane) any |= may[lane] != 0;
    if (!any) continue;
    for (int lane = 0; lane < kLanes; ++lane)
      if (may[lane] && may_win(i + lane)) ids[count++] = i + lane;
  }
  for (; i < size; ++i)
    if (may_win(i)) ids[count++] = i;
  return count;
}

}  // namespace paceline
