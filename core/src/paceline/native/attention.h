// Paged attention. Scores and sums of a row and head follow its keys in tiles of 32 by their number, so a result is a
// function of the row and its keys alone.
#pragma once
#include <vector>

#include "tiles.h"

namespace paceline {

constexpr int kUnitRows = 8;  // rows of a sequence that read the same keys together

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

// Rows of one sequence, and for each its lowest key; some row reads each of the keys [start, stop).
struct Unit {
  int64_t first_row, num_rows, start, stop;
  int64_t lowest[kUnitRows];
};

inline Unit unit_of(const Rows& rows, int64_t window, int64_t first_row, int64_t num_rows) {
  Unit unit{first_row, num_rows, rows.num_keys[first_row], 0, {}};
  for (int64_t r = 0; r < num_rows; ++r) {
    const int64_t keys = rows.num_keys[first_row + r], first = rows.first_keys[rows.sequence[first_row]];
    unit.lowest[r] = window ? std::max(first, keys - window) : first;
    unit.start = std::min(unit.start, unit.lowest[r]);
    unit.stop = std::max(unit.stop, keys);
  }
  return unit;
}

inline Span span_of(int64_t tile, int64_t first, int64_t stop) {
  const int64_t low = std::max<int64_t>(first - tile, 0), high = std::min<int64_t>(stop - tile, kTile);
  return {static_cast<int>(low), static_cast<int>(high)};
}

// Find a span of a tile's keys of a row, block by block; the other keys of the tile stand where the first does. Where
// the span is empty, what was found before stays.
inline void locate(const Cache& cache, const Rows& rows, int64_t row, int64_t tile, Span span, int64_t head,
                   Places& places) {
  if (span.first >= span.stop) return;
  const int64_t key_stride = cache.kv_heads * cache.key_size, value_stride = cache.kv_heads * cache.value_size;
  const int64_t* table = rows.tables + rows.sequence[row] * rows.table_width;
  const int64_t visible = rows.visible[row];
  for (int64_t i = span.first, run; i < span.stop; i += run) {
    const int64_t key = tile + i, place = key < visible ? key : rows.paths[row * rows.path_width + key - visible];
    const int64_t within = place % cache.block_size;
    const int64_t entry = table[place / cache.block_size] * cache.block_size + within;
    run = key < visible ? std::min({span.stop - i, visible - key, cache.block_size - within}) : 1;
    for (int64_t k = 0; k < run; ++k) {
      places.keys[i + k] = cache.keys + (entry + k) * key_stride + head * cache.key_size;
      places.values[i + k] = cache.values + (entry + k) * value_stride + head * cache.value_size;
    }
  }
  for (int i = 0; i < kTile; ++i) {
    if (i >= span.first && i < span.stop) continue;
    places.keys[i] = places.keys[span.first];
    places.values[i] = places.values[span.first];
  }
}

inline void finish(State& state, float sink, float* out, int64_t size) {
  float total = sum(state.total);
  if (sink != kNone) {
    state.rescale(std::max(state.peak, sink), size);
    total = sum(state.total) + exponential(sink - state.peak);
  }
  for (int64_t i = 0; i < size; i += kLanes) store(out + i, load(state.values + i) / total);
}

// Read a tile once from end to end: that streams, which reading head by head does not, and prefetches measured slower.
inline void touch(const Places& places, int64_t size) {
  for (const auto& entries : {places.keys, places.values})
    for (int i = 0; i < kTile; ++i)
      for (int64_t d = 0; d < size; d += 16) static_cast<void>(*static_cast<const volatile float*>(entries[i] + d));
}

// Where each row of a unit finds a tile: where the last row does if it sees no more than both have in common.
struct UnitPlaces {
  Places shared, own[kUnitRows];
  const Places* of_row[kUnitRows];
  Span spans[kUnitRows];
};

inline void locate_unit(const Cache& cache, const Rows& rows, const Unit& unit, int64_t tile, int64_t head,
                        UnitPlaces& places) {
  const int64_t last = unit.first_row + unit.num_rows - 1;
  locate(cache, rows, last, tile, span_of(tile, unit.start, rows.num_keys[last]), head, places.shared);
  for (int64_t r = 0; r < unit.num_rows; ++r) {
    const int64_t row = unit.first_row + r;
    const Span span = places.spans[r] = span_of(tile, unit.lowest[r], rows.num_keys[row]);
    const bool is_shared = row == last || tile + span.stop <= std::min(rows.visible[row], rows.visible[last]);
    places.of_row[r] = is_shared ? &places.shared : &places.own[r];
    if (!is_shared) locate(cache, rows, row, tile, span, head, places.own[r]);
  }
}

// The query heads of some KV heads, for a few rows of one sequence.
template <int kVectors>
void attend_unit(const float* queries, int64_t query_stride, int64_t num_heads, const Cache& cache, const Rows& rows,
                 const Scoring& scoring, const Unit& unit, Heads kv_heads, float* out) {
  constexpr int64_t size = kVectors * kLanes;
  const int64_t group = num_heads / cache.kv_heads, own_heads = group * kv_heads.count;
  thread_local std::vector<float> sums;
  thread_local std::vector<State> states;
  sums.assign(unit.num_rows * own_heads * size, 0.0f);
  states.assign(unit.num_rows * own_heads, State{});
  for (size_t i = 0; i < states.size(); ++i) states[i].values = sums.data() + i * size;
  UnitPlaces places;
  for (int64_t tile = unit.start / kTile * kTile; tile < unit.stop; tile += kTile) {
    locate_unit(cache, rows, unit, tile, kv_heads.first, places);
    touch(places.shared, kv_heads.count * size);
    for (int64_t h = 0; h < kv_heads.count; ++h)
      for (int64_t r = 0; r < unit.num_rows; ++r) {
        if (places.spans[r].first >= places.spans[r].stop) continue;
        const float* query = queries + (unit.first_row + r) * query_stride + (kv_heads.first + h) * group * size;
        State* own = states.data() + r * own_heads + h * group;
        add_heads<kVectors>(group, own, query, scoring, *places.of_row[r], h * size, places.spans[r]);
      }
  }
  for (int64_t r = 0; r < unit.num_rows; ++r)
    for (int64_t h = 0; h < own_heads; ++h) {
      const int64_t head = kv_heads.first * group + h;
      finish(states[r * own_heads + h], scoring.sinks ? scoring.sinks[head] : kNone,
             out + ((unit.first_row + r) * num_heads + head) * size, size);
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
    attend_unit<kVectors>(queries, query_stride, heads, cache, rows, scoring,
                          unit_of(rows, scoring.window, unit[0], unit[1]), Heads{work % parts * count, count}, out);
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
