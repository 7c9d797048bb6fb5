// Panels of packed weights, and where products with them go.
#pragma once
#include "vectors.h"

namespace paceline {

#if defined(__AVX512F__)
constexpr int kMaxRows = 8;
#else
constexpr int kMaxRows = 4;
#endif
constexpr int kPanel = 48;  // columns packed together, the same on every machine

// Vectors of columns held in registers at a time: few rows need more of them to hide the latency of a sum.
constexpr int vectors_of(int rows) { return rows <= 2 && kLanes >= 8 ? kPanel / kLanes : 3; }

// Weights in panels of 48 columns; scale and bias are [columns] or null.
template <typename Weight>
struct Packed {
  const Weight* weights;
  const float* scale;
  const float* bias;
  int64_t in, columns;
};

// What is asked for while something else is worked on: so many bytes at each call.
struct Ahead {
  const char* at;
  int64_t step;

  void fetch() {
    __builtin_prefetch(at, 0, 2);
    for (int64_t line = 64; line < step; line += 64) __builtin_prefetch(at + line, 0, 2);
    at += step;
  }
};

struct Output {
  float* values;
  int64_t stride;
  bool is_added;  // to what is there

  Output from_row(int64_t row) const { return {values + row * stride, stride, is_added}; }
};

// Writes or adds sums [rows, 48] * scale + bias, from a column on.
inline void put_rows(const float* sums, int64_t rows, const float* scale, const float* bias, int64_t first,
                     int64_t columns, Output out) {
  const int64_t width = columns - first < kPanel ? columns - first : kPanel;
  for (int64_t r = 0; r < rows; ++r) {
    float* to = out.values + r * out.stride + first;
    for (int64_t c = 0; c < width; ++c) {
      const float sum = sums[r * kPanel + c];
      const float scaled = scale ? sum * scale[first + c] : sum;
      const float value = bias ? scaled + bias[first + c] : scaled;
      to[c] = out.is_added ? to[c] + value : value;
    }
  }
}

// One step for a few rows: an input of each, and a row of the panel.
template <typename Weight, int kRows, int kVectors>
__attribute__((always_inline)) inline void add_step(const float* x, int64_t stride, const Weight* row,
                                                    Vector (&sums)[kRows][kVectors]) {
  if constexpr (kRows < kVectors) {  // whichever are fewer are held in registers
    for (int v = 0; v < kVectors; ++v) {
      const Vector weights = load(row + v * kLanes);
      for (int m = 0; m < kRows; ++m) sums[m][v] += x[m * stride] * weights;
    }
  } else {
    Vector weights[kVectors];
    for (int v = 0; v < kVectors; ++v) weights[v] = load(row + v * kLanes);
    for (int m = 0; m < kRows; ++m)
      for (int v = 0; v < kVectors; ++v) sums[m][v] += x[m * stride] * weights[v];
  }
}

}  // namespace paceline
