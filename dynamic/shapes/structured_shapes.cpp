#include "dynamic/shapes/structured_shapes.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/stack.h>
#include <ATen/ops/_log_softmax_backward_data_meta_dispatch.h>
#include <ATen/ops/_log_softmax_meta_dispatch.h>
#include <ATen/ops/_softmax_backward_data_meta_dispatch.h>
#include <ATen/ops/_softmax_meta_dispatch.h>
#include <ATen/ops/add_meta_dispatch.h>
#include <ATen/ops/addcdiv_meta_dispatch.h>
#include <ATen/ops/addcmul_meta_dispatch.h>
#include <ATen/ops/addmm_meta_dispatch.h>
#include <ATen/ops/addmv_meta_dispatch.h>
#include <ATen/ops/all_meta_dispatch.h>
#include <ATen/ops/amax_meta_dispatch.h>
#include <ATen/ops/amin_meta_dispatch.h>
#include <ATen/ops/any_meta_dispatch.h>
#include <ATen/ops/argmax_meta_dispatch.h>
#include <ATen/ops/argmin_meta_dispatch.h>
#include <ATen/ops/avg_pool2d_backward_meta_dispatch.h>
#include <ATen/ops/avg_pool2d_meta_dispatch.h>
#include <ATen/ops/baddbmm_meta_dispatch.h>
#include <ATen/ops/bmm_meta_dispatch.h>
#include <ATen/ops/cat_meta_dispatch.h>
#include <ATen/ops/cumprod_meta_dispatch.h>
#include <ATen/ops/cumsum_meta_dispatch.h>
#include <ATen/ops/div_meta_dispatch.h>
#include <ATen/ops/eq_meta_dispatch.h>
#include <ATen/ops/exp_meta_dispatch.h>
#include <ATen/ops/gather_meta_dispatch.h>
#include <ATen/ops/ge_meta_dispatch.h>
#include <ATen/ops/gelu_backward_meta_dispatch.h>
#include <ATen/ops/gelu_meta_dispatch.h>
#include <ATen/ops/glu_meta_dispatch.h>
#include <ATen/ops/gt_meta_dispatch.h>
#include <ATen/ops/index_add_meta_dispatch.h>
#include <ATen/ops/index_copy_meta_dispatch.h>
#include <ATen/ops/index_meta_dispatch.h>
#include <ATen/ops/le_meta_dispatch.h>
#include <ATen/ops/leaky_relu_backward_meta_dispatch.h>
#include <ATen/ops/leaky_relu_meta_dispatch.h>
#include <ATen/ops/linalg_vector_norm_meta_dispatch.h>
#include <ATen/ops/lt_meta_dispatch.h>
#include <ATen/ops/max_meta_dispatch.h>
#include <ATen/ops/max_pool2d_with_indices_backward_meta_dispatch.h>
#include <ATen/ops/max_pool2d_with_indices_meta_dispatch.h>
#include <ATen/ops/maximum_meta_dispatch.h>
#include <ATen/ops/mean_meta_dispatch.h>
#include <ATen/ops/min_meta_dispatch.h>
#include <ATen/ops/minimum_meta_dispatch.h>
#include <ATen/ops/mm_meta_dispatch.h>
#include <ATen/ops/mse_loss_meta_dispatch.h>
#include <ATen/ops/mul_meta_dispatch.h>
#include <ATen/ops/ne_meta_dispatch.h>
#include <ATen/ops/neg_meta_dispatch.h>
#include <ATen/ops/nll_loss_backward_meta_dispatch.h>
#include <ATen/ops/nll_loss_forward_meta_dispatch.h>
#include <ATen/ops/pow_meta_dispatch.h>
#include <ATen/ops/prod_meta_dispatch.h>
#include <ATen/ops/rsqrt_meta_dispatch.h>
#include <ATen/ops/scatter_add_meta_dispatch.h>
#include <ATen/ops/scatter_meta_dispatch.h>
#include <ATen/ops/sigmoid_backward_meta_dispatch.h>
#include <ATen/ops/sigmoid_meta_dispatch.h>
#include <ATen/ops/silu_backward_meta_dispatch.h>
#include <ATen/ops/silu_meta_dispatch.h>
#include <ATen/ops/smooth_l1_loss_meta_dispatch.h>
#include <ATen/ops/sort_meta_dispatch.h>
#include <ATen/ops/sqrt_meta_dispatch.h>
#include <ATen/ops/sub_meta_dispatch.h>
#include <ATen/ops/sum_meta_dispatch.h>
#include <ATen/ops/tanh_backward_meta_dispatch.h>
#include <ATen/ops/tanh_meta_dispatch.h>
#include <ATen/ops/threshold_backward_meta_dispatch.h>
#include <ATen/ops/topk_meta_dispatch.h>
#include <ATen/ops/tril_meta_dispatch.h>
#include <ATen/ops/triu_meta_dispatch.h>
#include <ATen/ops/upsample_bilinear2d_backward_meta_dispatch.h>
#include <ATen/ops/upsample_bilinear2d_meta_dispatch.h>
#include <ATen/ops/upsample_nearest2d_backward_meta_dispatch.h>
#include <ATen/ops/upsample_nearest2d_meta_dispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>

namespace lockstep::dynamic {

namespace {

using at::Tensor;
using graph::ArgKind;
using graph::Layout;

template <class Result, class... Args>
c10::KernelFunction shape_of(Result (*function)(Args...)) {
  return c10::KernelFunction::makeFromUnboxedRuntimeFunction(function);
}

using One = Tensor(const Tensor&);
using Two = Tensor(const Tensor&, const Tensor&);
using OneDim = Tensor(const Tensor&, int64_t, bool);
using Pair = std::tuple<Tensor, Tensor>(const Tensor&, int64_t, bool);

// Null for other ops. In place or not: one entry.
const c10::KernelFunction* find_structured(const graph::OpInfo& op) {
  static const std::unordered_map<std::string_view, c10::KernelFunction> table = {
      {"mm", shape_of(&at::meta::mm)},
      {"bmm", shape_of(&at::meta::bmm)},
      {"addmm", shape_of(&at::meta::addmm)},
      {"addmv", shape_of(&at::meta::addmv)},
      {"baddbmm", shape_of(&at::meta::baddbmm)},
      {"sum.dim_IntList", shape_of(&at::meta::sum)},
      {"mean.dim", shape_of(&at::meta::mean)},
      {"prod.dim_int", shape_of(&at::meta::prod)},
      {"amax", shape_of(&at::meta::amax)},
      {"amin", shape_of(&at::meta::amin)},
      {"any.dim", shape_of(static_cast<OneDim*>(&at::meta::any))},
      {"all.dim", shape_of(static_cast<OneDim*>(&at::meta::all))},
      {"argmax", shape_of(&at::meta::argmax)},
      {"argmin", shape_of(&at::meta::argmin)},
      {"max.dim", shape_of(static_cast<Pair*>(&at::meta::max))},
      {"min.dim", shape_of(static_cast<Pair*>(&at::meta::min))},
      {"linalg_vector_norm", shape_of(&at::meta::linalg_vector_norm)},
      {"cumsum", shape_of(&at::meta::cumsum)},
      {"cumprod", shape_of(&at::meta::cumprod)},
      {"sort.stable", shape_of(&at::meta::sort)},
      {"topk", shape_of(&at::meta::topk)},
      {"tril", shape_of(&at::meta::tril)},
      {"triu", shape_of(&at::meta::triu)},
      {"_softmax", shape_of(&at::meta::_softmax)},
      {"_softmax_backward_data", shape_of(&at::meta::_softmax_backward_data)},
      {"_log_softmax", shape_of(&at::meta::_log_softmax)},
      {"_log_softmax_backward_data", shape_of(&at::meta::_log_softmax_backward_data)},
      {"nll_loss_forward", shape_of(&at::meta::nll_loss_forward)},
      {"nll_loss_backward", shape_of(&at::meta::nll_loss_backward)},
      {"mse_loss", shape_of(&at::meta::mse_loss)},
      {"smooth_l1_loss", shape_of(&at::meta::smooth_l1_loss)},
      {"avg_pool2d", shape_of(&at::meta::avg_pool2d)},
      {"avg_pool2d_backward", shape_of(&at::meta::avg_pool2d_backward)},
      {"max_pool2d_with_indices", shape_of(&at::meta::max_pool2d_with_indices)},
      {"max_pool2d_with_indices_backward", shape_of(&at::meta::max_pool2d_with_indices_backward)},
      {"upsample_nearest2d", shape_of(&at::meta::upsample_nearest2d)},
      {"upsample_nearest2d_backward", shape_of(&at::meta::upsample_nearest2d_backward)},
      {"upsample_bilinear2d", shape_of(&at::meta::upsample_bilinear2d)},
      {"upsample_bilinear2d_backward", shape_of(&at::meta::upsample_bilinear2d_backward)},
      {"cat", shape_of(&at::meta::cat)},
      {"gather", shape_of(&at::meta::gather)},
      {"index.Tensor", shape_of(&at::meta::index)},
      {"index_add", shape_of(&at::meta::index_add)},
      {"index_copy", shape_of(&at::meta::index_copy)},
      {"scatter.src", shape_of<Tensor, const Tensor&, int64_t, const Tensor&, const Tensor&>(&at::meta::scatter)},
      {"scatter.value", shape_of<Tensor, const Tensor&, int64_t, const Tensor&, const at::Scalar&>(&at::meta::scatter)},
      {"scatter_add", shape_of(&at::meta::scatter_add)},
      {"add.Tensor", shape_of(&at::meta::add)},
      {"sub.Tensor", shape_of(&at::meta::sub)},
      {"mul.Tensor", shape_of(&at::meta::mul)},
      {"div.Tensor", shape_of<Tensor, const Tensor&, const Tensor&>(&at::meta::div)},
      {"maximum", shape_of(&at::meta::maximum)},
      {"minimum", shape_of(&at::meta::minimum)},
      {"addcmul", shape_of(&at::meta::addcmul)},
      {"addcdiv", shape_of(&at::meta::addcdiv)},
      {"gelu", shape_of(&at::meta::gelu)},
      {"gelu_backward", shape_of(&at::meta::gelu_backward)},
      {"glu", shape_of(&at::meta::glu)},
      {"silu", shape_of(static_cast<One*>(&at::meta::silu))},
      {"silu_backward", shape_of(static_cast<Two*>(&at::meta::silu_backward))},
      {"sigmoid", shape_of(static_cast<One*>(&at::meta::sigmoid))},
      {"sigmoid_backward", shape_of(static_cast<Two*>(&at::meta::sigmoid_backward))},
      {"tanh", shape_of(static_cast<One*>(&at::meta::tanh))},
      {"tanh_backward", shape_of(static_cast<Two*>(&at::meta::tanh_backward))},
      {"leaky_relu", shape_of(&at::meta::leaky_relu)},
      {"leaky_relu_backward", shape_of(&at::meta::leaky_relu_backward)},
      {"threshold_backward", shape_of(&at::meta::threshold_backward)},
      {"exp", shape_of(static_cast<One*>(&at::meta::exp))},
      {"neg", shape_of(static_cast<One*>(&at::meta::neg))},
      {"sqrt", shape_of(static_cast<One*>(&at::meta::sqrt))},
      {"rsqrt", shape_of(static_cast<One*>(&at::meta::rsqrt))},
      {"pow.Tensor_Scalar", shape_of<Tensor, const Tensor&, const at::Scalar&>(&at::meta::pow)},
      {"eq.Tensor", shape_of(static_cast<Two*>(&at::meta::eq))},
      {"ne.Tensor", shape_of(static_cast<Two*>(&at::meta::ne))},
      {"lt.Tensor", shape_of(static_cast<Two*>(&at::meta::lt))},
      {"le.Tensor", shape_of(static_cast<Two*>(&at::meta::le))},
      {"gt.Tensor", shape_of(static_cast<Two*>(&at::meta::gt))},
      {"ge.Tensor", shape_of(static_cast<Two*>(&at::meta::ge))},
  };
  thread_local std::unordered_map<const graph::OpInfo*, const c10::KernelFunction*> known;
  const auto [place, is_new] = known.try_emplace(&op, nullptr);
  if (!is_new || !op.name.starts_with("aten::")) return place->second;
  std::string name = op.name.substr(6);
  if (const size_t end = std::min(name.find('.'), name.size()); end > 0 && name[end - 1] == '_') name.erase(end - 1, 1);
  if (const auto row = table.find(name); row != table.end()) place->second = &row->second;
  return place->second;
}

class SilentHandler final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { warned = true; }
  bool warned = false;
};

Tensor as_meta(const Tensor& tensor) {
  if (!tensor.defined() || tensor.unsafeGetTensorImpl()->is_wrapped_number()) return tensor;
  return at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
}

c10::IValue with_meta(const c10::IValue& value, ArgKind kind) {
  if (kind == ArgKind::kTensor) return value.isTensor() ? c10::IValue(as_meta(value.toTensor())) : value;
  if (value.isNone()) return value;
  if (kind == ArgKind::kTensorList) {
    c10::List<Tensor> list;
    for (const auto& item : value.toListRef()) list.push_back(as_meta(item.toTensor()));
    return list;
  }
  if (kind == ArgKind::kOptionalTensorList) {
    c10::List<std::optional<Tensor>> list;
    for (const auto& item : value.toListRef())
      list.push_back(item.isTensor() ? std::optional<Tensor>(as_meta(item.toTensor())) : std::nullopt);
    return list;
  }
  return value;
}

// What a shape function makes of these; nothing where it refuses them, or warns.
std::optional<ResultLayouts> call_shape(const graph::OpInfo& op, const c10::KernelFunction& shape, torch::jit::Stack stack) {
  SilentHandler handler;
  {
    const c10::WarningUtils::WarningHandlerGuard silence(&handler);
    const c10::impl::ForceDispatchKeyGuard kernels_only(
        c10::default_included_set, c10::default_excluded_set | c10::autograd_dispatch_keyset_with_ADInplaceOrView);
    try {
      shape.callBoxed(op.handle, c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
    } catch (...) {
      return std::nullopt;  // the op itself will say so
    }
  }
  if (handler.warned) return std::nullopt;
  ResultLayouts layouts;
  for (const auto& result : stack) {
    if (!result.isTensor() || !result.toTensor().is_meta()) return std::nullopt;
    auto layout = graph::layout_of(result.toTensor());
    if (layout.offset != 0) return std::nullopt;
    layout.wrapped_number = false;
    layout.storage_group = static_cast<int>(layouts.size());
    layouts.push_back(std::move(layout));
  }
  return layouts;
}

torch::jit::Stack without_values(const graph::OpInfo& op, at::ArrayRef<c10::IValue> args) {
  torch::jit::Stack stack;
  for (size_t a = 0; a < args.size(); ++a) stack.push_back(with_meta(args[a], op.args[a].kind));
  return stack;
}

std::optional<Layout> only_result(std::optional<ResultLayouts> results) {
  if (!results || results->size() != 1) return std::nullopt;
  return std::move(results->front());
}

}  // namespace

bool is_structured(const graph::OpInfo& op) { return find_structured(op) != nullptr; }

std::optional<ResultLayouts> structured_results(const graph::OpInfo& op, at::ArrayRef<c10::IValue> args) {
  const auto* shape = find_structured(op);
  return shape ? call_shape(op, *shape, without_values(op, args)) : std::nullopt;
}

std::optional<Layout> indexed_layout(const graph::OpInfo& op, at::ArrayRef<c10::IValue> self_and_indices) {
  static const auto shape = shape_of(&at::meta::index);
  return only_result(call_shape(op, shape, without_values(op, self_and_indices)));
}

// Pointwise kernels walk their tensors the same way (TensorIterator).
std::optional<Layout> pointwise_layout(const graph::OpInfo& op, at::ArrayRef<Layout> inputs) {
  static const c10::KernelFunction one = shape_of(static_cast<One*>(&at::meta::neg)),
                                   two = shape_of(static_cast<Two*>(&at::meta::maximum)),
                                   three = shape_of(&at::meta::addcmul);
  torch::jit::Stack stack;
  for (const auto& input : inputs)
    if (input.is_defined()) stack.emplace_back(at::detail::empty_strided_meta(input.sizes, input.strides, at::kFloat));
  switch (stack.size()) {
    case 1: return only_result(call_shape(op, one, std::move(stack)));
    case 2: return only_result(call_shape(op, two, std::move(stack)));
    case 3: stack.emplace_back(1); return only_result(call_shape(op, three, std::move(stack)));
    default: return std::nullopt;
  }
}

}  // namespace lockstep::dynamic
