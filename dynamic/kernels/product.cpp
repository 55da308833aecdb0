#include "dynamic/kernels/product.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "dynamic/kernels/float_tensor.h"
#include "dynamic/kernels/kernel_choice.h"
#include "dynamic/kernels/product_loops.h"

namespace lockstep::dynamic {

namespace {

using at::Tensor;

constexpr int64_t kSmallestWork = 1 << 18;  // multiplications; below it the call itself counts
constexpr int64_t kSmallestForOneDnn = 1 << 22;
constexpr int64_t kLargestForSkinny = 1 << 24;  // beyond, packing pays
constexpr int64_t kDeepestForSkinny = 1 << 12;  // sums are not split
constexpr int64_t kBlockRows = 32;
constexpr int64_t kGrain = 1 << 18;             // multiplications that a thread takes at least
enum Way { kAsEager, kOneDnn, kSkinny, kWayCount };
constexpr int64_t kKind = 17;  // of the problem; convolutions have smaller ones

// Rows or columns that lie one behind the other.
bool is_dense_matrix(const Tensor& tensor) {
  return is_float_tensor(tensor) && tensor.dim() == 2 && (tensor.is_contiguous() || tensor.t().is_contiguous());
}

bool can_choose(const Tensor& left, const Tensor& right) {
  const auto& context = at::globalContext();
  return is_dense_matrix(left) && is_dense_matrix(right) && left.size(1) == right.size(0) &&
         left.size(0) * left.size(1) * right.size(1) >= kSmallestWork && !context.deterministicAlgorithms() && context.float32MatmulPrecision() == at::Float32MatmulPrecision::HIGHEST;
}

// left @ right + bias by oneDNN's product with a weight of (out, in).
Tensor by_onednn(const Tensor& left, const Tensor& right, const std::optional<Tensor>& bias) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
                             .typed<Tensor(const Tensor&, const Tensor&, const std::optional<Tensor>&, std::string_view,
                                           c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>)>();
  return op.call(left.contiguous(), right.t().contiguous(), bias, "none", c10::List<std::optional<at::Scalar>>(), "");
}

// In strips of columns, and those in blocks of rows: any number of these a thread.
void multiply_strips(const float* left, MatrixStrides strides, const float* right, int64_t right_row, float* out,
                     int64_t out_row, int64_t rows, int64_t depth, int64_t columns) {
  const auto& loops = product_loops();
  const int64_t width = 3 * loops.lanes, strips = std::max<int64_t>(columns / width, 1);
  const int64_t blocks = (rows + kBlockRows - 1) / kBlockRows;
  const int64_t grain = std::max<int64_t>(1, kGrain / (std::min(rows, kBlockRows) * depth * width));
  at::parallel_for(0, strips * blocks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t strip = task / blocks, row = task % blocks * kBlockRows, column = strip * width;
      loops.multiply(left + row * strides.row, strides, right + column, right_row, out + row * out_row + column, out_row,
                     std::min(kBlockRows, rows - row), depth, strip + 1 == strips ? columns - column : width);
    }
  });
}

// Rows and columns as wide as a register at least.
Tensor turned_with_room(const Tensor& matrix, int64_t lanes) {
  const int64_t rows = matrix.size(0), width = (rows + lanes - 1) / lanes * lanes;
  auto turned = at::zeros({matrix.size(1), width}, matrix.options());
  turned.narrow(1, 0, rows).copy_(matrix.t());
  return turned;
}

// left @ right + bias by our own loops. Where the columns of `right` are dense, what comes out first is turned.
Tensor by_strips(const Tensor& left, const Tensor& right, const std::optional<Tensor>& bias) {
  const int64_t rows = left.size(0), depth = left.size(1), columns = right.size(1);
  auto out = at::empty({rows, columns}, left.options());
  const auto strides = [](const Tensor& matrix) { return MatrixStrides{matrix.stride(0), matrix.stride(1)}; };
  if (right.stride(1) == 1 && columns >= product_loops().lanes) {
    multiply_strips(left.const_data_ptr<float>(), strides(left), right.const_data_ptr<float>(), right.stride(0),
                    out.mutable_data_ptr<float>(), columns, rows, depth, columns);
  } else {
    const auto packed = turned_with_room(left, product_loops().lanes);
    const auto result = at::empty({columns, packed.size(1)}, left.options());
    multiply_strips(right.const_data_ptr<float>(), strides(right.t()), packed.const_data_ptr<float>(), packed.size(1),
                    result.mutable_data_ptr<float>(), packed.size(1), columns, depth, packed.size(1));
    out.copy_(result.narrow(1, 0, rows).t());
  }
  if (bias) out.add_(*bias);
  return out;
}

uint32_t allowed_ways(const Tensor& left, const Tensor& right, int64_t work) {
  uint32_t ways = 1u << kAsEager;
  if (work >= kSmallestForOneDnn && at::globalContext().userEnabledMkldnn()) ways |= 1u << kOneDnn;
  if (work <= kLargestForSkinny && left.size(1) <= kDeepestForSkinny) ways |= 1u << kSkinny;
  return ways;
}

template <class Eager>
Tensor fastest(const Tensor& left, const Tensor& right, const std::optional<Tensor>& bias, Eager eager) {
  const int64_t work = left.numel() * right.size(1);
  const Problem problem{kKind, bias.has_value(), rough_size(left.size(0)), rough_size(left.size(1)), right.size(1),
                        left.is_contiguous(), right.is_contiguous(), at::get_num_threads()};
  Tensor result;
  run_chosen(problem, allowed_ways(left, right, work), static_cast<double>(work), [&](int way) {
    result = way == kOneDnn ? by_onednn(left, right, bias) : way == kSkinny ? by_strips(left, right, bias) : eager();
  });
  return result;
}

}  // namespace

bool try_mm(torch::jit::Stack& stack) {
  const auto left = stack[0].toTensor(), right = stack[1].toTensor();
  if (!can_choose(left, right)) return false;
  auto result = fastest(left, right, std::nullopt, [&] { return at::mm(left, right); });
  stack.clear();
  stack.emplace_back(std::move(result));
  return true;
}

// A bias for each column, as in a linear layer.
bool try_addmm(torch::jit::Stack& stack) {
  const auto bias = stack[0].toTensor(), left = stack[1].toTensor(), right = stack[2].toTensor();
  const auto beta = stack[3].toScalar(), alpha = stack[4].toScalar();
  if (!can_choose(left, right) || beta.toDouble() != 1 || alpha.toDouble() != 1) return false;
  if (!bias.defined() || bias.dim() != 1 || bias.size(0) != right.size(1) || bias.scalar_type() != at::kFloat ||
      !bias.is_contiguous() || bias.is_neg())
    return false;
  auto result = fastest(left, right, bias, [&] { return at::addmm(bias, left, right); });
  stack.clear();
  stack.emplace_back(std::move(result));
  return true;
}

}  // namespace lockstep::dynamic
