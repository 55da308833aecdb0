// Quantiles of what was measured, for the benchmarks in C++.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

inline double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}
