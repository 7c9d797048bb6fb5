// Products with packed weights. Each element is summed along the input in one order, whatever else is computed.
#pragma once
#include <algorithm>
#include <type_traits>

#include "nibbles.h"
#include "panels.h"

namespace paceline {

// Columns of a panel [in, 48] for a few rows. Inlined, GCC keeps the sums in memory.
template <int kRows, typename Weight>
__attribute__((noinline)) void stripe(const float* x, const Weight* panel, const float* scale, const float* bias, Output out, int64_t in,
            int64_t width, Ahead ahead) {
  constexpr int kVectors = vectors_of(kRows);
  Vector sums[kRows][kVectors] = {};
  for (int64_t k = 0; k < in; ++k) {
    const Weight* row = panel + k * kPanel;
    ahead.fetch();
    if constexpr (kRows < kVectors) {  // whichever are fewer are held in registers
      for (int v = 0; v < kVectors; ++v) {
        const Vector weights = load(row + v * kLanes);
        for (int m = 0; m < kRows; ++m) sums[m][v] += x[m * in + k] * weights;
      }
    } else {
      Vector weights[kVectors];
      for (int v = 0; v < kVectors; ++v) weights[v] = load(row + v * kLanes);
      for (int m = 0; m < kRows; ++m) {
        const float input = x[m * in + k];
        for (int v = 0; v < kVectors; ++v) sums[m][v] += input * weights[v];
      }
    }
  }
  put_rows(sums, scale, bias, out, width);
}

// Weights, or words of them, of a panel for rows of x of this width, and how many the steps of a stripe go over.
template <typename Weight>
constexpr int64_t kStep = std::is_same_v<Weight, Nibbles> ? kGroupSize : kPanel;
template <typename Weight>
constexpr int64_t num_steps(int64_t width) {
  return std::is_same_v<Weight, Nibbles> ? width / kTerms : width;
}

constexpr int64_t num_stripes(int64_t rows) {
  const int64_t width = vectors_of(static_cast<int>(std::min<int64_t>(rows, kMaxRows))) * kLanes;
  return (rows + kMaxRows - 1) / kMaxRows * (kPanel / width);
}

// A panel and what its product needs.
template <typename Weight>
struct Panel {
  const Weight* weights;
  const float *scale, *bias;
  int64_t in, columns;
  Ahead ahead;
};

template <int kRows, typename Weight>
void rows_of_panel(const float* x, Panel<Weight>& panel, Output out) {
  constexpr int64_t kStripe = vectors_of(kRows) * kLanes;
  for (int64_t first = 0; first < panel.columns; first += kStripe) {
    stripe<kRows>(x, panel.weights + first, panel.scale ? panel.scale + first : nullptr,
                  panel.bias ? panel.bias + first : nullptr, Output{out.values + first, out.stride, out.is_added},
                  panel.in, std::min<int64_t>(kStripe, panel.columns - first), panel.ahead);
    panel.ahead.at += panel.ahead.step * num_steps<Weight>(panel.in);
  }
}

template <int kRows, typename Weight>
void last_rows(int64_t rows, const float* x, Panel<Weight>& panel, Output out) {
  if constexpr (kRows > 0) {
    if (rows == kRows) return rows_of_panel<kRows>(x, panel, out);
    last_rows<kRows - 1>(rows, x, panel, out);
  }
}

template <typename Weight>
void all_rows(int64_t rows, const float* x, Panel<Weight> panel, Output out) {
  for (; rows >= kMaxRows; rows -= kMaxRows, x += kMaxRows * panel.in, out.values += kMaxRows * out.stride)
    rows_of_panel<kMaxRows>(x, panel, out);
  last_rows<kMaxRows - 1>(rows, x, panel, out);
}

// A panel that is read once is asked for a little ahead of its reading; one that is read again for more rows or columns
// leaves time to ask for the next one meanwhile.
template <typename Weight>
Ahead ahead_of(const Weight* panel, int64_t size, int64_t count) {
  constexpr int64_t kBytes = kStep<Weight> * sizeof(Weight), kNear = 3072;
  const char* start = reinterpret_cast<const char*>(panel);
  return count == 1 ? Ahead{start + kNear, kBytes} : Ahead{start + size * sizeof(Weight), kBytes / count};
}

template <typename Weight>
void multiply(const float* x, int64_t width, int64_t rows, const Packed<Weight>& packed, Output out, int num_threads) {
  const int64_t num_panels = (packed.columns + kPanel - 1) / kPanel, size = num_steps<Weight>(width) * kStep<Weight>;
#pragma omp parallel for schedule(static) num_threads(num_threads)
  for (int64_t p = 0; p < num_panels; ++p) {
    const int64_t first = p * kPanel, columns = std::min<int64_t>(kPanel, packed.columns - first);
    const Weight* weights = packed.weights + p * size;
    all_rows(rows, x,
             Panel<Weight>{weights, packed.scale ? packed.scale + first : nullptr,
                           packed.bias ? packed.bias + first : nullptr, width, columns,
                           ahead_of(weights, size, num_stripes(rows))},
             Output{out.values + first, out.stride, out.is_added});
  }
}

template <typename Weight>
void matmul(const float* x, int64_t rows, const Packed<Weight>& packed, Output out, int num_threads) {
  if constexpr (std::is_same_v<Weight, Nibbles>) {
    const float* terms = terms_of(x, rows, packed.in, num_threads);
    multiply(terms, num_groups(packed.in) * kTerms, rows, packed, out, num_threads);
  } else {
    multiply(x, packed.in, rows, packed, out, num_threads);
  }
}

}  // namespace paceline
