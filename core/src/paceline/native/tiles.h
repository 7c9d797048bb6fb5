// A tile of keys for a few query heads: scores, online softmax (Milakov, Gimelshein 2018), weighted sums of values.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>

#include "vectors.h"

namespace paceline {

constexpr int kTile = 32;      // keys
constexpr int kMostHeads = 3;  // query heads of a KV head that are worked on together
constexpr int kTogether = 4;   // keys, or vectors of values, whose sums for so many heads stand in registers
constexpr float kNone = -std::numeric_limits<float>::infinity();

struct Scoring {
  float scale, softcap;  // 0 = none
  int64_t window;        // 0 = all
  const float* sinks;    // by head, or null
};

// Where the entries of a tile's keys are.
struct Places {
  const float *keys[kTile], *values[kTile];
};

// The keys [first, stop) of a tile.
struct Span {
  int first, stop;
};

// What is read next: a few of its lines are asked for at each call, while something else is worked on.
struct Stream {
  const Places* places;  // or null
  int64_t lines_of_entry, lines_of_call, entry, line;

  void fetch() {
    for (int64_t count = 0; places && count < lines_of_call; ++count) {
      const float* at = entry < kTile ? places->keys[entry] : places->values[entry - kTile];
      __builtin_prefetch(at + line * 16, 0, 2);
      if (++line < lines_of_entry) continue;
      line = 0;
      if (++entry == 2 * kTile) places = nullptr;
    }
  }
};

// Softmax of one row and head so far: the largest score, the sum of weights by lane and the weighted values.
struct State {
  float peak = kNone;
  Vector total = {};
  float* values;

  void rescale(float new_peak, int64_t size) {
    const float factor = peak == kNone ? 0.0f : exponential(peak - new_peak);
    total *= factor;
    for (int64_t i = 0; i < size; i += kLanes) store(values + i, load(values + i) * factor);
    peak = new_peak;
  }

  // What was summed over later keys joins.
  void join(const State& later, int64_t size) {
    const float new_peak = std::max(peak, later.peak);
    const float factor = later.peak == kNone ? 0.0f : exponential(later.peak - new_peak);
    rescale(new_peak, size);
    total += later.total * factor;
    for (int64_t i = 0; i < size; i += kLanes) store(values + i, load(values + i) + load(later.values + i) * factor);
  }
};

// Scores of 4 keys for a few heads, scores [heads, kTile]. The loop stays one, since compilers else keep more vectors
// than there are registers.
template <int kHeads, int kVectors>
inline void score(const float* query, const float* const* keys, int64_t offset, float scale, float* scores) {
  Vector sums[kHeads][kTogether] = {};
#pragma GCC unroll 1
  for (int v = 0; v < kVectors; ++v) {
    Vector q[kHeads];
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) q[h] = held(load(query + (h * kVectors + v) * kLanes));
#pragma GCC unroll 4
    for (int k = 0; k < kTogether; ++k) {
      const Vector key = held(load(keys[k] + offset + v * kLanes));
#pragma GCC unroll 4
      for (int h = 0; h < kHeads; ++h) sums[h][k] += q[h] * key;
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) store_sums(scores + h * kTile, sums[h], scale);
}

// Turn a tile's scores into weights in place, and rescale what was summed before. NaN stays NaN.
inline void weigh(State& state, float* scores, int64_t value_size) {
  Vector largest_lanes = load(scores);
#pragma GCC unroll 8
  for (int i = kLanes; i < kTile; i += kLanes)
    largest_lanes = load(scores + i) > largest_lanes ? load(scores + i) : largest_lanes;
  const float peak = std::max(state.peak, largest(largest_lanes));
  if (peak == kNone) {  // nothing but scores of -inf so far, and perhaps NaN
    for (int i = 0; i < kTile; ++i) scores[i] = scores[i] != scores[i] ? scores[i] : 0.0f;
    return;
  }
  if (peak != state.peak) state.rescale(peak, value_size);
  Vector weights[kTile / kLanes];
#pragma GCC unroll 8
  for (int i = 0; i < kTile / kLanes; ++i) weights[i] = exponential(load(scores + i * kLanes) - peak);
  Vector total = weights[0];
#pragma GCC unroll 8
  for (int i = 1; i < kTile / kLanes; ++i) total += weights[i];
  state.total += total;
#pragma GCC unroll 8
  for (int i = 0; i < kTile / kLanes; ++i) store(scores + i * kLanes, weights[i]);
}

// Add the weighted values of a span of keys to the states' vectors from one on, as many as stand in registers.
template <int kHeads, int kVectors, int kFirst = 0>
inline void add_values(State* states, const float (*weights)[kTile], const float* const* values, int64_t offset,
                       Span span) {
  constexpr int kCount = std::min(kTogether, kVectors - kFirst);
  Vector sums[kHeads][kCount];
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h)
#pragma GCC unroll 4
    for (int v = 0; v < kCount; ++v) sums[h][v] = load(states[h].values + (kFirst + v) * kLanes);
  for (int i = span.first; i < span.stop; ++i) {
    const float* at = values[i] + offset + kFirst * kLanes;
#pragma GCC unroll 4
    for (int v = 0; v < kCount; ++v) {
      const Vector value = held(load(at + v * kLanes));
#pragma GCC unroll 4
      for (int h = 0; h < kHeads; ++h) sums[h][v] += weights[h][i] * value;
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h)
#pragma GCC unroll 4
    for (int v = 0; v < kCount; ++v) store(states[h].values + (kFirst + v) * kLanes, sums[h][v]);
  if constexpr (kFirst + kCount < kVectors)
    add_values<kHeads, kVectors, kFirst + kCount>(states, weights, values, offset, span);
}

// A span of keys for several query heads of the KV head at an offset.
template <int kHeads, int kVectors>
void add_tile(State* states, const float* query, const Scoring& scoring, const Places& places, int64_t offset,
              Span span, Stream& ahead) {
  alignas(64) float scores[kHeads][kTile];
  for (int i = span.first / kTogether * kTogether; i < span.stop; i += kTogether) {
    ahead.fetch();
    score<kHeads, kVectors>(query, places.keys + i, offset, scoring.scale, scores[0] + i);
  }
  for (int h = 0; h < kHeads; ++h) {
    std::fill(scores[h], scores[h] + span.first, kNone);
    std::fill(scores[h] + span.stop, scores[h] + kTile, kNone);
    if (scoring.softcap != 0)
      for (int i = span.first; i < span.stop; ++i)
        scores[h][i] = scoring.softcap * std::tanh(scores[h][i] / scoring.softcap);
    weigh(states[h], scores[h], kVectors * kLanes);
  }
  add_values<kHeads, kVectors>(states, scores, places.values, offset, span);
}

// All query heads of one KV head, a few at a time.
template <int kVectors>
void add_heads(int64_t group, State* states, const float* query, const Scoring& scoring, const Places& places,
               int64_t offset, Span span, Stream& ahead) {
  for (; group >= kMostHeads; group -= kMostHeads, states += kMostHeads, query += kMostHeads * kVectors * kLanes)
    add_tile<kMostHeads, kVectors>(states, query, scoring, places, offset, span, ahead);
  if (group == 2) add_tile<2, kVectors>(states, query, scoring, places, offset, span, ahead);
  if (group == 1) add_tile<1, kVectors>(states, query, scoring, places, offset, span, ahead);
}

}  // namespace paceline
