// Products with packed weights. Each element is summed along the input in one order, whatever else is computed.
#pragma once
#include <algorithm>
#include <type_traits>

#include "nibbles.h"
#include "panels.h"

namespace paceline {

// What a step along the input takes of a panel and of a row of x, how many go by from one fetch to the next, and how
// many are done for all rows at a time: what was read stays in the nearest cache until all rows have used it.
template <typename Weight>
struct Steps {
  static constexpr int64_t weights = kPanel, inputs = 1, of_fetch = 4 / sizeof(Weight), of_block = 64 * of_fetch;
};
template <>
struct Steps<Nibbles> {
  static constexpr int64_t weights = kGroupSize, inputs = kTerms, of_fetch = 1, of_block = 4;
};

constexpr int64_t kTileRows = 32;  // rows whose sums stand in the nearest cache

// Add some steps to the sums [kRows, 48] of a stripe of columns. Inlined, or with loops around the loads and stores, GCC
// keeps the sums in memory.
template <int kRows, typename Weight>
__attribute__((noinline)) void stripe(const float* x, int64_t stride, const Weight* weights, int64_t count, float* sums,
                                      Ahead ahead) {
  constexpr int kVectors = vectors_of(kRows);
  Vector own[kRows][kVectors];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) own[m][v] = load(sums + m * kPanel + v * kLanes);
  for (int64_t k = 0; k < count; ++k) {
    if (k % Steps<Weight>::of_fetch == 0) ahead.fetch();
    add_step(x + k * Steps<Weight>::inputs, stride, weights + k * Steps<Weight>::weights, own);
  }
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) store(sums + m * kPanel + v * kLanes, own[m][v]);
}

// Some steps of a panel for all rows of x, which lie a stride apart.
template <typename Weight>
struct Block {
  const Weight* weights;
  int64_t stride, count;
  Ahead ahead;
};

template <int kRows, typename Weight>
void rows_of_block(const float* x, Block<Weight>& block, float* sums) {
  for (int64_t first = 0; first < kPanel; first += vectors_of(kRows) * kLanes) {
    stripe<kRows>(x, block.stride, block.weights + first, block.count, sums + first, block.ahead);
    block.ahead.at += block.ahead.step * (block.count / Steps<Weight>::of_fetch);
  }
}

template <int kRows, typename Weight>
void last_rows(int64_t rows, const float* x, Block<Weight>& block, float* sums) {
  if constexpr (kRows > 0) {
    if (rows == kRows) return rows_of_block<kRows>(x, block, sums);
    last_rows<kRows - 1>(rows, x, block, sums);
  }
}

template <typename Weight>
void all_rows(int64_t rows, const float* x, Block<Weight> block, float* sums) {
  for (; rows >= kMaxRows; rows -= kMaxRows, x += kMaxRows * block.stride, sums += kMaxRows * kPanel)
    rows_of_block<kMaxRows>(x, block, sums);
  last_rows<kMaxRows - 1>(rows, x, block, sums);
}

constexpr int64_t num_stripes(int64_t rows) {
  const int64_t width = vectors_of(static_cast<int>(std::min<int64_t>(rows, kMaxRows))) * kLanes;
  return (rows + kMaxRows - 1) / kMaxRows * (kPanel / width);
}

// Steps that are worked on once are asked for a little ahead; those that are for more rows or columns leave time to ask
// for the next ones meanwhile.
template <typename Weight>
Ahead ahead_of(const Weight* block, int64_t rows) {
  using Own = Steps<Weight>;
  constexpr int64_t kStep = Own::weights * sizeof(Weight), kNear = 8192;
  const char* start = reinterpret_cast<const char*>(block);
  const int64_t count = num_stripes(rows);
  return count == 1 ? Ahead{start + kNear, Own::of_fetch * kStep}
                    : Ahead{start + Own::of_block * kStep, Own::of_fetch * kStep / count};
}

// A panel of so many steps for at most kTileRows rows.
template <typename Weight>
void add_panel(const float* x, int64_t stride, int64_t rows, const Weight* weights, int64_t num_steps, float* sums) {
  for (int64_t first = 0; first < num_steps; first += Steps<Weight>::of_block) {
    const Weight* own = weights + first * Steps<Weight>::weights;
    const int64_t count = std::min(Steps<Weight>::of_block, num_steps - first);
    all_rows(rows, x + first * Steps<Weight>::inputs, Block<Weight>{own, stride, count, ahead_of(own, rows)}, sums);
  }
}

template <typename Weight>
void multiply(const float* x, int64_t stride, int64_t rows, const Packed<Weight>& packed, int64_t num_steps, Output out,
              int num_threads) {
  const int64_t num_panels = (packed.columns + kPanel - 1) / kPanel, size = num_steps * Steps<Weight>::weights;
#pragma omp parallel for schedule(static) num_threads(num_threads)
  for (int64_t p = 0; p < num_panels; ++p)
    for (int64_t first = 0; first < rows; first += kTileRows) {
      const int64_t count = std::min(kTileRows, rows - first);
      alignas(64) float sums[kTileRows * kPanel] = {};
      add_panel(x + first * stride, stride, count, packed.weights + p * size, num_steps, sums);
      put_rows(sums, count, packed.scale, packed.bias, p * kPanel, packed.columns, out.from_row(first));
    }
}

template <typename Weight>
void matmul(const float* x, int64_t stride, int64_t rows, const Packed<Weight>& packed, Output out, int num_threads) {
  if constexpr (std::is_same_v<Weight, Nibbles>) {
    const int64_t groups = num_groups(packed.in);
    const float* terms = terms_of(x, stride, rows, packed.in, num_threads);
    multiply(terms, groups * kTerms, rows, packed, groups, out, num_threads);
  } else {
    multiply(x, stride, rows, packed, packed.in, out, num_threads);
  }
}

}  // namespace paceline
