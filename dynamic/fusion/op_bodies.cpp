// The bodies of ops, each as PyTorch's kernels compute it (aten/src/ATen/native/cpu/BinaryOpsKernel.cpp, UnaryOpsKernel.cpp,
// LerpKernel.cpp, PointwiseOpsKernel.cpp), and the search for them. Activations and losses have files of their own.
#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "dynamic/fusion/bfloat16.h"
#include "dynamic/fusion/body_parts.h"

namespace lockstep::dynamic {

namespace {

using jit::Op;
using Value = OpBody::Value;

// Comparisons and truth values: operands of one type.
bool has_one_type(const Event& event) {
  const auto& inputs = event.signature->inputs;
  for (const auto& input : inputs)
    if (input.dtype != inputs[0].dtype && !input.wrapped_number) return false;
  return true;
}
// A comparison with a scalar computes in another type where the tensor holds integers and the scalar a fraction.
bool is_floating_first(const Event& event) { return c10::isFloatingType(event.signature->inputs[0].dtype); }
bool is_truth(const Event& event) { return event.signature->inputs[0].dtype == c10::ScalarType::Bool && has_one_type(event); }
bool is_number(const Event& event) { return type_of_result(event) != c10::ScalarType::Bool; }

// ---- arithmetic

void add(OpBody& b) { b.finish(b.multiply_add(b.in(1), b.scalar(2), b.in(0))); }
void add_scalar(OpBody& b) { b.finish(b.multiply_add(b.scalar(1), b.scalar(2), b.in(0))); }
void sub(OpBody& b) { b.finish(b.multiply_add(b.in(1), b.unary(Op::k_neg, b.scalar(2)), b.in(0))); }
void sub_scalar(OpBody& b) { b.finish(b.multiply_add(b.scalar(1), b.unary(Op::k_neg, b.scalar(2)), b.in(0))); }
void rsub(OpBody& b) { b.finish(b.multiply_add(b.in(0), b.unary(Op::k_neg, b.scalar(2)), b.in(1))); }
void rsub_scalar(OpBody& b) { b.finish(b.multiply_add(b.in(0), b.unary(Op::k_neg, b.scalar(2)), b.scalar(1))); }

// LerpKernel.cpp: from the end that is nearer.
void lerp_scalar(OpBody& b) {
  const double weight = b.argument(2).toScalar().toDouble();
  const Value start = b.in(0), end = b.in(1), difference = b.sub(end, start);
  b.finish(std::abs(weight) < 0.5 ? b.multiply_add(b.scalar(2), difference, start)
                                  : b.multiply_add(b.sub(b.scalar(2), b.number(1)), difference, end));
}
void lerp_tensor(OpBody& b) {
  const Value start = b.in(0), end = b.in(1), weight = b.in(2), difference = b.sub(end, start);
  const Value is_near = b.binary(Op::k_lt, b.unary(Op::k_abs, weight), b.number(0.5));
  const Value from_end = b.multiply_add(b.sub(weight, b.number(1)), difference, end);
  b.finish(b.where(is_near, b.multiply_add(weight, difference, start), from_end));
}
void addcmul(OpBody& b) { b.finish(b.multiply_add(b.mul(b.scalar(3), b.in(1)), b.in(2), b.in(0))); }
void addcdiv(OpBody& b) { b.finish(b.add(b.in(0), b.div(b.mul(b.scalar(3), b.in(1)), b.in(2)))); }

void pow_scalar(OpBody& b) {
  const double exponent = b.argument(1).toScalar().toDouble();
  const Value x = b.in(0);
  if (exponent == 0) return b.finish(b.number(1));  // of nan, too
  if (exponent == 1) return b.finish(x);
  if (exponent == 2) return b.finish(b.mul(x, x));
  if (exponent == 3) return b.finish(b.mul(b.mul(x, x), x));
  if (exponent == 0.5) return b.finish(b.unary(Op::k_sqrt, x));
  if (exponent == -0.5) return b.finish(b.unary(Op::k_rsqrt, x));
  if (exponent == -1) return b.finish(b.unary(Op::k_reciprocal, x));
  if (exponent == -2) return b.finish(b.unary(Op::k_reciprocal, b.mul(x, x)));
  b.finish(b.binary(Op::k_pow, x, b.static_scalar(1)));
}
bool has_exponent(const Event& event) { return is_number_of_result(event, 1); }
void pow_of_scalar(OpBody& b) { b.finish(b.binary(Op::k_pow, b.scalar(0), b.in(0))); }

void frac(OpBody& b) {
  const Value x = b.in(0);
  b.finish(b.sub(x, b.unary(Op::k_trunc, x)));
}
// Held between eps and 1 - eps first, where eps is given.
void logit(OpBody& b) {
  Value x = b.in(0);
  const Value one = b.number(1);
  if (!b.argument(1).isNone()) {
    const Value least = b.scalar(1), most = b.sub(one, least);
    const Value held = b.where(b.binary(Op::k_gt, x, most), most, x);
    x = b.where(b.binary(Op::k_lt, x, least), least, held);
  }
  b.finish(b.unary(Op::k_log, b.div(x, b.sub(one, x))));
}

// ---- what is left of a batch norm (splitter.h): rounds as kernels/channel_loops_body.h
void scale_channels(OpBody& b) { b.finish(b.multiply_add(b.sub(b.in(0), b.in(1)), b.in(2), b.in(3))); }

// ---- choices

void where(OpBody& b) { b.finish(b.where(b.in_own_type(0), b.in(1), b.in(2))); }
bool has_truth_first(const Event& event) {
  return event.signature->inputs[0].dtype == c10::ScalarType::Bool && is_number(event);
}
void masked_fill_scalar(OpBody& b) { b.finish(b.where(b.in_own_type(1), b.scalar(2), b.in(0))); }
void masked_fill(OpBody& b) { b.finish(b.where(b.in_own_type(1), b.in(2), b.in(0))); }
bool has_truth_second(const Event& event) {
  return event.signature->inputs[1].dtype == c10::ScalarType::Bool && is_number(event);
}
// A value of a wider type may not fit, which PyTorch finds when it runs.
bool has_truth_and_value(const Event& event) {
  const auto type = event.signature->inputs[0].dtype, its_type = event.signature->inputs[2].dtype;
  const bool fits = its_type == type || c10::isIntegralType(its_type, /*includeBool=*/true) ||
                    c10::elementSize(its_type) < c10::elementSize(type);
  return fits && has_truth_second(event);
}
// Of equals the second operand comes back, which is what is clamped: its zeros keep their signs.
void clamp(OpBody& b) {
  Value x = b.in(0);
  if (!b.argument(1).isNone()) x = b.binary(Op::k_maximum, b.scalar(1), x);
  if (!b.argument(2).isNone()) x = b.binary(Op::k_minimum, b.scalar(2), x);
  b.finish(x);
}
template <Op op>
void clamp_one_side(OpBody& b) {
  b.finish(b.binary(op, b.scalar(1), b.in(0)));
}

void clamp_by_tensors(OpBody& b) {
  Value x = b.in(0);
  if (b.is_given(1)) x = b.binary(Op::k_maximum, x, b.in(1));
  if (b.is_given(2)) x = b.binary(Op::k_minimum, x, b.in(2));
  b.finish(x);
}
// What is not said is the largest number there is, as it is for nan zero.
void nan_to_num(OpBody& b) {
  const Value x = b.in(0);
  const double most = largest_of(b.type());
  const auto given = [&](int position, double otherwise) {
    return b.argument(position).isNone() ? b.number(otherwise) : b.scalar(position);
  };
  const Value low = b.where(b.binary(Op::k_eq, x, b.number(-INFINITY)), given(3, -most), x);
  const Value high = b.where(b.binary(Op::k_eq, x, b.number(INFINITY)), given(2, most), low);
  b.finish(b.where(b.unary(Op::k_isnan, x), given(1, 0), high));
}

// ---- along a row: softmax, normalisation

template <int argument>
int dim_at(const Event& event) {
  const int64_t dim = event.args[argument].toInt(), rank = static_cast<int64_t>(event.signature->outputs[0].sizes.size());
  return static_cast<int>(dim < 0 ? dim + rank : dim);
}
// Normalised over the last dim alone.
int last_dim(const Event& event) {
  if (event.args[1].toIntVector().size() != 1) return -1;
  return static_cast<int>(event.signature->outputs[0].sizes.size()) - 1;
}
// The sum is nan, or at least 1 and at most the row's size: its inverse rounds once and does not overflow.
Value shares_of_row(OpBody& b, Value powers) { return b.mul(powers, b.div(b.number(1), b.sum_of_row(powers))); }
// A nan makes the sum one, and so the whole row.
void softmax(OpBody& b) {
  const Value x = b.in(0), powers = b.unary(Op::k_exp_nonpositive, b.sub(x, b.largest_number_of_row(x)));
  b.finish(shares_of_row(b, powers));
}
// Rows that are masked altogether are zero.
void safe_softmax(OpBody& b) {
  const Value x = b.in(0), zero = b.number(0), largest = b.largest_of_row(x);
  const Value is_masked = b.binary(Op::k_eq, largest, b.number(-INFINITY));
  const Value powers = b.unary(Op::k_exp_nonpositive, b.sub(x, largest));
  b.finish(b.where(is_masked, zero, shares_of_row(b, powers)));
}
void softmax_backward(OpBody& b) {
  const Value gradient = b.in(0), y = b.in(1);
  b.finish(b.mul(b.sub(gradient, b.sum_of_row(b.mul(gradient, y))), y));
}
void log_softmax(OpBody& b) {
  const Value x = b.in(0), below = b.sub(x, b.largest_number_of_row(x));
  b.finish(b.sub(below, b.unary(Op::k_log, b.sum_of_row(b.unary(Op::k_exp_nonpositive, below)))));
}
void log_softmax_backward(OpBody& b) {
  const Value gradient = b.in(0);
  b.finish(b.sub(gradient, b.mul(b.unary(Op::k_exp, b.in(1)), b.sum_of_row(gradient))));
}

// The sum's rounding is a part of the mean, and would be magnified where a row hardly varies: what it leaves behind in the
// differences is taken out again (the corrected two-pass algorithm, Chan, Golub, LeVeque 1983).
void layer_norm(OpBody& b) {
  const Value x = b.in(0), size = b.number(b.row_size());
  const Value about = b.div(b.sum_of_row(x), size), apart = b.sub(x, about);
  const Value left = b.div(b.sum_of_row(apart), size), squares = b.div(b.sum_of_row(b.mul(apart, apart)), size);
  const Value mean = b.add(about, left), centred = b.sub(x, mean);
  const Value variance = b.binary(Op::k_maximum, b.sub(squares, b.mul(left, left)), b.number(0));
  const Value rstd = b.unary(Op::k_rsqrt, b.add(variance, b.number(b.argument(4).toScalar().toDouble())));
  Value y = b.mul(centred, rstd);
  if (b.is_given(1)) y = b.mul(y, b.in(1));
  if (b.is_given(2)) y = b.add(y, b.in(2));
  b.finish(0, y);
  b.finish(1, mean);
  b.finish(2, rstd);
}

// Layer norm's own sums over a row; the gradients of weight and bias are totals.
void layer_norm_backward(OpBody& b) {
  const Value gradient = b.in(0), size = b.number(b.row_size()), rstd = b.in(3);
  const Value y = b.mul(b.sub(b.in(1), b.in(2)), rstd);
  const Value slope = b.is_given(4) ? b.mul(gradient, b.in(4)) : gradient;
  const Value shift = b.div(b.sum_of_row(slope), size), tilt = b.div(b.sum_of_row(b.mul(slope, y)), size);
  b.finish(0, b.mul(rstd, b.sub(b.sub(slope, shift), b.mul(y, tilt))));
  b.finish(1, b.mul(gradient, y));
  b.finish(2, gradient);
}
int last_dim_of_gradient(const Event& event) {
  if (event.args[2].toIntVector().size() != 1) return -1;
  return static_cast<int>(event.signature->outputs[0].sizes.size()) - 1;
}

// ---- totals: of all rows

void total(OpBody& b) { b.finish(b.in(0)); }
template <int dims>
bool adds_rows_up(const Event& event) {
  if (!keeps_type(event) || !has_rows_of_total(*event.signature)) return false;
  const int rank = static_cast<int>(event.signature->inputs[0].sizes.size());
  if (dims < 0 || event.args[dims].isNone()) return true;
  auto given = event.args[dims].toIntVector();
  for (auto& dim : given) dim += dim < 0 ? rank : 0;
  for (int64_t dim = 0; dim + 1 < rank; ++dim)
    if (std::find(given.begin(), given.end(), dim) == given.end()) return given.empty();
  return true;
}

// ---- copies

void copy(OpBody& b) { b.finish(b.in_own_type(0)); }
void copy_over(OpBody& b) { b.finish(b.in_own_type(1)); }
template <int value>
void fill(OpBody& b) {
  b.finish(b.number(value));
}
void fill_scalar(OpBody& b) { b.finish(b.scalar(1)); }

const OpRows& plain_rows() {
  static const OpRows table = {
      {"add.Tensor", {&add, {2}, {}, &is_number}},
      {"add.Scalar", {&add_scalar, {1, 2}, {}, &computes_in_floats}},
      {"sub.Tensor", {&sub, {2}, {}, &is_number}},
      {"sub.Scalar", {&sub_scalar, {1, 2}, {}, &computes_in_floats}},
      {"rsub.Tensor", {&rsub, {2}, {}, &is_number}},
      {"rsub.Scalar", {&rsub_scalar, {1, 2}, {}, &computes_in_floats}},
      {"mul.Tensor", {&binary<Op::k_mul>, {}, {}, &is_number}},
      {"mul.Scalar", {&binary_scalar<Op::k_mul>, {1}, {}, &computes_in_floats}},
      {"div.Tensor", {&binary<Op::k_div>, {}, {}, &computes_in_floats}},
      {"div.Scalar", {&binary_scalar<Op::k_div>, {1}, {}, &computes_in_floats}},
      {"maximum", {&binary<Op::k_maximum>, {}, {}, &computes_in_floats}},
      {"minimum", {&binary<Op::k_minimum>, {}, {}, &computes_in_floats}},
      {"lerp.Scalar", {&lerp_scalar, {2}, {2}, &computes_in_floats}},
      {"lerp.Tensor", {&lerp_tensor, {}, {}, &computes_in_floats}},
      {"addcmul", {&addcmul, {3}, {}, &computes_in_floats}},
      {"addcdiv", {&addcdiv, {3}, {}, &computes_in_floats}},
      {"pow.Tensor_Scalar", with_numbers({&pow_scalar, {}, {1}, &computes_in_floats}, &has_exponent)},
      {"pow_.Scalar", with_numbers({&pow_scalar, {}, {1}, &computes_in_floats}, &has_exponent)},
      {"pow_.Tensor", {&binary<Op::k_pow>, {}, {}, &computes_in_floats}},
      {"pow.Tensor_Tensor", {&binary<Op::k_pow>, {}, {}, &computes_in_floats}},
      {"pow.Scalar", {&pow_of_scalar, {0}, {}, &computes_in_floats}},
      {"neg", {&unary<Op::k_neg>, {}, {}, &is_number}},
      {"abs", {&unary<Op::k_abs>, {}, {}, &computes_in_floats}},
      {"exp", {&unary<Op::k_exp>, {}, {}, &computes_in_floats}},
      {"expm1", {&unary<Op::k_expm1>, {}, {}, &computes_in_floats}},
      {"log", {&unary<Op::k_log>, {}, {}, &computes_in_floats}},
      {"log1p", {&unary<Op::k_log1p>, {}, {}, &computes_in_floats}},
      {"log2", {&unary<Op::k_log2>, {}, {}, &computes_in_floats}},
      {"sqrt", {&unary<Op::k_sqrt>, {}, {}, &computes_in_floats}},
      {"rsqrt", {&unary<Op::k_rsqrt>, {}, {}, &computes_in_floats}},
      {"reciprocal", {&unary<Op::k_reciprocal>, {}, {}, &computes_in_floats}},
      {"tanh", {&unary<Op::k_tanh>, {}, {}, &computes_in_floats}},
      {"sigmoid", {&unary<Op::k_sigmoid>, {}, {}, &computes_in_floats}},
      {"erf", {&unary<Op::k_erf>, {}, {}, &computes_in_floats}},
      {"sin", {&unary<Op::k_sin>, {}, {}, &computes_in_floats}},
      {"cos", {&unary<Op::k_cos>, {}, {}, &computes_in_floats}},
      {"floor", {&unary<Op::k_floor>, {}, {}, &computes_in_floats}},
      {"ceil", {&unary<Op::k_ceil>, {}, {}, &computes_in_floats}},
      {"round", {&unary<Op::k_round>, {}, {}, &computes_in_floats}},
      {"trunc", {&unary<Op::k_trunc>, {}, {}, &computes_in_floats}},
      {"frac", {&frac, {}, {}, &computes_in_floats}},
      {"sign", {&unary<Op::k_sign>, {}, {}, &computes_in_floats}},
      {"isnan", {&unary<Op::k_isnan>, {}, {}, &is_floating_first}},
      {"logit", {&logit, {1}, {}, &computes_in_floats}},
      {"nan_to_num", {&nan_to_num, {1, 2, 3}, {}, &computes_in_floats}},
      {"where.self", {&where, {}, {}, &has_truth_first}},
      {"masked_fill.Scalar", {&masked_fill_scalar, {2}, {}, &has_truth_second}},
      {"masked_fill.Tensor", {&masked_fill, {}, {}, &has_truth_and_value}},
      {"clamp", {&clamp, {1, 2}, {}, &computes_in_floats}},
      {"clamp_min", {&clamp_one_side<Op::k_maximum>, {1}, {}, &computes_in_floats}},
      {"clamp_max", {&clamp_one_side<Op::k_minimum>, {1}, {}, &computes_in_floats}},
      {"clamp.Tensor", {&clamp_by_tensors, {}, {}, &computes_in_floats}},
      {"clamp_min.Tensor", {&binary<Op::k_maximum>, {}, {}, &computes_in_floats}},
      {"clamp_max.Tensor", {&binary<Op::k_minimum>, {}, {}, &computes_in_floats}},
      {"eq.Tensor", {&binary<Op::k_eq>, {}, {}, &has_one_type}},
      {"ne.Tensor", {&binary<Op::k_ne>, {}, {}, &has_one_type}},
      {"lt.Tensor", {&binary<Op::k_lt>, {}, {}, &has_one_type}},
      {"le.Tensor", {&binary<Op::k_le>, {}, {}, &has_one_type}},
      {"gt.Tensor", {&binary<Op::k_gt>, {}, {}, &has_one_type}},
      {"ge.Tensor", {&binary<Op::k_ge>, {}, {}, &has_one_type}},
      {"eq.Scalar", {&binary_scalar<Op::k_eq>, {1}, {}, &is_floating_first}},
      {"ne.Scalar", {&binary_scalar<Op::k_ne>, {1}, {}, &is_floating_first}},
      {"lt.Scalar", {&binary_scalar<Op::k_lt>, {1}, {}, &is_floating_first}},
      {"le.Scalar", {&binary_scalar<Op::k_le>, {1}, {}, &is_floating_first}},
      {"gt.Scalar", {&binary_scalar<Op::k_gt>, {1}, {}, &is_floating_first}},
      {"ge.Scalar", {&binary_scalar<Op::k_ge>, {1}, {}, &is_floating_first}},
      {"logical_not", {&unary<Op::k_logical_not>, {}, {}, &is_truth}},
      {"bitwise_not", {&unary<Op::k_logical_not>, {}, {}, &is_truth}},
      {"logical_and", {&binary<Op::k_bit_and>, {}, {}, &is_truth}},
      {"logical_or", {&binary<Op::k_bit_or>, {}, {}, &is_truth}},
      {"bitwise_and.Tensor", {&binary<Op::k_bit_and>, {}, {}, &is_truth}},
      {"bitwise_or.Tensor", {&binary<Op::k_bit_or>, {}, {}, &is_truth}},
      {"_softmax", {&softmax, {}, {}, &keeps_type, &dim_at<1>}},
      {"_safe_softmax", {&safe_softmax, {}, {}, &keeps_type, &dim_at<1>}},
      {"_softmax_backward_data", {&softmax_backward, {}, {}, &keeps_type, &dim_at<2>}},
      {"_log_softmax", {&log_softmax, {}, {}, &keeps_type, &dim_at<1>}},
      {"_log_softmax_backward_data", {&log_softmax_backward, {}, {}, &keeps_type, &dim_at<2>}},
      {"native_layer_norm", {&layer_norm, {}, {4}, &keeps_type, &last_dim}},
      {"native_layer_norm_backward",
       {&layer_norm_backward, {}, {}, &keeps_type, &last_dim_of_gradient, {}, jit::Total::kSum, 1}},
      {"sum", {&total, {}, {}, &adds_rows_up<-1>, &last_dim_of_first, {}, jit::Total::kSum}},
      {"sum.dim_IntList", {&total, {}, {}, &adds_rows_up<1>, &last_dim_of_first, {}, jit::Total::kSum}},
      {"mean", {&total, {}, {}, &adds_rows_up<-1>, &last_dim_of_first, {}, jit::Total::kMean}},
      {"mean.dim", {&total, {}, {}, &adds_rows_up<1>, &last_dim_of_first, {}, jit::Total::kMean}},
      {"_scale_channels", {&scale_channels}},
      {"clone", {&copy, {}, {}}},
      {"_to_copy", {&copy, {}, {}}},
      {"copy_", {&copy_over, {}, {}}},
      {"fill.Scalar", {&fill_scalar, {1}, {}, &is_number}},
      {"zero", {&fill<0>, {}, {}, &is_number}},
      {"zeros_like", {&fill<0>, {}, {}, &is_number}},
      {"ones_like", {&fill<1>, {}, {}, &is_number}},
  };
  return table;
}

const OpRow* find_row(std::string_view name) {
  for (const auto* rows : {&plain_rows(), &activation_rows(), &loss_rows()})
    if (const auto row = rows->find(name); row != rows->end()) return &row->second;
  return nullptr;
}

}  // namespace

std::string name_of_row(const graph::OpInfo& op) {
  std::string_view name = op.name;
  name.remove_prefix(name.find(':') + 2);
  const size_t dot = name.find('.');
  std::string base(name.substr(0, dot));
  if (base.ends_with('_')) base.pop_back();
  return dot == name.npos ? base : base + std::string(name.substr(dot));
}

int last_dim_of_first(const Event& event) { return static_cast<int>(event.signature->inputs[0].sizes.size()) - 1; }

constexpr int64_t kShortestRowOfTotal = 64;  // short ones are better joined, as PyTorch's kernels do
bool has_rows_of_total(const graph::Signature& signature) {
  const auto& input = signature.inputs[0];
  return c10::isFloatingType(input.dtype) && !input.sizes.empty() && input.sizes.back() >= kShortestRowOfTotal;
}

namespace {

// Null where the op has no form that gives one value for each row.
const OpRow* find_row_fold(const graph::OpInfo& op) {
  thread_local std::unordered_map<const graph::OpInfo*, const OpRow*> known;
  const auto [place, is_new] = known.try_emplace(&op, nullptr);
  if (!is_new) return place->second;
  if (!std::string_view(op.name).starts_with("aten::") || op.returns_out) return nullptr;
  const auto row = row_folds().find(name_of_row(op));
  return place->second = row == row_folds().end() ? nullptr : &row->second;
}

// By the sizes alone: another dim may have the same.
bool may_fold_rows(const graph::OpInfo& op, const graph::Signature& signature) {
  if (!find_row_fold(op) || signature.inputs.empty() || signature.outputs.empty()) return false;
  const auto& input = signature.inputs[0];
  return c10::isFloatingType(input.dtype) && input.sizes.size() >= 2 && input.sizes.back() >= kShortestRow &&
         signature.outputs[0].numel() * input.sizes.back() == input.numel();
}

}  // namespace

const OpRow* find_op_row(const Event& event) {
  const auto* fold = find_row_fold(event.op());
  return fold && fold->accepts(event) ? fold : find_op_row(event.op());
}

// In place or not: one row. A schema name is namespace::base[_][.overload].
const OpRow* find_op_row(const graph::OpInfo& op) {
  thread_local std::unordered_map<const graph::OpInfo*, const OpRow*> known;
  const auto [place, is_new] = known.try_emplace(&op, nullptr);
  if (!is_new) return place->second;
  const std::string_view name = op.name;
  const bool is_ours = name.starts_with("lockstep::");
  if ((!is_ours && !name.starts_with("aten::")) || op.returns_out) return nullptr;
  if (const auto* row = find_row(name.substr(name.find(':') + 2))) return place->second = row;  // copy_
  return place->second = find_row(name_of_row(op));
}

bool has_pointwise_body(const graph::OpInfo& op) {
  const auto* row = find_op_row(op);
  return row && !row->folds;
}

bool rounds_as_eager(const graph::OpInfo& op) {
  thread_local std::unordered_map<const graph::OpInfo*, bool> known;
  const auto [place, is_new] = known.try_emplace(&op, true);
  if (!is_new) return place->second;
  const auto* row = find_op_row(op);
  if (!row && !find_row_fold(op)) return true;  // there is PyTorch's only
  // By name, or by name and overload. Of those in the second part, PyTorch's own vectors and single values differ: in the
  // sign of zero, or on nan.
  static const std::unordered_set<std::string_view> rounded = {
      "rsub", "lerp", "addcmul", "addcdiv", "pow", "exp", "expm1", "log", "log1p", "log2", "sqrt", "rsqrt", "tanh",
      "sigmoid",
      "erf", "sin", "cos", "leaky_relu_backward", "sigmoid_backward", "tanh_backward", "silu", "silu_backward", "gelu",
      "gelu_backward", "_softmax", "_safe_softmax", "_softmax_backward_data", "_log_softmax", "_log_softmax_backward_data",
      "native_layer_norm", "native_layer_norm_backward", "sum", "mean", "elu", "celu", "elu_backward", "softplus",
      "softplus_backward", "log_sigmoid_forward", "mish", "mish_backward", "logit", "mse_loss", "smooth_l1_loss",
      "smooth_l1_loss_backward", "huber_loss", "huber_loss_backward",
      "binary_cross_entropy_backward", "binary_cross_entropy_with_logits", "amax", "var", "std", "linalg_vector_norm",

      "hardtanh_backward", "hardshrink_backward", "softshrink", "softshrink_backward", "clamp.Tensor",
      "clamp_min.Tensor", "clamp_max.Tensor", "maximum", "minimum"};
  const std::string name = name_of_row(op);
  return place->second = !rounded.contains(name) && !rounded.contains(std::string_view(name).substr(0, name.find('.')));
}

bool rounds_as_eager(const graph::OpInfo& op, const graph::Signature& signature) {
  if (may_fold_rows(op, signature)) return false;
  // At the ends of rows, PyTorch's single values of bfloat16 may round at each step.
  if (rounds_as_eager(op)) return !has_bfloat16(signature) || !find_op_row(op);
  const auto* row = find_op_row(op);
  if (!row) return true;
  return row->total != jit::Total::kNone && row->first_total == 0 && !has_rows_of_total(signature);
}

}  // namespace lockstep::dynamic
