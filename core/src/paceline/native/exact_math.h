// Functions of doubles whose bits are those of paceline.sampling.exact_math: every operation is rounded by itself.
#pragma once
#include <cstdint>
#include <cstring>

#include "vectors.h"

namespace paceline {

constexpr int kWide = kLanes / 2;  // doubles of a vector

typedef double Doubles __attribute__((vector_size(kWide * sizeof(double)), aligned(8)));
typedef int64_t Longs __attribute__((vector_size(kWide * sizeof(int64_t)), aligned(8)));
typedef float Halves __attribute__((vector_size(kWide * sizeof(float)), aligned(4)));

// A product that the compiler does not fuse with a sum.
template <typename Value>
inline Value product(Value a, Value b) {
  Value result = a * b;
#if defined(__x86_64__)
  asm("" : "+v"(result));
#elif defined(__aarch64__)
  asm("" : "+w"(result));
#else
  asm("" : "+m"(result));
#endif
  return result;
}

constexpr double kLn2 = 0x1.62e42fefa39efp-1, kLn2High = 0x1.62e42fee00000p-1, kLn2Low = 0x1.a39ef35793c76p-33;
constexpr int kMassBits = 40;

// Of a positive normal number.
inline double exact_log(double x) {
  int64_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  const int64_t offset = bits - 0x3FE6A09E667F3BCD, rest = bits - (offset & -(int64_t{1} << 52));
  double mantissa;
  std::memcpy(&mantissa, &rest, sizeof(mantissa));
  const double ratio = (mantissa - 1.0) / (mantissa + 1.0), square = product(ratio, ratio);
  double series = 1.0 / 15;
  for (int term = 6; term >= 0; --term) series = product(series, square) + 1.0 / (2 * term + 1);
  return product(product(series, ratio), 2.0) + product(static_cast<double>(offset >> 52), kLn2);
}

// e**z for z <= 0 in units of 2**-40, rounded down to integers, as doubles.
inline Doubles exp_mass(Doubles z) {
  const Doubles lowest = Doubles{} - 40.0, magic = Doubles{} + 0x1.8p52;  // adding this rounds to an integer
  z = z < lowest ? lowest : z;
  const Doubles power = product(z, Doubles{} + 1.0 / kLn2) + magic - magic;
  const Doubles rest = z - product(power, Doubles{} + kLn2High) - product(power, Doubles{} + kLn2Low);
  constexpr double kInverseFactorials[] = {1.0,       1.0,        1.0 / 2,     1.0 / 6,      1.0 / 24,     1.0 / 120,
                                           1.0 / 720, 1.0 / 5040, 1.0 / 40320, 1.0 / 362880, 1.0 / 3628800};
  Doubles series = Doubles{} + kInverseFactorials[10];
  for (int term = 9; term >= 0; --term) series = product(series, rest) + kInverseFactorials[term];
  const Longs exponent = (Longs)(power + 0x1.8p52) + (1023 + kMassBits);
  const Doubles mass = product(series, (Doubles)(exponent << 52));
  const Doubles rounded = mass + magic - magic;
  return rounded - (Doubles)((Longs)(Doubles{} + 1.0) & (rounded > mass));
}

}  // namespace paceline
