#include "dynamic/shapes/shape_inference.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "dynamic/shapes/shape_rules.h"
#include "dynamic/shapes/structured_shapes.h"

namespace lockstep::dynamic {

namespace {

using graph::ArgKind;
using graph::Layout;
using graph::Signature;

// Tensors that come in a list, and no others: there may be more or fewer of them.
bool takes_any_number(const graph::OpInfo& op) { return op.base == "aten::cat" || op.base == "aten::stack"; }

// The same op on tensors of the same kinds, and nothing special about them.
bool is_alike(const Signature& learned, const Signature& known) {
  if (known.op != learned.op || known.special || known.warns || known.resizes || known.aliases_input ||
      known.words[0] != learned.words[0])
    return false;
  if (known.inputs.size() != learned.inputs.size()) {
    const auto is_like_first = [&](const Layout& input) { return is_same_kind(input, known.inputs[0]); };
    if (!takes_any_number(*known.op) || known.inputs.empty() ||
        !std::all_of(known.inputs.begin(), known.inputs.end(), is_like_first) ||
        !std::all_of(learned.inputs.begin(), learned.inputs.end(), is_like_first))
      return false;
  } else if (!are_same_kind(learned, known)) {
    return false;
  }
  for (const auto* inputs : {&known.inputs, &learned.inputs})
    if (std::any_of(inputs->begin(), inputs->end(), [](const Layout& input) { return input.conj || input.neg; })) return false;
  int group = 0;
  for (const auto& output : known.outputs) {  // each with memory of its own
    if (!output.is_defined()) continue;
    if (output.storage_group != group++ || output.offset != 0 || output.conj || output.neg) return false;
  }
  return true;
}

// Numbers may decide on the type of the result, or be refused because of it; constants on its order.
bool depends_on_values(const Signature& known, at::ArrayRef<c10::IValue> args, const std::vector<bool>& varies) {
  const auto& op = *known.op;
  const bool is_written = known.outputs.empty();
  c10::ScalarType target = is_written ? c10::ScalarType::Undefined : known.outputs[0].dtype;
  bool is_floating = false;  // some tensor: then no real number decides
  for (size_t a = 0, operand = 0; a < args.size(); ++a) {
    if (op.args[a].kind == ArgKind::kTensor) {
      const auto& input = known.inputs[operand++];
      if (op.args[a].is_written) target = input.dtype;
      is_floating |= input.is_defined() && !input.wrapped_number && c10::isFloatingType(input.dtype);
    } else if (op.args[a].kind == ArgKind::kTensorList || op.args[a].kind == ArgKind::kOptionalTensorList) {
      return true;
    }
  }
  for (size_t a = 0; a < args.size(); ++a) {
    if (op.args[a].kind == ArgKind::kConstant && varies[a]) return true;
    if (op.args[a].kind != ArgKind::kScalar || args[a].isNone()) continue;
    if (args[a].isComplexDouble()) return true;
    if (target == c10::ScalarType::Bool) {
      if (is_written && !args[a].isBool()) return true;
    } else if (c10::isIntegralType(target, /*includeBool=*/false)) {
      if (!args[a].isInt()) return true;
    } else if (!is_written && !is_floating) {
      return true;
    }
  }
  return false;
}

// Into its first argument, which keeps its size: what else there is must be of that size, or be repeated to it.
bool infer_written(const Signature& learned, const Signature& known) {
  if (!learned.op->writes || !known.outputs.empty() || !learned.op->args[0].is_written) return false;
  for (size_t i = 1; i < learned.inputs.size(); ++i) {
    const auto& input = learned.inputs[i];
    if (input.is_defined() && !at::is_expandable_to(input.sizes, learned.inputs[0].sizes)) return false;
  }
  return true;
}

using Order = std::vector<size_t>;

// As a pointwise kernel lays out its result that takes the operands in this order, and perhaps a number as a tensor.
std::optional<Layout> layout_in_order(const Signature& signature, const Order& order, bool takes_number = false) {
  std::vector<Layout> operands;
  for (const size_t i : order)
    if (signature.inputs[i].is_defined()) operands.push_back(signature.inputs[i]);
  if (takes_number && !operands.empty()) {
    operands.push_back(operands[0]);
    operands.back().sizes.clear();
    operands.back().strides.clear();
  }
  return pointwise_layout(*signature.op, operands);
}

// Of ops without a shape function, whose operands lie in another order than the standard one. The kernel is known to have
// walked its tensors as pointwise kernels do where its result lies as theirs would, which says nothing where others have
// theirs in that order, too. All ways to take the operands that explain what is known have to agree; `where` takes them as
// they come.
std::optional<Layout> pointwise_result(const Signature& learned, const Signature& known) {
  Order order(known.inputs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const bool is_order_known = known.op->base == "aten::where";
  std::optional<Layout> result;
  do {
    for (const bool takes_number : {false, order.size() < 3}) {
      const auto explained = layout_in_order(known, order, takes_number);
      if (!explained || explained->sizes != known.outputs[0].sizes) return std::nullopt;
      if (explained->strides != known.outputs[0].strides) continue;
      const auto layout = layout_in_order(learned, order, takes_number);
      if (!layout || (result && result->strides != layout->strides)) return std::nullopt;
      result = layout;
    }
  } while (!is_order_known && std::next_permutation(order.begin(), order.end()));
  if (!is_order_known && result && !has_standard_strides(*result) && has_standard_strides(known.outputs[0])) return std::nullopt;
  return result;
}

// Makes a copy in the standard order, as large as the map and the mask are together.
bool infer_masked_fill(Signature& learned, const Signature& known) {
  const auto &map = learned.inputs[0].sizes, &mask = learned.inputs[1].sizes;
  if (learned.inputs.size() > 2 && !learned.inputs[2].sizes.empty()) return false;  // it will raise
  const bool is_wider = at::is_expandable_to(map, mask);
  if (learned.inputs[0].numel() == 0 || (!is_wider && !at::is_expandable_to(mask, map))) return false;
  return add_dense_result(learned, known.outputs[0], is_wider ? mask : map);
}

// Where all are dense and of one size, so is the result.
bool infer_elementwise(Signature& learned, const Signature& known, at::ArrayRef<c10::IValue> args,
                       const std::vector<bool>& varies) {
  const auto& op = *learned.op;
  const auto& name = op.base;
  const bool is_elementwise = op.is_pointwise || name == "aten::_to_copy" || name == "aten::zeros_like" ||
                              name == "aten::ones_like" || name == "aten::copy_" || name == "aten::fill_" ||
                              name == "aten::masked_fill_" || name == "aten::masked_fill" || name == "aten::zero_" ||
                              name == "aten::threshold_";
  if (!is_elementwise || keeps_all_strides(op) || known.outputs.size() > 1 || depends_on_values(known, args, varies)) return false;
  if (known.outputs.empty()) return infer_written(learned, known);
  if (name == "aten::masked_fill") return infer_masked_fill(learned, known);
  const Layout* space = nullptr;
  bool is_plain = true;
  for (const auto& input : learned.inputs) {
    if (!input.is_defined() || input.wrapped_number || input.sizes.empty()) continue;
    is_plain &= has_standard_strides(input) && (!space || input.sizes == space->sizes);
    space = &input;
  }
  if (!space || space->numel() == 0) return false;
  if (is_plain) return add_dense_result(learned, known.outputs[0], space->sizes);
  if (!op.is_pointwise || is_structured(op)) return false;  // a shape function knows better
  const auto layout = pointwise_result(learned, known);
  return layout && layout->numel() > 0 && add_dense_result(learned, known.outputs[0], layout->sizes, layout->strides);
}

// What is added to a product must fit; shape functions leave that to the kernels.
bool is_addend_fitting(const Signature& learned, const Layout& result) {
  const auto& base = learned.op->base;
  const bool adds = base == "aten::addmm" || base == "aten::addmv" || base == "aten::baddbmm" || base == "aten::addmm_" ||
                    base == "aten::addmv_" || base == "aten::baddbmm_";
  return !adds || at::is_expandable_to(learned.inputs[0].sizes, result.sizes);
}

// Exactly what the CPU's kernel asks first.
bool infer_structured(Signature& learned, const Signature& known, at::ArrayRef<c10::IValue> args) {
  auto results = structured_results(*learned.op, args);
  if (!results || !is_addend_fitting(learned, results->front())) return false;
  if (learned.op->writes) {  // in place: what comes out must fit into what is written
    const auto &only = results->front(), &written = learned.inputs[0];
    return results->size() == 1 && known.outputs.empty() && only.sizes == written.sizes && only.dtype == written.dtype;
  }
  if (results->size() != known.outputs.size()) return false;
  for (size_t i = 0; i < results->size(); ++i)
    if ((*results)[i].dtype != known.outputs[i].dtype) return false;
  learned.outputs.assign(results->begin(), results->end());
  return true;
}

// Into the places that these indices stand for; what is written keeps its size. Where indices are numbers, values must be
// of the size of what the same indices would read, or be repeated to that.
bool fits_where_put(const Signature& learned, at::ArrayRef<c10::IValue> args) {
  if (learned.inputs.size() < 3 || learned.inputs[0].dtype != learned.inputs.back().dtype) return false;
  if (puts_number_by_mask(args)) return true;
  for (size_t i = 1; i + 1 < learned.inputs.size(); ++i)
    if (learned.inputs[i].is_defined() && learned.inputs[i].dtype != c10::ScalarType::Long) return false;
  const auto read = indexed_layout(*learned.op, args.slice(0, 2));
  return read && at::is_expandable_to(learned.inputs.back().sizes, read->sizes);
}

bool infer_index_put(Signature& learned, const Signature& known, at::ArrayRef<c10::IValue> args) {
  const auto& base = learned.op->base;
  const bool is_copy = base == "aten::index_put";
  if ((!is_copy && base != "aten::_index_put_impl_" && base != "aten::index_put_") || known.outputs.size() != is_copy ||
      !fits_where_put(learned, args))
    return false;
  const auto& self = learned.inputs[0];
  return !is_copy || (has_standard_strides(self) && self.numel() > 0 && add_dense_result(learned, known.outputs[0], self.sizes));
}

// Kernels refuse to write such a tensor, or warn of it: where it was asked, not later. In place, it is the first argument.
bool writes_with_overlap(const Signature& learned) {
  return learned.op->writes && !learned.inputs.empty() && !learned.inputs[0].is_without_overlap();
}

// Samplers refuse some numbers, and must do so where they were asked: numbers not met there before are looked at here,
// but for probabilities, which the session looks at.
bool takes_numbers(const Signature& known, at::ArrayRef<c10::IValue> args, const std::vector<bool>& varies) {
  const auto& base = known.op->base;
  if (known.op->value_check == graph::ValueCheck::kProbability) return true;
  const auto number = [&](size_t a) { return args[a].isDouble() ? args[a].toDouble() : std::numeric_limits<double>::quiet_NaN(); };
  if (base == "aten::normal_" && number(2) >= 0) return true;
  if (base == "aten::uniform_" && number(1) <= number(2) && -1e30 < number(1) && number(2) < 1e30)
    if (const auto dtype = known.inputs[0].dtype; dtype == c10::ScalarType::Float || dtype == c10::ScalarType::Double) return true;
  for (size_t a = 0; a < args.size(); ++a)
    if (varies[a] && !args[a].isIntList()) return false;
  return true;
}

// Fills one tensor with random numbers: nothing comes out.
bool only_draws(const Signature& known) {
  return known.op->writes && known.outputs.empty() && known.inputs.size() == 1;
}

namespace {

// Whether an argument says that the results lie in another order of dims than the standard one.
bool asks_for_order(const graph::OpInfo& op, at::ArrayRef<c10::IValue> args) {
  const auto& schema = op.handle.schema().arguments();
  for (size_t a = 0; a < args.size(); ++a) {
    if (schema[a].name() != "memory_format" || !args[a].isInt()) continue;
    const auto format = static_cast<at::MemoryFormat>(args[a].toInt());
    if (format != at::MemoryFormat::Preserve && format != at::MemoryFormat::Contiguous) return true;
  }
  return false;
}

}  // namespace

bool infer_outputs(Signature& learned, const Signature& known, at::ArrayRef<c10::IValue> args,
                   const std::vector<bool>& varies) {
  if (asks_for_order(*learned.op, args)) return false;
  if (learned.op->draws)
    return takes_numbers(known, args, varies) && (only_draws(known) || infer_by_rule(learned, known, args, varies));
  return infer_elementwise(learned, known, args, varies) || infer_by_rule(learned, known, args, varies) ||
         infer_index_put(learned, known, args) || infer_structured(learned, known, args);
}

}  // namespace

bool puts_number_by_mask(at::ArrayRef<c10::IValue> args) {
  if (args.size() < 3 || !args[2].isTensor() || args[2].toTensor().dim() != 0) return false;
  const auto sizes = args[0].toTensor().sizes();
  const auto indices = args[1].toListRef();
  size_t dim = 0;
  while (dim < indices.size() && !indices[dim].isTensor()) ++dim;
  if (dim + 1 != indices.size()) return false;
  const auto& mask = indices[dim].toTensor();
  return mask.scalar_type() == c10::ScalarType::Bool && mask.dim() > 0 && dim + mask.dim() <= sizes.size() &&
         mask.sizes() == sizes.slice(dim, mask.dim());
}

namespace {

// Which words an op takes its kernel alone knows.
bool has_new_words(at::ArrayRef<c10::IValue> args, const std::vector<bool>& varies) {
  for (size_t a = 0; a < std::min(args.size(), varies.size()); ++a)
    if (varies[a] && args[a].isString()) return true;
  return false;
}

}  // namespace

bool infer_results(Signature& learned, const Signature& known, at::ArrayRef<c10::IValue> args,
                   const std::vector<bool>& varies) {
  if (learned.op->returns_out || !known.list_sizes.empty() || !is_alike(learned, known) || writes_with_overlap(learned) ||
      has_new_words(args, varies) || (known.is_vacuous && !learned.is_vacuous) ||
      !infer_outputs(learned, known, args, varies))
    return false;
  learned.is_vacuous = known.is_vacuous;
  if (learned.inputs.size() == known.inputs.size()) learned.version_bumps = known.version_bumps;
  learned.output_versions = known.output_versions;
  return true;
}

}  // namespace lockstep::dynamic
