#include "dynamic/shape_inference.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <string_view>
#include <unordered_set>

namespace lockstep::dynamic {

namespace {

using graph::ArgKind;
using graph::Layout;
using graph::Signature;

// Structured kernels (native_functions.yaml): one function says what comes out, for the CPU and for meta tensors. Those
// that are no elementwise ops, or are often met with broadcast or strided operands.
bool is_structured(const graph::OpInfo& op) {
  static const std::unordered_set<std::string_view> names = {
      "add", "sub", "mul", "div", "neg", "exp", "log", "sqrt", "rsqrt", "reciprocal", "tanh", "sigmoid", "sin", "cos",
      "erf", "pow", "maximum", "minimum", "clamp", "clamp_min", "clamp_max", "eq", "ne", "lt", "le", "gt", "ge",
      "addcmul", "addcdiv", "lerp", "atan2", "fmod", "remainder",
      "gelu", "gelu_backward", "silu", "silu_backward", "elu", "elu_backward", "leaky_relu", "leaky_relu_backward",
      "softplus", "softplus_backward", "threshold", "threshold_backward", "sigmoid_backward", "tanh_backward",
      "hardsigmoid", "hardsigmoid_backward", "mish",
      "mm", "addmm", "bmm", "baddbmm", "addmv",
      "sum", "mean", "amax", "amin", "argmax", "argmin", "cumsum", "all", "any",
      "_softmax", "_softmax_backward_data", "_log_softmax", "_log_softmax_backward_data",
      "index", "index_add", "gather", "scatter", "scatter_add", "cat", "tril", "triu", "topk", "sort",
      "mse_loss", "smooth_l1_loss", "nll_loss_forward", "nll_loss_backward",
      "avg_pool2d", "avg_pool2d_backward", "max_pool2d_with_indices", "max_pool2d_with_indices_backward",
      "upsample_nearest2d", "upsample_nearest2d_backward", "upsample_bilinear2d", "upsample_bilinear2d_backward"};
  std::string_view name = op.base;
  if (!name.starts_with("aten::")) return false;
  name.remove_prefix(6);
  if (name.ends_with('_')) name.remove_suffix(1);
  return names.contains(name);
}

// The same op on tensors of the same kinds: only sizes, strides and scalars are others.
bool is_alike(const Signature& learned, const Signature& known) {
  if (known.op != learned.op || known.special || known.warns || known.resizes || known.aliases_input ||
      known.words[0] != learned.words[0] || known.inputs.size() != learned.inputs.size())
    return false;
  for (size_t i = 0; i < known.inputs.size(); ++i) {
    const auto &a = known.inputs[i], &b = learned.inputs[i];
    if (a.dtype != b.dtype || a.wrapped_number != b.wrapped_number || a.sizes.size() != b.sizes.size() || b.conj || b.neg)
      return false;
  }
  for (size_t i = 0; i < known.outputs.size(); ++i) {  // each with memory of its own
    const auto& output = known.outputs[i];
    if (!output.is_defined() || output.storage_group != static_cast<int>(i) || output.offset != 0 || output.conj || output.neg)
      return false;
  }
  return true;
}

bool has_standard_strides(const Layout& layout) {
  int64_t stride = 1;
  for (size_t dim = layout.sizes.size(); dim-- > 0; stride *= std::max<int64_t>(layout.sizes[dim], 1))
    if (layout.strides[dim] != stride) return false;
  return true;
}

// Scalars may decide on the type of the result where that is not floating, constants on its order.
bool depends_on_values(const Signature& known, at::ArrayRef<c10::IValue> args, const std::vector<bool>& varies) {
  const auto& op = *known.op;
  c10::ScalarType target = c10::ScalarType::Undefined;
  if (!known.outputs.empty()) target = known.outputs[0].dtype;
  for (size_t a = 0, operand = 0; a < args.size(); ++a) {
    if (op.args[a].kind == ArgKind::kTensor) {
      if (op.args[a].is_written) target = known.inputs[operand].dtype;
      ++operand;
    } else if (op.args[a].kind == ArgKind::kTensorList || op.args[a].kind == ArgKind::kOptionalTensorList) {
      return true;
    }
  }
  for (size_t a = 0; a < args.size(); ++a) {
    if (op.args[a].kind == ArgKind::kConstant && varies[a]) return true;
    if (op.args[a].kind != ArgKind::kScalar || args[a].isNone()) continue;
    if (args[a].isComplexDouble() || (!c10::isFloatingType(target) && target != c10::ScalarType::Bool)) return true;
    if (target == c10::ScalarType::Bool && known.outputs.empty()) return true;
  }
  return false;
}

// Elementwise, all tensors of one size and dense: so is the result.
bool infer_elementwise(Signature& learned, const Signature& known, at::ArrayRef<c10::IValue> args,
                       const std::vector<bool>& varies) {
  if (!learned.op->is_pointwise || known.outputs.size() > 1 || depends_on_values(known, args, varies)) return false;
  const Layout* space = nullptr;
  for (const auto& input : learned.inputs) {
    if (!input.is_defined() || input.wrapped_number || input.sizes.empty()) continue;
    if (!has_standard_strides(input) || (space && input.sizes != space->sizes)) return false;
    space = &input;
  }
  if (!space || space->numel() == 0) return false;
  for (auto output : known.outputs) {
    if (output.sizes.size() != space->sizes.size()) return false;
    output.sizes = space->sizes;
    output.strides = space->strides;
    output.storage_bytes = space->numel() * static_cast<int64_t>(c10::elementSize(output.dtype));
    learned.outputs.push_back(std::move(output));
  }
  return true;
}

class SilentHandler final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { warned = true; }
  bool warned = false;
};

at::Tensor as_meta(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.unsafeGetTensorImpl()->is_wrapped_number()) return tensor;
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kMeta).requires_grad(false));
}

c10::IValue with_meta(const c10::IValue& value, ArgKind kind) {
  if (kind == ArgKind::kTensor) return value.isTensor() ? c10::IValue(as_meta(value.toTensor())) : value;
  if (value.isNone()) return value;
  if (kind == ArgKind::kTensorList) {
    c10::List<at::Tensor> list;
    for (const auto& item : value.toListRef()) list.push_back(as_meta(item.toTensor()));
    return list;
  }
  if (kind == ArgKind::kOptionalTensorList) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& item : value.toListRef())
      list.push_back(item.isTensor() ? std::optional<at::Tensor>(as_meta(item.toTensor())) : std::nullopt);
    return list;
  }
  return value;
}

// Exactly what the CPU's kernel asks first.
bool infer_structured(Signature& learned, const Signature& known, at::ArrayRef<c10::IValue> args) {
  const auto& op = *learned.op;
  if (!is_structured(op)) return false;
  torch::jit::Stack stack;
  SilentHandler handler;
  {
    const c10::WarningUtils::WarningHandlerGuard silence(&handler);
    const c10::impl::ForceDispatchKeyGuard kernels_only(
        c10::default_included_set, c10::default_excluded_set | c10::autograd_dispatch_keyset_with_ADInplaceOrView);
    try {
      for (size_t a = 0; a < args.size(); ++a) stack.push_back(with_meta(args[a], op.args[a].kind));
      op.handle.callBoxed(&stack);
    } catch (const c10::Error&) {
      return false;  // the op itself will say so
    }
  }
  if (handler.warned || stack.size() != op.returns.size()) return false;
  for (size_t r = 0; r < op.returns.size(); ++r) {
    if (op.returns[r].alias_arg >= 0) continue;
    if (op.returns[r].is_list || !stack[r].isTensor()) return false;
    const auto& result = stack[r].toTensor();
    const size_t i = learned.outputs.size();
    if (!result.defined() || !result.is_meta() || i == known.outputs.size()) return false;
    auto layout = graph::layout_of(result);
    if (layout.dtype != known.outputs[i].dtype || layout.offset != 0 || layout.conj || layout.neg) return false;
    layout.storage_group = static_cast<int>(i);
    layout.wrapped_number = false;
    learned.outputs.push_back(std::move(layout));
  }
  return learned.outputs.size() == known.outputs.size();
}

}  // namespace

bool infer_results(Signature& learned, const Signature& known, at::ArrayRef<c10::IValue> args,
                   const std::vector<bool>& varies) {
  if (learned.op->draws || learned.op->returns_out || !known.list_sizes.empty() || !is_alike(learned, known)) return false;
  if (!infer_elementwise(learned, known, args, varies)) {
    learned.outputs.clear();
    if (!infer_structured(learned, known, args)) return false;
  }
  learned.version_bumps = known.version_bumps;
  learned.output_versions = known.output_versions;
  return true;
}

}  // namespace lockstep::dynamic
