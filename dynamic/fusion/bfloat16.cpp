// Checked on every bit pattern by tests/python/test_bfloat16.py.
#include "dynamic/fusion/bfloat16.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "dynamic/fusion/op_body.h"

namespace lockstep::dynamic {

namespace {

using Names = std::unordered_set<std::string_view>;

// Not here: erf, whose kernel loses a factor near zero; logit and losses, which round at
// each step; nan_to_num, whose largest number is another; totals, which are float32 or float64 here.
const Names& computed_once() {
  static const Names names = {
      "add", "sub", "rsub", "mul", "div", "maximum", "minimum", "lerp", "addcmul", "addcdiv", "pow", "neg", "abs", "exp",
      "expm1", "log", "log1p", "log2", "sqrt", "rsqrt", "reciprocal", "tanh", "sigmoid", "sin", "cos", "floor", "ceil",
      "round", "trunc", "frac", "sign", "isnan", "where", "masked_fill", "clamp", "clamp_min", "clamp_max", "eq", "ne",
      "lt", "le", "gt", "ge", "_softmax", "_safe_softmax", "_softmax_backward_data", "_log_softmax",
      "_log_softmax_backward_data", "native_layer_norm", "clone", "_to_copy", "copy", "fill", "zero", "zeros_like",
      "ones_like", "relu", "leaky_relu", "leaky_relu_backward", "_prelu_kernel", "_prelu_kernel_backward", "threshold",
      "threshold_backward", "sigmoid_backward", "tanh_backward", "silu", "silu_backward", "hardtanh", "hardtanh_backward",
      "hardsigmoid", "hardsigmoid_backward", "hardswish", "hardswish_backward", "hardshrink", "hardshrink_backward",
      "softshrink", "softshrink_backward", "elu", "celu", "elu_backward", "softplus", "softplus_backward",
      "log_sigmoid_forward", "log_sigmoid_backward", "mish", "mish_backward", "gelu", "gelu_backward"};
  return names;
}

const Names& rounding_arguments() {
  static const Names names = {
      "add", "sub", "rsub", "pow", "masked_fill", "clamp", "clamp_min", "clamp_max", "eq", "ne", "lt", "le", "gt", "ge",
      "fill", "hardtanh", "hardshrink", "hardshrink_backward", "softshrink_backward"};
  return names;
}

}  // namespace

Bfloat16Rule bfloat16_rule(const graph::OpInfo& op) {
  thread_local std::unordered_map<const graph::OpInfo*, Bfloat16Rule> known;
  const auto [place, is_new] = known.try_emplace(&op);
  if (!is_new) return place->second;
  const std::string name = name_of_row(op);
  const std::string_view base = std::string_view(name).substr(0, name.find('.'));
  Bfloat16Rule rule;
  rule.is_once = computed_once().contains(base);
  rule.rounds_arguments = rounding_arguments().contains(base);
  if (base == "mul" || base == "div") rule.unrounded_operands = 0b10;
  return place->second = rule;
}

bool has_bfloat16(const graph::Signature& signature) {
  const auto is_bfloat16 = [](const graph::Layout& layout) {
    return layout.is_defined() && layout.dtype == c10::ScalarType::BFloat16;
  };
  return std::any_of(signature.inputs.begin(), signature.inputs.end(), is_bfloat16) ||
         std::any_of(signature.outputs.begin(), signature.outputs.end(), is_bfloat16);
}

}  // namespace lockstep::dynamic
