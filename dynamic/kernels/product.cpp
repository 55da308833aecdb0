#include "dynamic/kernels/product.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include "dynamic/kernels/float_tensor.h"
#include "dynamic/kernels/kernel_choice.h"

namespace lockstep::dynamic {

namespace {

using at::Tensor;

constexpr int64_t kSmallestWork = 1 << 22;  // multiplications; below it the call itself counts
enum Way { kAsEager, kOneDnn, kWayCount };
constexpr int64_t kKind = 16;  // of the problem; convolutions have smaller ones

// Rows or columns that lie one behind the other.
bool is_dense_matrix(const Tensor& tensor) {
  return is_float_tensor(tensor) && tensor.dim() == 2 && (tensor.is_contiguous() || tensor.t().is_contiguous());
}

bool can_choose(const Tensor& left, const Tensor& right) {
  const auto& context = at::globalContext();
  return is_dense_matrix(left) && is_dense_matrix(right) && left.size(1) == right.size(0) &&
         left.size(0) * left.size(1) * right.size(1) >= kSmallestWork && context.userEnabledMkldnn() &&
         !context.deterministicAlgorithms() && context.float32MatmulPrecision() == at::Float32MatmulPrecision::HIGHEST;
}

// left @ right + bias by oneDNN's product with a weight of (out, in).
Tensor by_onednn(const Tensor& left, const Tensor& right, const std::optional<Tensor>& bias) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
                             .typed<Tensor(const Tensor&, const Tensor&, const std::optional<Tensor>&, std::string_view,
                                           c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>)>();
  return op.call(left.contiguous(), right.t().contiguous(), bias, "none", c10::List<std::optional<at::Scalar>>(), "");
}

template <class Eager>
Tensor fastest(const Tensor& left, const Tensor& right, const std::optional<Tensor>& bias, Eager eager) {
  const double work = static_cast<double>(left.numel()) * static_cast<double>(right.size(1));
  const Problem problem{kKind, bias.has_value(), rough_size(left.size(0)), rough_size(left.size(1)), right.size(1),
                        left.is_contiguous(), right.is_contiguous(), at::get_num_threads()};
  Tensor result;
  run_chosen(problem, (1u << kWayCount) - 1, work,
             [&](int way) { result = way == kOneDnn ? by_onednn(left, right, bias) : eager(); });
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
