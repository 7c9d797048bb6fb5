// Paged attention. Scores and sums of a row and head follow its keys in tiles of 16 by their number, so a result is a
// function of the row and its keys alone. Online softmax: Milakov, Gimelshein 2018.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "vectors.h"

namespace paceline {

constexpr int kTile = 16;      // keys
constexpr int kUnitRows = 8;   // rows of a sequence that read the same keys together
constexpr float kNone = -std::numeric_limits<float>::infinity();

// One layer's KV, [blocks, block_size, kv_heads, size]; both sizes are one of those below.
struct Cache {
  float* keys;
  float* values;
  int64_t block_size, kv_heads, key_size, value_size;
};

// Rows of a step as paceline.ops.batch has them; all int64. Units are [unit, (first row, rows)].
struct Rows {
  int64_t count, num_units, table_width, path_width;
  const int64_t* units;
  const int64_t* sequence;
  const int64_t* visible;
  const int64_t* num_keys;
  const int64_t* first_keys;  // by sequence
  const int64_t* paths;       // null without trees
  const int64_t* tables;
  const int64_t* slots;
};

// KV heads that are worked on together: side by side in memory, they are read in one go.
struct Heads {
  int64_t first, count;
};

struct Scoring {
  float scale, softcap;  // 0 = none
  int64_t window;        // 0 = all
  const float* sinks;    // by head, or null
};

inline int64_t entry_of(const Cache& cache, const Rows& rows, int64_t row, int64_t key) {
  const int64_t visible = rows.visible[row];
  const int64_t place = key < visible ? key : rows.paths[row * rows.path_width + key - visible];
  const int64_t block = rows.tables[rows.sequence[row] * rows.table_width + place / cache.block_size];
  return (block * cache.block_size + place % cache.block_size) * cache.kv_heads;
}

// Ask for the entries of a row's next tile while this one is worked on.
inline void prefetch(const Cache& cache, const Rows& rows, int64_t row, int64_t tile, Heads heads) {
  const int64_t stop = std::min(tile + kTile, rows.num_keys[row]);
  for (int64_t key = tile; key < stop; ++key) {
    const int64_t entry = entry_of(cache, rows, row, key) + heads.first;
    for (int64_t d = 0; d < heads.count * cache.key_size; d += 16) {
      __builtin_prefetch(cache.keys + entry * cache.key_size + d);
      __builtin_prefetch(cache.values + entry * cache.value_size + d);
    }
  }
}

template <int kVectors>
inline float dot(const Vector* a, const float* b) {
  Vector total = a[0] * load(b);
  for (int v = 1; v < kVectors; ++v) total += a[v] * load(b + v * kLanes);
  return sum(total);
}

// Softmax of one row and head so far: the largest score, the sum of weights and the weighted values.
struct State {
  float peak = kNone, total = 0;
  float* values;

  void rescale(float new_peak, int64_t size) {
    const float factor = peak == kNone ? 0.0f : exponential(peak - new_peak);
    total *= factor;
    for (int64_t i = 0; i < size; i += kLanes) store(values + i, load(values + i) * factor);
    peak = new_peak;
  }
};

// Turn a tile's scores into weights in place, and rescale what was summed before. NaN stays NaN.
inline void weigh(State& state, float* scores, int64_t value_size) {
  float peak = state.peak;
  for (int i = 0; i < kTile; i += kLanes) peak = std::max(peak, largest(load(scores + i)));
  if (peak == kNone) {  // nothing but scores of -inf so far, and perhaps NaN
    bool has_nan = false;
    for (int i = 0; i < kTile; ++i) {
      has_nan |= scores[i] != scores[i];
      scores[i] = scores[i] != scores[i] ? scores[i] : 0.0f;
    }
    if (has_nan) state.total = std::numeric_limits<float>::quiet_NaN();
    return;
  }
  if (peak != state.peak) state.rescale(peak, value_size);
  Vector total = {};
  for (int i = 0; i < kTile; i += kLanes) {
    const Vector weights = exponential(load(scores + i) - peak);
    store(scores + i, weights);
    total += weights;
  }
  state.total += sum(total);
}

// Keys [first, stop) of a tile, for several query heads of the KV head at an offset; the rest is not read.
template <int kHeads, int kVectors>
void add_tile(State* states, const float* query, const Cache& cache, const Scoring& scoring, const float* const* keys,
              const float* const* values, int64_t offset, int first, int stop) {
  alignas(64) float scores[kHeads][kTile];
  Vector q[kHeads][kVectors], sums[kHeads][kVectors];
  for (int h = 0; h < kHeads; ++h) {
    for (int v = 0; v < kVectors; ++v) q[h][v] = load(query + h * cache.key_size + v * kLanes);
    for (int i = 0; i < kTile; ++i) scores[h][i] = kNone;
  }
  for (int i = first; i < stop; ++i)
    for (int h = 0; h < kHeads; ++h) scores[h][i] = dot<kVectors>(q[h], keys[i] + offset) * scoring.scale;
  for (int h = 0; h < kHeads; ++h) {
    if (scoring.softcap != 0)
      for (int i = first; i < stop; ++i) scores[h][i] = scoring.softcap * std::tanh(scores[h][i] / scoring.softcap);
    weigh(states[h], scores[h], cache.value_size);
    for (int v = 0; v < kVectors; ++v) sums[h][v] = load(states[h].values + v * kLanes);
  }
  for (int i = first; i < stop; ++i)
    for (int v = 0; v < kVectors; ++v) {
      const Vector value = load(values[i] + offset + v * kLanes);
      for (int h = 0; h < kHeads; ++h) sums[h][v] += scores[h][i] * value;
    }
  for (int h = 0; h < kHeads; ++h)
    for (int v = 0; v < kVectors; ++v) store(states[h].values + v * kLanes, sums[h][v]);
}

// All query heads of one KV head, a few at a time.
template <int kVectors>
void add_heads(int64_t group, State* states, const float* query, const Cache& cache, const Scoring& scoring,
               const float* const* keys, const float* const* values, int64_t offset, int first, int stop) {
  for (; group >= 3; group -= 3, states += 3, query += 3 * cache.key_size)
    add_tile<3, kVectors>(states, query, cache, scoring, keys, values, offset, first, stop);
  if (group == 2) add_tile<2, kVectors>(states, query, cache, scoring, keys, values, offset, first, stop);
  if (group == 1) add_tile<1, kVectors>(states, query, cache, scoring, keys, values, offset, first, stop);
}

inline void finish(State& state, float sink, float* out, int64_t size) {
  if (sink != kNone) {
    state.rescale(std::max(state.peak, sink), size);
    state.total += exponential(sink - state.peak);
  }
  for (int64_t i = 0; i < size; i += kLanes) store(out + i, load(state.values + i) / state.total);
}

// The query heads of some KV heads, for a few rows of one sequence.
template <int kVectors>
void attend_unit(const float* queries, int64_t query_stride, int64_t num_heads, const Cache& cache, const Rows& rows,
                 const Scoring& scoring, int64_t first_row, int64_t num_rows, Heads kv_heads, float* out) {
  const int64_t group = num_heads / cache.kv_heads, size = cache.value_size, own_heads = group * kv_heads.count;
  thread_local std::vector<float> sums;
  thread_local std::vector<State> states;
  sums.assign(num_rows * own_heads * size, 0.0f);
  states.assign(num_rows * own_heads, State{});
  for (int64_t i = 0; i < num_rows * own_heads; ++i) states[i].values = sums.data() + i * size;
  int64_t lowest[kUnitRows], start = rows.num_keys[first_row], stop = 0;
  for (int64_t r = 0; r < num_rows; ++r) {
    const int64_t keys = rows.num_keys[first_row + r];
    lowest[r] = rows.first_keys[rows.sequence[first_row]];
    if (scoring.window) lowest[r] = std::max(lowest[r], keys - scoring.window);
    start = std::min(start, lowest[r]);
    stop = std::max(stop, keys);
  }
  for (int64_t tile = start / kTile * kTile; tile < stop; tile += kTile) {
    const float *keys[kTile], *values[kTile];
    prefetch(cache, rows, first_row + num_rows - 1, tile + kTile, kv_heads);
    int64_t shared_row = -1;  // the row whose entries stand in keys and values, while all of the tile is visible to it
    for (int64_t r = 0; r < num_rows; ++r) {
      const int64_t row = first_row + r;
      const int first = std::max<int64_t>(lowest[r] - tile, 0);
      const int last = std::min<int64_t>(rows.num_keys[row] - tile, kTile);
      if (first >= last) continue;
      const bool is_whole = rows.visible[row] >= tile + kTile;
      if (!is_whole || shared_row < 0) {
        for (int i = is_whole ? 0 : first; i < last; ++i) {
          const int64_t entry = entry_of(cache, rows, row, tile + i) + kv_heads.first;
          keys[i] = cache.keys + entry * cache.key_size;
          values[i] = cache.values + entry * cache.value_size;
        }
        shared_row = is_whole ? row : -1;
      }
      for (int64_t h = 0; h < kv_heads.count; ++h) {
        const float* query = queries + row * query_stride + (kv_heads.first + h) * group * cache.key_size;
        State* own = states.data() + r * own_heads + h * group;
        add_heads<kVectors>(group, own, query, cache, scoring, keys, values, h * size, first, last);
      }
    }
  }
  for (int64_t r = 0; r < num_rows; ++r)
    for (int64_t h = 0; h < own_heads; ++h) {
      const int64_t head = kv_heads.first * group + h;
      finish(states[r * own_heads + h], scoring.sinks ? scoring.sinks[head] : kNone,
             out + ((first_row + r) * num_heads + head) * size, size);
    }
}

template <int kVectors>
void attend_units(const float* queries, int64_t query_stride, int64_t heads, const Cache& cache, const Rows& rows,
                  const Scoring& scoring, float* out, int num_threads) {
  const bool is_few = rows.num_units < 2 * num_threads;  // then the threads share a unit by its KV heads
  const int64_t parts = is_few ? cache.kv_heads : 1, count = cache.kv_heads / parts;
#pragma omp parallel for schedule(dynamic) num_threads(num_threads)
  for (int64_t work = 0; work < rows.num_units * parts; ++work) {
    const int64_t* unit = rows.units + work / parts * 2;
    attend_unit<kVectors>(queries, query_stride, heads, cache, rows, scoring, unit[0], unit[1],
                          Heads{work % parts * count, count}, out);
  }
}

// Head sizes are known at build time, so that a query stays in registers.
template <int kSize>
bool attend_of_size(const float* queries, int64_t query_stride, int64_t heads, const Cache& cache, const Rows& rows,
                    const Scoring& scoring, float* out, int num_threads) {
  if (cache.key_size != kSize || cache.value_size != kSize) return false;
  attend_units<kSize / kLanes>(queries, query_stride, heads, cache, rows, scoring, out, num_threads);
  return true;
}

template <int... kSizes>
void attend_any(const float* queries, int64_t query_stride, int64_t heads, const Cache& cache, const Rows& rows,
                const Scoring& scoring, float* out, int num_threads) {
  (attend_of_size<kSizes>(queries, query_stride, heads, cache, rows, scoring, out, num_threads) || ...);
}

inline void attend(const float* queries, int64_t query_stride, int64_t heads, const Cache& cache, const Rows& rows,
                   const Scoring& scoring, float* out, int num_threads) {
  attend_any<16, 32, 48, 64, 80, 96, 112, 128, 192, 256>(queries, query_stride, heads, cache, rows, scoring, out,
                                                         num_threads);
}

}  // namespace paceline
