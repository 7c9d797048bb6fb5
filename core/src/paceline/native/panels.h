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
    if (step > 64) __builtin_prefetch(at + 64, 0, 2);
    if (step > 128) __builtin_prefetch(at + 128, 0, 2);
    at += step;
  }

  void fetch_all() {
    for (int64_t line = 0; line < step; line += 64) __builtin_prefetch(at + line, 0, 2);
    at += step;
  }
};

struct Output {
  float* values;
  int64_t stride;
  bool is_added;  // to what is there
};

// Writes or adds sums * scale + bias, the first columns of each row.
template <int kRows, int kVectors>
void put_rows(const Vector (&sums)[kRows][kVectors], const float* scale, const float* bias, Output out, int64_t width) {
  for (int m = 0; m < kRows; ++m) {
    float result[kVectors * kLanes];
    std::memcpy(result, sums[m], sizeof(result));
    float* to = out.values + m * out.stride;
    for (int64_t c = 0; c < width; ++c) {
      const float scaled = scale ? result[c] * scale[c] : result[c];
      const float value = bias ? scaled + bias[c] : scaled;
      to[c] = out.is_added ? to[c] + value : value;
    }
  }
}

}  // namespace paceline
