#include "dynamic/shape_inference.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <ATen/ops/_log_softmax_meta_dispatch.h>
#include <ATen/ops/_log_softmax_backward_data_meta_dispatch.h>
#include <ATen/ops/_softmax_meta_dispatch.h>
#include <ATen/ops/_softmax_backward_data_meta_dispatch.h>
#include <ATen/ops/add_meta_dispatch.h>
#include <ATen/ops/addcdiv_meta_dispatch.h>
#include <ATen/ops/addcmul_meta_dispatch.h>
#include <ATen/ops/addmm_meta_dispatch.h>
#include <ATen/ops/baddbmm_meta_dispatch.h>
#include <ATen/ops/bmm_meta_dispatch.h>
#include <ATen/ops/cat_meta_dispatch.h>
#include <ATen/ops/div_meta_dispatch.h>
#include <ATen/ops/eq_meta_dispatch.h>
#include <ATen/ops/exp_meta_dispatch.h>
#include <ATen/ops/gather_meta_dispatch.h>
#include <ATen/ops/ge_meta_dispatch.h>
#include <ATen/ops/gelu_meta_dispatch.h>
#include <ATen/ops/gelu_backward_meta_dispatch.h>
#include <ATen/ops/gt_meta_dispatch.h>
#include <ATen/ops/index_add_meta_dispatch.h>
#include <ATen/ops/index_meta_dispatch.h>
#include <ATen/ops/le_meta_dispatch.h>
#include <ATen/ops/leaky_relu_meta_dispatch.h>
#include <ATen/ops/leaky_relu_backward_meta_dispatch.h>
#include <ATen/ops/lt_meta_dispatch.h>
#include <ATen/ops/maximum_meta_dispatch.h>
#include <ATen/ops/mean_meta_dispatch.h>
#include <ATen/ops/minimum_meta_dispatch.h>
#include <ATen/ops/mm_meta_dispatch.h>
#include <ATen/ops/mul_meta_dispatch.h>
#include <ATen/ops/ne_meta_dispatch.h>
#include <ATen/ops/neg_meta_dispatch.h>
#include <ATen/ops/pow_meta_dispatch.h>
#include <ATen/ops/rsqrt_meta_dispatch.h>
#include <ATen/ops/scatter_add_meta_dispatch.h>
#include <ATen/ops/sigmoid_meta_dispatch.h>
#include <ATen/ops/sigmoid_backward_meta_dispatch.h>
#include <ATen/ops/silu_meta_dispatch.h>
#include <ATen/ops/silu_backward_meta_dispatch.h>
#include <ATen/ops/sqrt_meta_dispatch.h>
#include <ATen/ops/sub_meta_dispatch.h>
#include <ATen/ops/sum_meta_dispatch.h>
#include <ATen/ops/tanh_meta_dispatch.h>
#include <ATen/ops/tanh_backward_meta_dispatch.h>
#include <ATen/ops/threshold_backward_meta_dispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace lockstep::dynamic {

namespace {

using graph::ArgKind;
using graph::Layout;
using graph::Signature;

using at::Tensor;

// What the leading thread calls is C++ below the dispatcher: there a library may have put Python in its place.
template <class Result, class... Args>
c10::KernelFunction shape_of(Result (*function)(Args...)) {
  return c10::KernelFunction::makeFromUnboxedRuntimeFunction(function);
}

// Structured kernels (native_functions.yaml): one function says what comes out, for the CPU and for meta tensors. Null for
// other ops. In place or not: one entry.
const c10::KernelFunction* find_structured(const graph::OpInfo& op) {
  using One = Tensor(const Tensor&);
  using Two = Tensor(const Tensor&, const Tensor&);
  static const std::unordered_map<std::string_view, c10::KernelFunction> table = {
      {"mm", shape_of(&at::meta::mm)},
      {"bmm", shape_of(&at::meta::bmm)},
      {"addmm", shape_of(&at::meta::addmm)},
      {"baddbmm", shape_of(&at::meta::baddbmm)},
      {"sum.dim_IntList", shape_of(&at::meta::sum)},
      {"mean.dim", shape_of(&at::meta::mean)},
      {"_softmax", shape_of(&at::meta::_softmax)},
      {"_softmax_backward_data", shape_of(&at::meta::_softmax_backward_data)},
      {"_log_softmax", shape_of(&at::meta::_log_softmax)},
      {"_log_softmax_backward_data", shape_of(&at::meta::_log_softmax_backward_data)},
      {"cat", shape_of(&at::meta::cat)},
      {"gather", shape_of(&at::meta::gather)},
      {"index.Tensor", shape_of(&at::meta::index)},
      {"index_add", shape_of(&at::meta::index_add)},
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

using Sizes = c10::SmallVector<int64_t, 5>;

// The known op's only result with other sizes. False where that one was not dense, or of another rank.
bool add_dense_result(Signature& learned, const Signature& known, const Sizes& sizes) {
  Layout output = known.outputs[0];
  if (sizes.size() != output.sizes.size() || !has_standard_strides(output)) return false;
  output.sizes = sizes;
  int64_t stride = 1;
  for (size_t dim = sizes.size(); dim-- > 0; stride *= std::max<int64_t>(sizes[dim], 1)) output.strides[dim] = stride;
  output.storage_bytes = output.numel() * static_cast<int64_t>(c10::elementSize(output.dtype));
  learned.outputs.push_back(std::move(output));
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
  const auto& name = learned.op->base;
  const bool is_elementwise = learned.op->is_pointwise || name == "aten::_to_copy" || name == "aten::zeros_like" ||
                              name == "aten::ones_like";
  if (!is_elementwise || known.outputs.size() > 1 || depends_on_values(known, args, varies)) return false;
  const Layout* space = nullptr;
  for (const auto& input : learned.inputs) {
    if (!input.is_defined() || input.wrapped_number || input.sizes.empty()) continue;
    if (!has_standard_strides(input) || (space && input.sizes != space->sizes)) return false;
    space = &input;
  }
  if (!space || space->numel() == 0) return false;
  return known.outputs.empty() || add_dense_result(learned, known, space->sizes);
}

class SilentHandler final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { warned = true; }
  bool warned = false;
};

at::Tensor as_meta(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.unsafeGetTensorImpl()->is_wrapped_number()) return tensor;
  return at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
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

// What the shape function makes of arguments without values; undefined where it refuses them, or warns.
Tensor shape_result(const graph::OpInfo& op, const c10::KernelFunction& shape, at::ArrayRef<c10::IValue> args) {
  torch::jit::Stack stack;
  SilentHandler handler;
  {
    const c10::WarningUtils::WarningHandlerGuard silence(&handler);
    const c10::impl::ForceDispatchKeyGuard kernels_only(
        c10::default_included_set, c10::default_excluded_set | c10::autograd_dispatch_keyset_with_ADInplaceOrView);
    try {
      for (size_t a = 0; a < args.size(); ++a) stack.push_back(with_meta(args[a], op.args[a].kind));
      shape.callBoxed(op.handle, c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
    } catch (...) {
      return {};  // the op itself will say so
    }
  }
  if (handler.warned || stack.size() != 1 || !stack[0].isTensor() || !stack[0].toTensor().is_meta()) return {};
  return stack[0].toTensor();
}

// Exactly what the CPU's kernel asks first.
bool infer_structured(Signature& learned, const Signature& known, at::ArrayRef<c10::IValue> args) {
  const auto& op = *learned.op;
  const auto* shape = find_structured(op);
  if (!shape) return false;
  const auto result = shape_result(op, *shape, args);
  if (!result.defined()) return false;
  auto layout = graph::layout_of(result);
  if (op.writes)  // in place: what comes out must fit into what is written
    return known.outputs.empty() && layout.sizes == learned.inputs[0].sizes && layout.dtype == learned.inputs[0].dtype;
  if (known.outputs.size() != 1 || layout.dtype != known.outputs[0].dtype || layout.offset != 0) return false;
  layout.storage_group = 0;
  layout.wrapped_number = false;
  learned.outputs.push_back(std::move(layout));
  return true;
}

// Into the places that these indices stand for; where they are numbers, what is written keeps its size. Values must be of
// the size of what the same indices would read, or be repeated to that.
bool infer_index_put(Signature& learned, const Signature& known, at::ArrayRef<c10::IValue> args) {
  const auto& op = *learned.op;
  if (op.base != "aten::_index_put_impl_" && op.base != "aten::index_put_") return false;
  static const auto shape = shape_of(&at::meta::index);
  if (!known.outputs.empty() || learned.inputs.size() < 3 || learned.inputs[0].dtype != learned.inputs.back().dtype) return false;
  for (size_t i = 1; i + 1 < learned.inputs.size(); ++i)
    if (learned.inputs[i].is_defined() && learned.inputs[i].dtype != c10::ScalarType::Long) return false;
  const auto read = shape_result(op, shape, args.slice(0, 2));
  return read.defined() && at::is_expandable_to(learned.inputs.back().sizes, read.sizes());
}

// ---- ops of their own: the size of a result that is dense and new

using Inputs = std::vector<Layout>;
using SizesOf = std::optional<Sizes> (*)(const Inputs& inputs, at::ArrayRef<c10::IValue> args);

std::optional<Sizes> sizes_in(const c10::IValue& value) {
  if (!value.isIntList()) return std::nullopt;
  const auto sizes = value.toIntVector();
  return Sizes(sizes.begin(), sizes.end());
}
// Counted from the end where it is negative; nothing where there is no such dim.
std::optional<int64_t> dim_in(const c10::IValue& value, size_t count) {
  const auto rank = static_cast<int64_t>(count), dim = value.toInt() < 0 ? value.toInt() + rank : value.toInt();
  return dim < 0 || dim >= rank ? std::nullopt : std::optional(dim);
}
std::optional<Sizes> as_second_argument(const Inputs& inputs, at::ArrayRef<c10::IValue> args) { return sizes_in(args[1]); }

std::optional<Sizes> of_embedding(const Inputs& inputs, at::ArrayRef<c10::IValue> args) {
  if (inputs[0].sizes.size() != 2) return std::nullopt;
  Sizes sizes = inputs[1].sizes;
  sizes.push_back(inputs[0].sizes[1]);
  return sizes;
}
std::optional<Sizes> of_embedding_backward(const Inputs& inputs, at::ArrayRef<c10::IValue> args) {
  if (!args[2].isInt() || inputs[0].sizes.empty()) return std::nullopt;
  return Sizes{args[2].toInt(), inputs[0].sizes.back()};
}
std::optional<Sizes> of_index_select(const Inputs& inputs, at::ArrayRef<c10::IValue> args) {
  Sizes sizes = inputs[0].sizes;
  const auto dim = dim_in(args[1], sizes.size());
  if (!dim) return std::nullopt;
  sizes[*dim] = inputs[1].numel();
  return sizes;
}
std::optional<Sizes> of_stack(const Inputs& inputs, at::ArrayRef<c10::IValue> args) {
  for (const auto& input : inputs)
    if (input.sizes != inputs[0].sizes || !has_standard_strides(input)) return std::nullopt;
  Sizes sizes = inputs[0].sizes;
  const auto dim = dim_in(args[1], sizes.size() + 1);
  if (!dim) return std::nullopt;
  sizes.insert(sizes.begin() + *dim, static_cast<int64_t>(inputs.size()));
  return sizes;
}

std::optional<Sizes> of_one_value(const Inputs& inputs, at::ArrayRef<c10::IValue> args) {
  if (inputs[0].numel() == 0) return std::nullopt;  // the largest of nothing: it will raise
  return Sizes{};
}

struct Rule {
  SizesOf sizes;
  std::optional<size_t> same_from = std::nullopt;  // arguments from here on may say another type where they vary
};

const Rule* find_rule(const graph::OpInfo& op) {
  static const std::unordered_map<std::string_view, Rule> table = {
      {"aten::embedding", {&of_embedding}},
      {"aten::embedding_dense_backward", {&of_embedding_backward}},
      {"aten::index_select", {&of_index_select}},
      {"aten::stack", {&of_stack}},
      {"aten::slice_backward", {&as_second_argument}},
      {"aten::select_backward", {&as_second_argument}},
      {"aten::new_zeros", {&as_second_argument, 2}},
      {"aten::sum", {&of_one_value, 1}},
      {"aten::mean", {&of_one_value, 1}},
      {"aten::prod", {&of_one_value, 1}},
      {"aten::max", {&of_one_value}},
      {"aten::min", {&of_one_value}},
      {"aten::any", {&of_one_value}},
      {"aten::all", {&of_one_value}},
  };
  const auto row = table.find(op.name);
  return row == table.end() ? nullptr : &row->second;
}

bool infer_by_rule(Signature& learned, const Signature& known, at::ArrayRef<c10::IValue> args,
                   const std::vector<bool>& varies) {
  const auto* rule = find_rule(*learned.op);
  if (!rule || known.outputs.size() != 1) return false;
  if (rule->same_from && std::find(varies.begin() + *rule->same_from, varies.end(), true) != varies.end()) return false;
  const auto sizes = rule->sizes(learned.inputs, args);
  return sizes && add_dense_result(learned, known, *sizes);
}

// Kernels refuse to write such a tensor, or warn of it: where it was asked, not later. In place, it is the first argument.
bool writes_with_overlap(const Signature& learned) {
  return learned.op->writes && !learned.inputs[0].is_without_overlap();
}

// Fills one tensor with random numbers: nothing comes out.
bool only_draws(const Signature& known) {
  return known.op->writes && known.op->draws && known.outputs.empty() && known.inputs.size() == 1;
}

}  // namespace

bool infer_results(Signature& learned, const Signature& known, at::ArrayRef<c10::IValue> args,
                   const std::vector<bool>& varies) {
  if (learned.op->returns_out || !known.list_sizes.empty() || !is_alike(learned, known) ||
      writes_with_overlap(learned))
    return false;
  if (learned.op->draws ? !only_draws(known)
                        : !infer_elementwise(learned, known, args, varies) &&
                              !infer_by_rule(learned, known, args, varies) && !infer_index_put(learned, known, args) &&
                              !infer_structured(learned, known, args))
    return false;
  learned.version_bumps = known.version_bumps;
  learned.output_versions = known.output_versions;
  return true;
}

}  // namespace lockstep::dynamic
