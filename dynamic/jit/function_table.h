// Odd functions by intervals: a polynomial about the middle of each, whose coefficients a register's lanes hold, so that one
// permutation of lanes looks them up. For AVX-512, where two registers are one table of 32.
#pragma once

#include <array>

namespace lockstep::dynamic::jit {

struct FunctionTable {
  static constexpr int kIntervals = 32;
  using Row = std::array<float, kIntervals>;

  float step = 0;             // interval k is all x >= 0 that are nearest to k * step
  int degree = 0;             // at most kMostDegree
  Row low;                    // what coefficients[0] lacks
  static constexpr int kMostDegree = 6;
  std::array<Row, kMostDegree + 1> coefficients;  // of (x - k * step)^i; the second lacks 1, the slope at 0
};

// `function` is odd, its slope at 0 about 1. Interpolates at the Chebyshev nodes, in the first interval with odd powers alone.
FunctionTable make_function_table(long double (*function)(long double), float step, int degree);

// 2^(k / 16) and what its nearest float lacks.
struct PowerTable {
  static constexpr int kCount = 16;
  std::array<float, kCount> high, low;
};
const PowerTable& power_table();

}  // namespace lockstep::dynamic::jit
