#include "dynamic/kernels/reductions.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ceil_div.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "dynamic/kernels/channel_loops.h"
#include "dynamic/kernels/float_tensor.h"
#include "dynamic/threads/shared_loop.h"

namespace lockstep::dynamic {

namespace {

using at::Tensor;

constexpr int64_t kFewestValues = 1 << 10;  // below, the call itself counts
constexpr int64_t kGrain = 1 << 14;         // values that a thread takes at least
constexpr int64_t kChunk = 1 << 10;         // columns whose sums stay in the nearest cache
constexpr int64_t kBlock = 256;             // values of a row that float32 adds up, a sixteenth of them one by one
constexpr int64_t kBlockRows = 16;          // ... of a column, one by one
constexpr int64_t kParts = 8, kFewestRows = 64;  // a few long columns are added up in parts
constexpr int64_t kShortest = 8, kShortestAlone = 32;  // columns, and those that are dense; PyTorch's loops suit shorter ones
constexpr double kSmallestSquares = 1e-25;  // of float32 values whose squares are none, perhaps

// (outer, rows, inner), dense: a value for each of (outer, inner).
struct Folded {
  int64_t outer = 1, rows = 1, inner = 1;
  std::vector<int64_t> sizes;  // of the result

  int64_t results() const { return outer * inner; }
  int64_t chunks() const { return at::ceil_div(inner, kChunk); }
  int64_t parts() const { return outer * chunks() >= kParts ? 1 : std::clamp<int64_t>(rows / kFewestRows, 1, kParts); }
};

// None where the dims do not lie beside each other, or eager says what is wrong with them.
std::optional<Folded> fold(const Tensor& input, const c10::IValue& dims, bool keeps_dims) {
  if (at::globalContext().deterministicAlgorithms() || !is_float_tensor(input) || input._is_zerotensor() ||
      !input.is_contiguous() || input.numel() < kFewestValues || !(dims.isNone() || dims.isIntList()))
    return std::nullopt;
  const int64_t rank = input.dim();
  std::vector<bool> is_folded(rank, dims.isNone());
  if (!dims.isNone()) {
    const auto given = dims.toIntVector();
    if (given.empty()) return std::nullopt;
    for (int64_t dim : given) {
      if (dim < 0) dim += rank;
      if (dim < 0 || dim >= rank || is_folded[dim]) return std::nullopt;
      is_folded[dim] = true;
    }
  }
  Folded f;
  const auto first = std::find(is_folded.begin(), is_folded.end(), true) - is_folded.begin();
  for (int64_t dim = 0; dim < rank; ++dim) {
    if (is_folded[dim] && f.inner > 1) return std::nullopt;
    (is_folded[dim] ? f.rows : dim < first ? f.outer : f.inner) *= input.size(dim);
    if (!is_folded[dim]) f.sizes.push_back(input.size(dim));
    if (is_folded[dim] && keeps_dims) f.sizes.push_back(1);
  }
  return f.rows < (f.inner == 1 ? kShortestAlone : kShortest) ? std::nullopt : std::optional(f);
}

// Of what values are apart from something near them.
struct Moments {
  std::vector<double> sums, squares;  // one for each result
};

void add_row(const float* row, int64_t count, float about, double* sum, double* squares) {
  for (int64_t i = 0; i < count;) {
    float block_sum = 0, block_squares = 0;
    const int64_t end = std::min(i + kBlock, count);
#pragma omp simd reduction(+ : block_sum, block_squares)
    for (int64_t k = i; k < end; ++k) {
      const float apart = row[k] - about;
      block_sum += apart;
      block_squares += apart * apart;
    }
    *sum += block_sum, *squares += block_squares;
    i = end;
  }
}

// about(result, columns): what the values of so many columns from there on are near.
template <class About>
Moments find_moments(const Folded& f, const float* values, About about) {
  const auto& loops = channel_loops();
  const int64_t parts = f.parts(), chunks = f.chunks(), width = std::min(f.inner, kChunk);
  Moments m{std::vector<double>(parts * f.results()), std::vector<double>(parts * f.results())};
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, f.rows * width / parts));
  shared_loop(0, f.outer * chunks * parts, grain, [&](int64_t begin, int64_t end) {
    std::vector<float> sums(width), squares(width);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t part = task % parts, chunk = task / parts % chunks, outer = task / parts / chunks;
      const int64_t first_row = part * f.rows / parts, last_row = (part + 1) * f.rows / parts;
      const int64_t column = chunk * kChunk, columns = std::min(kChunk, f.inner - column), result = outer * f.inner + column;
      const float* from = values + outer * f.rows * f.inner + column;
      const float* near = about(result, from);
      double *to_sums = m.sums.data() + part * f.results() + result, *to_squares = m.squares.data() + part * f.results() + result;
      if (f.inner == 1) {
        add_row(from + first_row, last_row - first_row, *near, to_sums, to_squares);
        continue;
      }
      for (int64_t row = first_row; row < last_row;) {
        std::fill_n(sums.begin(), columns, 0.0f);
        std::fill_n(squares.begin(), columns, 0.0f);
        for (const int64_t end_of_block = std::min(row + kBlockRows, last_row); row < end_of_block; ++row)
          loops.column_moments(from + row * f.inner, 1, columns, near, sums.data(), squares.data());
        for (int64_t i = 0; i < columns; ++i) to_sums[i] += sums[i], to_squares[i] += squares[i];
      }
    }
  });
  for (auto* totals : {&m.sums, &m.squares}) {
    for (int64_t part = 1; part < parts; ++part)
      for (int64_t i = 0; i < f.results(); ++i) (*totals)[i] += (*totals)[part * f.results() + i];
    totals->resize(f.results());
  }
  return m;
}

// Squares that float32 holds: PyTorch's kernels for these have more room.
bool are_usual(const Moments& m) {
  for (size_t i = 0; i < m.squares.size(); ++i) {
    const bool is_zero = m.squares[i] == 0 && m.sums[i] == 0;
    if (!is_zero && !(m.squares[i] > kSmallestSquares && std::isfinite(m.squares[i]))) return false;
  }
  return true;
}

// Each result is finish(index).
template <class Finish>
void replace(torch::jit::Stack& stack, const Folded& f, const Tensor& input, Finish finish) {
  auto result = at::empty(f.sizes, input.options());
  auto* to = result.mutable_data_ptr<float>();
  for (int64_t i = 0; i < f.results(); ++i) to[i] = static_cast<float>(finish(i));
  stack.clear();
  stack.emplace_back(std::move(result));
}

// self, dim, correction, keepdim. Means are found from what values are apart from the first one, so that equal ones have no
// variance; and what the means are off by is taken off (Chan, Golub and LeVeque 1983).
template <class Finish>
bool try_moment(torch::jit::Stack& stack, Finish finish) {
  const auto input = stack[0].toTensor();
  const auto f = fold(input, stack[1], stack[3].toBool());
  const double correction = stack[2].isNone() ? 1 : stack[2].toScalar().toDouble();
  if (!f || !(correction < static_cast<double>(f->rows))) return false;  // PyTorch warns of it
  const auto* values = input.const_data_ptr<float>();
  const auto rows = static_cast<double>(f->rows);
  const auto firsts = find_moments(*f, values, [](int64_t, const float* first_row) { return first_row; });
  std::vector<float> means(f->results());
  for (int64_t i = 0; i < f->results(); ++i) {
    const float first = values[i / f->inner * f->rows * f->inner + i % f->inner];
    means[i] = static_cast<float>(first + firsts.sums[i] / rows);
  }
  const auto m = find_moments(*f, values, [&](int64_t result, const float*) { return means.data() + result; });
  if (!are_usual(m)) return false;
  replace(stack, *f, input, [&](int64_t i) {
    return finish(std::max(0.0, m.squares[i] - m.sums[i] * m.sums[i] / rows) / (rows - correction));
  });
  return true;
}

}  // namespace

bool try_variance(torch::jit::Stack& stack) {
  return try_moment(stack, [](double variance) { return variance; });
}

bool try_deviation(torch::jit::Stack& stack) {
  return try_moment(stack, [](double variance) { return std::sqrt(variance); });
}

// self, ord, dim, keepdim, dtype
bool try_vector_norm(torch::jit::Stack& stack) {
  const auto input = stack[0].toTensor();
  if (stack[1].toScalar().isComplex() || stack[1].toScalar().toDouble() != 2 || !stack[4].isNone()) return false;
  const auto f = fold(input, stack[2], stack[3].toBool());
  if (!f) return false;
  const std::vector<float> zeros(std::min(f->inner, kChunk));
  const auto m = find_moments(*f, input.const_data_ptr<float>(), [&](int64_t, const float*) { return zeros.data(); });
  if (!are_usual(m)) return false;
  replace(stack, *f, input, [&](int64_t i) { return std::sqrt(m.squares[i]); });
  return true;
}

}  // namespace lockstep::dynamic
