// Weights of 4 bits: scale * n + minimum, n from 0 to 15, with a scale and a minimum for 32 inputs of a column.
#pragma once
#include <vector>

#include "panels.h"

namespace paceline {

// Of one column: n of 8 inputs, the first in the lowest bits, or a scale (high half) and a minimum, both bfloat16.
struct Nibbles {
  int32_t bits;
};

inline Ints load(const Nibbles* at) { return *reinterpret_cast<const Ints*>(at); }

constexpr int kGroup = 32;                         // inputs
constexpr int kNibbles = 8;                        // in a word
constexpr int kWords = kGroup / kNibbles;          // rows of a panel's group, before that of scales and minima
constexpr int kGroupSize = (kWords + 1) * kPanel;  // words of a panel's group
constexpr int kTerms = kGroup + 1;                 // what an input row has for a group

// A nibble is masked, not shifted down, so the input is divided by where it stands. The highest would be a sign.
constexpr float kPlaces[kNibbles] = {1.0f,         1.0f / 16,      1.0f / 256,      1.0f / 4096,
                                     1.0f / 65536, 1.0f / 1048576, 1.0f / 16777216, 1.0f};

inline int64_t num_groups(int64_t in) { return (in + kGroup - 1) / kGroup; }

// Of 32 inputs: each over its nibble's place, then their sum.
inline void put_terms(const float* x, float* terms) {
  Vector total = {};
  for (int i = 0; i < kGroup; i += kLanes) {
    Vector places;
    for (int lane = 0; lane < kLanes; ++lane) places[lane] = kPlaces[(i + lane) % kNibbles];
    total += load(x + i);
    store(terms + i, load(x + i) * places);
  }
  terms[kGroup] = sum(total);
}

inline void put_row_terms(const float* x, int64_t in, float* terms) {
  int64_t k = 0;
  for (; k + kGroup <= in; k += kGroup, terms += kTerms) put_terms(x + k, terms);
  if (k == in) return;
  float last[kGroup] = {};
  std::memcpy(last, x + k, (in - k) * sizeof(float));
  put_terms(last, terms);
}

// [rows, groups, 33] of x [rows, in], whose rows lie a stride apart; valid until this thread's next call.
inline const float* terms_of(const float* x, int64_t stride, int64_t rows, int64_t in, int num_threads) {
  thread_local std::vector<float> room;
  const int64_t size = num_groups(in) * kTerms;
  room.resize(rows * size);
  float* terms = room.data();
#pragma omp parallel for schedule(static) num_threads(num_threads) if (rows > 8)
  for (int64_t r = 0; r < rows; ++r) put_row_terms(x + r * stride, in, terms + r * size);
  return terms;
}

template <int kPlace>
inline Vector nibble(Ints words) {
  typedef uint32_t Bits __attribute__((vector_size(sizeof(Ints))));
  if constexpr (kPlace == kNibbles - 1) return __builtin_convertvector((Ints)((Bits)words >> 28), Vector);
  return __builtin_convertvector(words & (15 << (4 * kPlace)), Vector);
}

template <int kPlace, int kRows, int kVectors>
inline void add_words(const float* terms, int64_t size, const Ints (&words)[kVectors],
                      Vector (&sums)[kRows][kVectors]) {
  if constexpr (kPlace < kNibbles) {
    Vector weights[kVectors];
    for (int v = 0; v < kVectors; ++v) weights[v] = nibble<kPlace>(words[v]);
    for (int m = 0; m < kRows; ++m)
      for (int v = 0; v < kVectors; ++v) sums[m][v] += terms[m * size + kPlace] * weights[v];
    add_words<kPlace + 1>(terms, size, words, sums);
  }
}

// A group's own sums are scaled and join the row's.
template <int kRows, int kVectors>
__attribute__((always_inline)) inline void add_step(const float* terms, int64_t size, const Nibbles* group,
                                                    Vector (&sums)[kRows][kVectors]) {
  Vector own[kRows][kVectors] = {};
  Ints words[kVectors];
  for (int w = 0; w < kWords; ++w) {
    for (int v = 0; v < kVectors; ++v) words[v] = load(group + w * kPanel + v * kLanes);
    add_words<0>(terms + w * kNibbles, size, words, own);
  }
  for (int v = 0; v < kVectors; ++v) {
    const Ints both = load(group + kWords * kPanel + v * kLanes);
    const Vector scale = (Vector)(both & ~0xffff), minimum = (Vector)(both << 16);
    for (int m = 0; m < kRows; ++m) {
      sums[m][v] += own[m][v] * scale;
      sums[m][v] += terms[m * size + kGroup] * minimum;
    }
  }
}

}  // namespace paceline
