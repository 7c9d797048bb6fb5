// Vectors of floats as GCC and Clang have them, so that one source serves every instruction set.
#pragma once
#include <cstdint>
#include <cstring>
#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

namespace paceline {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float Vector __attribute__((vector_size(kLanes * sizeof(float)), aligned(4)));
typedef int32_t Ints __attribute__((vector_size(kLanes * sizeof(int32_t)), aligned(4)));

inline Vector load(const float* at) { return *reinterpret_cast<const Vector*>(at); }

inline Vector load(const int8_t* at) {
#if defined(__AVX512F__)
  return (Vector)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))));
#elif defined(__AVX2__)
  return (Vector)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at))));
#else
  Vector values;
  for (int lane = 0; lane < kLanes; ++lane) values[lane] = at[lane];
  return values;
#endif
}

inline void store(float* at, Vector values) { *reinterpret_cast<Vector*>(at) = values; }

// A vector that stays in a register: compilers else read it from memory again at each use.
inline Vector held(Vector values) {
#if defined(__x86_64__)
  asm("" : "+x"(values));
#endif
  return values;
}

inline Vector all(float value) { return value - Vector{}; }

// Whether any lane of a comparison is true.
inline bool any(Ints lanes) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)lanes, (__m512i)lanes) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_ps((__m256)lanes) != 0;
#else
  int32_t bits = 0;
  for (int lane = 0; lane < kLanes; ++lane) bits |= lanes[lane];
  return bits != 0;
#endif
}

// All lanes as one, always in the same order: halves are combined until one lane is left.
template <typename Combine>
inline float folded(Vector values, Combine combine) {
#if defined(__AVX512F__)
  const __m256 halves = combine(_mm512_castps512_ps256(values), (__m256)_mm512_extractf64x4_pd((__m512d)values, 1));
#elif defined(__AVX2__)
  const __m256 halves = (__m256)values;
#endif
#if defined(__AVX512F__) || defined(__AVX2__)
  const __m128 quarters = combine(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1));
  const __m128 pairs = combine(quarters, _mm_movehl_ps(quarters, quarters));
  return _mm_cvtss_f32(combine(pairs, _mm_movehdup_ps(pairs)));
#else
  float lanes[kLanes];
  std::memcpy(lanes, &values, sizeof(lanes));
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int lane = 0; lane < width; ++lane) lanes[lane] = combine(lanes[lane], lanes[lane + width]);
  return lanes[0];
#endif
}

inline float sum(Vector values) {
  return folded(values, [](auto a, auto b) { return a + b; });
}

// The sums of four vectors times a factor, side by side; each in the same order.
inline void store_sums(float* at, const Vector (&rows)[4], float factor) {
#if defined(__AVX2__)
  __m256 halves[4];
  for (int i = 0; i < 4; ++i) {
#if defined(__AVX512F__)
    halves[i] = _mm512_castps512_ps256(rows[i]) + (__m256)_mm512_extractf64x4_pd((__m512d)rows[i], 1);
#else
    halves[i] = (__m256)rows[i];
#endif
  }
  const __m256 first = _mm256_unpacklo_ps(halves[0], halves[1]) + _mm256_unpackhi_ps(halves[0], halves[1]);
  const __m256 second = _mm256_unpacklo_ps(halves[2], halves[3]) + _mm256_unpackhi_ps(halves[2], halves[3]);
  const __m256 all_four = _mm256_shuffle_ps(first, second, 0x44) + _mm256_shuffle_ps(first, second, 0xee);
  _mm_storeu_ps(at, (_mm256_castps256_ps128(all_four) + _mm256_extractf128_ps(all_four, 1)) * factor);
#else
  for (int i = 0; i < 4; ++i) at[i] = sum(rows[i]) * factor;
#endif
}

inline float largest(Vector values) {
  return folded(values, [](auto a, auto b) { return a > b ? a : b; });
}

// e**x within 2 ulp: argument reduction by ln 2 in two parts and a polynomial (Moshier, Cephes, expf). 0 below -87,
// NaN of NaN.
inline Vector exponential(Vector x) {
  const Vector low = all(-87.0f), high = all(88.0f);
  const Ints is_zero = x < low, is_nan = x != x;
  const Vector nan = x;
  x = x < low ? low : x;
  x = x > high ? high : x;
  const Vector shifted = x * 1.44269504088896341f + 12582912.0f;  // the integer part lies in the lowest bits
  const Vector whole = shifted - 12582912.0f;
  const Vector rest = x - whole * 0.693359375f + whole * 2.12194440e-4f;
  Vector y = all(1.9875691500e-4f);
  y = y * rest + 1.3981999507e-3f;
  y = y * rest + 8.3334519073e-3f;
  y = y * rest + 4.1665795894e-2f;
  y = y * rest + 1.6666665459e-1f;
  y = y * rest + 5.0000001201e-1f;
  y = y * (rest * rest) + rest + 1.0f;
  const Vector scaled = (Vector)((Ints)y + ((Ints)shifted << 23));
  return is_nan ? nan : is_zero ? all(0.0f) : scaled;
}

inline float exponential(float x) { return exponential(all(x))[0]; }

}  // namespace paceline
