#include "dynamic/jit/function_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <tuple>
#include <utility>
#include <vector>

namespace lockstep::dynamic::jit {
namespace {

using Real = long double;

// The coefficients of the polynomial through the points; as many as there are points. Newton's divided differences.
std::vector<Real> interpolate(const std::vector<Real>& at, std::vector<Real> values) {
  const size_t count = at.size();
  for (size_t order = 1; order < count; ++order) {
    for (size_t i = count - 1; i >= order; --i) values[i] = (values[i] - values[i - 1]) / (at[i] - at[i - order]);
  }
  std::vector<Real> coefficients(count, 0);
  for (size_t i = count; i-- > 0;) {  // times (x - at[i]), plus values[i]
    for (size_t k = count - 1; k > 0; --k) coefficients[k] = coefficients[k - 1] - at[i] * coefficients[k];
    coefficients[0] = values[i] - at[i] * coefficients[0];
  }
  return coefficients;
}

std::vector<Real> chebyshev_nodes(int count, Real from, Real to) {
  std::vector<Real> nodes;
  for (int i = 0; i < count; ++i) {
    nodes.push_back((from + to) / 2 + (to - from) / 2 * std::cos(std::numbers::pi_v<Real> * (2 * i + 1) / (2 * count)));
  }
  return nodes;
}

std::pair<float, float> split(Real value) {
  const auto high = static_cast<float>(value);
  return {high, static_cast<float>(value - high)};
}

}  // namespace

FunctionTable make_function_table(Real (*function)(Real), float step, int degree) {
  FunctionTable table;
  table.step = step;
  table.degree = degree;
  const Real half = Real{step} / 2;
  for (int interval = 0; interval < FunctionTable::kIntervals; ++interval) {
    std::vector<Real> coefficients(FunctionTable::kMostDegree + 1, 0), values;
    if (interval == 0) {
      const std::vector<Real> squares = chebyshev_nodes((degree + 1) / 2, 0, half * half);
      for (Real square : squares) values.push_back(function(std::sqrt(square)) / std::sqrt(square));
      const std::vector<Real> odd = interpolate(squares, values);
      for (size_t i = 0; i < odd.size(); ++i) coefficients[2 * i + 1] = odd[i];
    } else {
      const std::vector<Real> nodes = chebyshev_nodes(degree + 1, -half, half);
      for (Real node : nodes) values.push_back(function(interval * Real{step} + node));
      const std::vector<Real> found = interpolate(nodes, values);
      std::copy(found.begin(), found.end(), coefficients.begin());
    }
    coefficients[1] -= 1;
    for (size_t i = 0; i < coefficients.size(); ++i) table.coefficients[i][interval] = static_cast<float>(coefficients[i]);
    table.low[interval] = split(coefficients[0]).second;
  }
  return table;
}

const PowerTable& power_table() {
  static const PowerTable table = [] {
    PowerTable made;
    for (int k = 0; k < PowerTable::kCount; ++k) {
      std::tie(made.high[k], made.low[k]) = split(std::exp2(static_cast<Real>(k) / PowerTable::kCount));
    }
    return made;
  }();
  return table;
}

}  // namespace lockstep::dynamic::jit
