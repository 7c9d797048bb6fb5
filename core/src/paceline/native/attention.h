// Paged attention. Scores and sums of a row and head follow its keys by their number, in tiles and in chunks of tiles
// whose sums are joined, so a result is a function of the row and its keys alone.
#pragma once
#include <vector>

#include "tiles.h"

namespace paceline {

constexpr int kUnitRows = 8;               // rows of a sequence that read the same keys together
constexpr int64_t kChunk = 4 * kTile;      // keys summed apart, by any thread (Dao et al. 2023, Flash-Decoding)
constexpr int64_t kTileBytes = 128 << 10;  // most of a tile in the KV heads that are worked on together

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

// Read a tile once from end to end: that streams, which reading head by head does not. For a tile that could not be asked
// for while the one before it was worked on.
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

// What all rows of a layer's attention share.
struct Attention {
  const float* queries;
  int64_t query_stride, heads;
  const Cache& cache;
  const Rows& rows;
  const Scoring& scoring;
  float* out;

  int64_t group() const { return heads / cache.kv_heads; }
};

// What was summed for each row of a unit and each query head of some KV heads.
struct Sums {
  std::vector<float> values;
  std::vector<State> states;

  void reset(int64_t count, int64_t size) {
    values.assign(count * size, 0.0f);
    states.assign(count, State{});
    for (int64_t i = 0; i < count; ++i) states[i].values = values.data() + i * size;
  }
};

// A tile for all rows of a unit, while the next one is fetched.
template <int kVectors>
void add_tile_of_unit(const Attention& a, const Unit& unit, Heads heads, const UnitPlaces& places,
                      const UnitPlaces* next, Sums& sums) {
  constexpr int64_t size = kVectors * kLanes;
  const int64_t group = a.group(), lines = heads.count * size / 16;
  const int64_t calls = heads.count * unit.num_rows * ((group + kMostHeads - 1) / kMostHeads) * (kTile / kTogether);
  Stream ahead{next ? &next->shared : nullptr, lines, (2 * kTile * lines + calls - 1) / calls, 0, 0};
  for (int64_t h = 0; h < heads.count; ++h)
    for (int64_t r = 0; r < unit.num_rows; ++r) {
      if (places.spans[r].first >= places.spans[r].stop) continue;
      const float* query = a.queries + (unit.first_row + r) * a.query_stride + (heads.first + h) * group * size;
      State* own = sums.states.data() + (r * heads.count + h) * group;
      add_heads<kVectors>(group, own, query, a.scoring, *places.of_row[r], h * size, places.spans[r], ahead);
    }
}

// The keys [first, first + kChunk) for all rows of a unit.
template <int kVectors>
void add_chunk(const Attention& a, const Unit& unit, Heads heads, int64_t first, Sums& sums) {
  constexpr int64_t size = kVectors * kLanes;
  sums.reset(unit.num_rows * heads.count * a.group(), size);
  const int64_t first_of_unit = unit.start / kTile * kTile, stop = std::min(first + kChunk, unit.stop);
  int64_t tile = std::max(first, first_of_unit);
  UnitPlaces places[2], *now = places, *next = places + 1;
  locate_unit(a.cache, a.rows, unit, tile, heads.first, *now);
  if (tile == first_of_unit) touch(now->shared, heads.count * size);
  for (; tile < stop; tile += kTile, std::swap(now, next)) {
    if (tile + kTile < unit.stop) locate_unit(a.cache, a.rows, unit, tile + kTile, heads.first, *next);
    const bool goes_on = tile + kTile < a.rows.num_keys[unit.first_row + unit.num_rows - 1];  // else none are shared
    add_tile_of_unit<kVectors>(a, unit, heads, *now, goes_on ? next : nullptr, sums);
  }
}

// Add a chunk's sums of a row to those of the chunks before it, if the row sees some of its keys.
inline void join_chunk(const Attention& a, const Unit& unit, int64_t row, int64_t first, const Sums& chunk, int64_t size,
                       Sums& sums) {
  if (unit.lowest[row] >= first + kChunk || a.rows.num_keys[unit.first_row + row] <= first) return;
  const int64_t count = sums.states.size() / unit.num_rows;
  for (int64_t i = row * count; i < (row + 1) * count; ++i) sums.states[i].join(chunk.states[i], size);
}

inline void finish_unit(const Attention& a, const Unit& unit, Heads heads, int64_t size, Sums& sums) {
  const int64_t count = heads.count * a.group(), first = heads.first * a.group();
  for (int64_t r = 0; r < unit.num_rows; ++r)
    for (int64_t h = 0; h < count; ++h)
      finish(sums.states[r * count + h], a.scoring.sinks ? a.scoring.sinks[first + h] : kNone,
             a.out + ((unit.first_row + r) * a.heads + first + h) * size, size);
}

// What a thread can do alone.
struct Part {
  Unit unit;
  Heads heads;
};

// As many KV heads are worked on together as leave room for two tiles in the second cache.
inline int64_t heads_together(const Cache& cache) {
  const int64_t bytes = 2 * kTile * cache.key_size * sizeof(float);
  return std::clamp<int64_t>(kTileBytes / bytes, 1, cache.kv_heads);
}

inline std::vector<Part> parts_of(const Attention& a) {
  std::vector<Part> parts;
  const int64_t most = heads_together(a.cache), kv_heads = a.cache.kv_heads;
  for (int64_t u = 0; u < a.rows.num_units; ++u) {
    const Unit unit = unit_of(a.rows, a.scoring.window, a.rows.units[u * 2], a.rows.units[u * 2 + 1]);
    for (int64_t head = 0; head < kv_heads; head += most)
      parts.push_back(Part{unit, Heads{head, std::min(most, kv_heads - head)}});
  }
  return parts;
}

// Chunks start at absolute keys, so that they are the same in any company.
inline int64_t first_chunk(const Unit& unit) { return unit.start / kChunk * kChunk; }

template <int kVectors>
void attend_part(const Attention& a, const Part& part) {
  constexpr int64_t size = kVectors * kLanes;
  const auto& [unit, heads] = part;
  thread_local Sums sums, chunk;
  sums.reset(unit.num_rows * heads.count * a.group(), size);
  for (int64_t first = first_chunk(unit); first < unit.stop; first += kChunk) {
    add_chunk<kVectors>(a, unit, heads, first, chunk);
    for (int64_t r = 0; r < unit.num_rows; ++r) join_chunk(a, unit, r, first, chunk, size, sums);
  }
  finish_unit(a, unit, heads, size, sums);
}

// The keys of a part from one on.
struct Chunk {
  int64_t part, first;
};

inline std::vector<Chunk> chunks_of(const std::vector<Part>& parts) {
  std::vector<Chunk> chunks;
  for (size_t p = 0; p < parts.size(); ++p)
    for (int64_t first = first_chunk(parts[p].unit); first < parts[p].unit.stop; first += kChunk)
      chunks.push_back(Chunk{static_cast<int64_t>(p), first});
  return chunks;
}

// The same where parts are few: the threads share their chunks, a few at a time, whose sums then join in their order.
template <int kVectors>
void attend_by_chunks(const Attention& a, const std::vector<Part>& parts, int num_threads) {
  constexpr int64_t size = kVectors * kLanes;
  const int64_t num_parts = parts.size(), at_a_time = 4 * num_threads;
  const std::vector<Chunk> chunks = chunks_of(parts);
  const int64_t num_chunks = chunks.size();
  thread_local std::vector<Sums> room;
  room.resize(std::max<int64_t>(room.size(), num_parts + at_a_time));
  Sums *of_part = room.data(), *of_chunk = room.data() + num_parts;
  for (int64_t p = 0; p < num_parts; ++p)
    of_part[p].reset(parts[p].unit.num_rows * parts[p].heads.count * a.group(), size);
  for (int64_t start = 0; start < num_chunks; start += at_a_time) {
    const int64_t stop = std::min(start + at_a_time, num_chunks);
#pragma omp parallel num_threads(num_threads)
    {
#pragma omp for schedule(static)
      for (int64_t i = start; i < stop; ++i) {
        const Part& part = parts[chunks[i].part];
        add_chunk<kVectors>(a, part.unit, part.heads, chunks[i].first, of_chunk[i - start]);
      }
#pragma omp for schedule(static)
      for (int64_t r = 0; r < kUnitRows; ++r)
        for (int64_t i = start; i < stop; ++i) {
          const auto& [part, first] = chunks[i];
          if (r >= parts[part].unit.num_rows) continue;
          join_chunk(a, parts[part].unit, r, first, of_chunk[i - start], size, of_part[part]);
        }
    }
  }
  for (int64_t p = 0; p < num_parts; ++p) finish_unit(a, parts[p].unit, parts[p].heads, size, of_part[p]);
}

template <int kVectors>
void attend_parts(const Attention& a, int num_threads) {
  const std::vector<Part> parts = parts_of(a);
  const int64_t num_parts = parts.size();
  if (num_parts < 2 * num_threads) return attend_by_chunks<kVectors>(a, parts, num_threads);
#pragma omp parallel for schedule(dynamic) num_threads(num_threads)
  for (int64_t p = 0; p < num_parts; ++p) attend_part<kVectors>(a, parts[p]);
}

// Head sizes are known at build time, so that a query stays in registers.
template <int kSize>
bool attend_of_size(const Attention& a, int num_threads) {
  if (a.cache.key_size != kSize || a.cache.value_size != kSize) return false;
  attend_parts<kSize / kLanes>(a, num_threads);
  return true;
}

template <int... kSizes>
void attend_any(const Attention& a, int num_threads) {
  (attend_of_size<kSizes>(a, num_threads) || ...);
}

inline void attend(const Attention& a, int num_threads) {
  attend_any<16, 32, 48, 64, 80, 96, 112, 128, 192, 256>(a, num_threads);
}

}  // namespace paceline
