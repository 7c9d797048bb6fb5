// Products with packed weights. Each element is summed along the input in one order, whatever else is computed.
#pragma once
#include <algorithm>
#include <type_traits>
#include <vector>

#include "vectors.h"

namespace paceline {

#if defined(__AVX512F__)
constexpr int kMaxRows = 8;
#else
constexpr int kMaxRows = 4;
#endif
constexpr int kPanel = 48;   // columns packed together, the same on every machine
constexpr int kVectors = 3;  // of them held in registers at a time
constexpr int kStripe = kLanes * kVectors;

// Weights packed as [ceil(columns / 48), in, 48]; scale and bias are [columns] or null.
template <typename Weight>
struct Packed {
  const Weight* weights;
  const float* scale;
  const float* bias;
  int64_t in, columns;
};

struct Output {
  float* values;
  int64_t stride;
  bool is_added;  // to what is there
};

template <int kRows, typename Weight>
void stripe(const float* x, const Weight* panel, const float* scale, const float* bias, Output out, int64_t in,
            int64_t width) {
  Vector sums[kRows][kVectors] = {};
  for (int64_t k = 0; k < in; ++k) {
    const Weight* row = panel + k * kPanel;
    __builtin_prefetch(row + 16 * kPanel);
    Vector weights[kVectors];
    for (int v = 0; v < kVectors; ++v) weights[v] = load(row + v * kLanes);
    for (int m = 0; m < kRows; ++m)
      for (int v = 0; v < kVectors; ++v) sums[m][v] += x[m * in + k] * weights[v];
  }
  for (int m = 0; m < kRows; ++m) {
    float result[kStripe];
    std::memcpy(result, sums[m], sizeof(result));
    float* to = out.values + m * out.stride;
    for (int64_t c = 0; c < width; ++c) {
      const float scaled = scale ? result[c] * scale[c] : result[c];
      const float value = bias ? scaled + bias[c] : scaled;
      to[c] = out.is_added ? to[c] + value : value;
    }
  }
}

template <int kRows, typename Weight>
void rows_of_panel(const float* x, const Weight* panel, const float* scale, const float* bias, Output out, int64_t in,
                   int64_t width) {
  for (int64_t first = 0; first < width; first += kStripe)
    stripe<kRows>(x, panel + first, scale ? scale + first : nullptr, bias ? bias + first : nullptr,
                  Output{out.values + first, out.stride, out.is_added}, in, std::min<int64_t>(kStripe, width - first));
}

template <int kRows, typename Weight>
void last_rows(int64_t rows, const float* x, const Weight* panel, const float* scale, const float* bias, Output out,
               int64_t in, int64_t width) {
  if constexpr (kRows > 0) {
    if (rows == kRows) return rows_of_panel<kRows>(x, panel, scale, bias, out, in, width);
    last_rows<kRows - 1>(rows, x, panel, scale, bias, out, in, width);
  }
}

template <typename Weight>
void all_rows(int64_t rows, const float* x, const Weight* panel, const float* scale, const float* bias, Output out,
              int64_t in, int64_t width) {
  for (; rows >= kMaxRows; rows -= kMaxRows, x += kMaxRows * in, out.values += kMaxRows * out.stride)
    rows_of_panel<kMaxRows>(x, panel, scale, bias, out, in, width);
  last_rows<kMaxRows - 1>(rows, x, panel, scale, bias, out, in, width);
}

// 8-bit weights are converted once for many rows; the products are the same.
inline const float* converted(const int8_t* panel, int64_t count) {
  thread_local std::vector<float> values;
  values.resize(count);
  for (int64_t i = 0; i < count; i += kLanes) store(values.data() + i, load(panel + i));
  return values.data();
}

template <typename Weight>
void matmul(const float* x, int64_t rows, const Packed<Weight>& packed, Output out, int num_threads) {
  const int64_t num_panels = (packed.columns + kPanel - 1) / kPanel;
#pragma omp parallel for schedule(static) num_threads(num_threads)
  for (int64_t p = 0; p < num_panels; ++p) {
    const int64_t first = p * kPanel, width = std::min<int64_t>(kPanel, packed.columns - first);
    const Weight* panel = packed.weights + first * packed.in;
    const float* scale = packed.scale ? packed.scale + first : nullptr;
    const float* bias = packed.bias ? packed.bias + first : nullptr;
    const Output own{out.values + first, out.stride, out.is_added};
    if constexpr (std::is_same_v<Weight, int8_t>) {
      if (rows > kMaxRows) {
        all_rows(rows, x, converted(panel, packed.in * kPanel), scale, bias, own, packed.in, width);
        continue;
      }
    }
    all_rows(rows, x, panel, scale, bias, own, packed.in, width);
  }
}

}  // namespace paceline
