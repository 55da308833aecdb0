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
constexpr int64_t kBlockRows = 256;         // of which float32 sums lose no digits
constexpr int64_t kParts = 8, kFewestRows = 64;  // a few long columns are added up in parts

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
  return f;
}

// Sums over rows by `of_columns(values of a row, columns, what is of these columns, float32 sums)`, or where there is one
// column alone by `of_row(values, count, what is of it)`. One for each result.
template <class OfColumns, class OfRow>
std::vector<double> sum_up(const Folded& f, const float* values, const float* means, OfColumns of_columns, OfRow of_row) {
  const int64_t parts = f.parts(), chunks = f.chunks();
  std::vector<double> sums(parts * f.results());
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, f.rows * std::min(f.inner, kChunk) / parts));
  shared_loop(0, f.outer * chunks * parts, grain, [&](int64_t begin, int64_t end) {
    std::vector<float> block(std::min(f.inner, kChunk));
    for (int64_t task = begin; task < end; ++task) {
      const int64_t part = task % parts, chunk = task / parts % chunks, outer = task / parts / chunks;
      const int64_t first_row = part * f.rows / parts, last_row = (part + 1) * f.rows / parts;
      const int64_t column = chunk * kChunk, columns = std::min(kChunk, f.inner - column), result = outer * f.inner + column;
      const float* from = values + outer * f.rows * f.inner + column;
      double* into = sums.data() + part * f.results() + result;
      if (f.inner == 1) {
        *into = of_row(from + first_row, last_row - first_row, means + result);
        continue;
      }
      for (int64_t row = first_row; row < last_row;) {
        std::fill_n(block.begin(), columns, 0.0f);
        for (const int64_t end_of_block = std::min(row + kBlockRows, last_row); row < end_of_block; ++row)
          of_columns(from + row * f.inner, columns, means + result, block.data());
        for (int64_t i = 0; i < columns; ++i) into[i] += block[i];
      }
    }
  });
  for (int64_t part = 1; part < parts; ++part)
    for (int64_t i = 0; i < f.results(); ++i) sums[i] += sums[part * f.results() + i];
  sums.resize(f.results());
  return sums;
}

std::vector<double> squares(const Folded& f, const float* values, const float* means) {
  const auto& loops = channel_loops();
  return sum_up(
      f, values, means,
      [&](const float* row, int64_t columns, const float* of_columns, float* sums) {
        loops.column_squares(row, 1, columns, of_columns, sums);
      },
      [&](const float* row, int64_t count, const float* mean) { return loops.squares(row, count, *mean); });
}

std::vector<float> means(const Folded& f, const float* values) {
  const auto& loops = channel_loops();
  const std::vector<float> unread(f.results());
  const auto sums = sum_up(
      f, values, unread.data(),
      [&](const float* row, int64_t columns, const float*, float* into) { loops.column_sums(row, 1, columns, into); },
      [&](const float* row, int64_t count, const float*) { return loops.sum(row, count); });
  std::vector<float> result(f.results());
  for (int64_t i = 0; i < f.results(); ++i) result[i] = static_cast<float>(sums[i] / static_cast<double>(f.rows));
  return result;
}

// Each result is finish(its sum of squares).
template <class Finish>
void replace(torch::jit::Stack& stack, const Folded& f, const Tensor& input, const std::vector<double>& sums, Finish finish) {
  auto result = at::empty(f.sizes, input.options());
  auto* to = result.mutable_data_ptr<float>();
  for (int64_t i = 0; i < f.results(); ++i) to[i] = static_cast<float>(finish(sums[i]));
  stack.clear();
  stack.emplace_back(std::move(result));
}

// self, dim, correction, keepdim
template <class Finish>
bool try_moment(torch::jit::Stack& stack, Finish finish) {
  const auto input = stack[0].toTensor();
  const auto f = fold(input, stack[1], stack[3].toBool());
  const double correction = stack[2].isNone() ? 1 : stack[2].toScalar().toDouble();
  if (!f || !(correction < static_cast<double>(f->rows))) return false;  // PyTorch warns of it
  const auto* values = input.const_data_ptr<float>();
  const double freedom = static_cast<double>(f->rows) - correction;
  replace(stack, *f, input, squares(*f, values, means(*f, values).data()), [&](double sum) { return finish(sum / freedom); });
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
  const std::vector<float> about(f->results());
  const auto sums = squares(*f, input.const_data_ptr<float>(), about.data());
  replace(stack, *f, input, sums, [](double sum) { return std::sqrt(sum); });
  return true;
}

}  // namespace lockstep::dynamic
