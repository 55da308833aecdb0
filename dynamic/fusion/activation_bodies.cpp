// The bodies of activations and their gradients, as PyTorch's kernels compute them (Activation.cpp and Elu.h in
// aten/src/ATen/native/cpu). Where its vectors and its single values disagree on nan or on the sign of zero, a body does
// as the vectors.
#include <algorithm>
#include <cmath>
#include <limits>

#include "dynamic/fusion/body_parts.h"

namespace lockstep::dynamic {

namespace {

using jit::Op;
using Value = OpBody::Value;

Value is_greater(OpBody& b, Value x, Value than) { return b.binary(Op::k_gt, x, than); }
Value is_less(OpBody& b, Value x, Value than) { return b.binary(Op::k_lt, x, than); }
Value both(OpBody& b, Value first, Value second) { return b.binary(Op::k_bit_and, first, second); }

void leaky_relu(OpBody& b) {
  const Value x = b.in(0);
  b.finish(b.where(is_greater(b, x, b.number(0)), x, b.mul(x, b.scalar(1))));
}
void leaky_relu_backward(OpBody& b) {
  const Value gradient = b.in(0);
  b.finish(b.where(is_greater(b, b.in(1), b.number(0)), gradient, b.mul(gradient, b.scalar(2))));
}
void prelu(OpBody& b) {
  const Value x = b.in(0);
  b.finish(b.where(is_greater(b, x, b.number(0)), x, b.mul(b.in(1), x)));
}
void prelu_backward(OpBody& b) {
  const Value gradient = b.in(0), x = b.in(1), zero = b.number(0), is_right = is_greater(b, x, zero);
  b.finish(0, b.where(is_right, gradient, b.mul(b.in(2), gradient)));
  b.finish(1, b.where(is_right, zero, b.mul(x, gradient)));
}
void threshold(OpBody& b) {
  const Value x = b.in(0);
  b.finish(b.where(b.binary(Op::k_le, x, b.scalar(1)), b.scalar(2), x));
}
void threshold_backward(OpBody& b) {
  b.finish(b.where(b.binary(Op::k_le, b.in(1), b.scalar(2)), b.number(0), b.in(0)));
}
void sigmoid_backward(OpBody& b) {
  const Value y = b.in(1);
  b.finish(b.mul(b.mul(b.in(0), b.sub(b.number(1), y)), y));
}
void tanh_backward(OpBody& b) {
  const Value y = b.in(1);
  b.finish(b.mul(b.in(0), b.sub(b.number(1), b.mul(y, y))));
}
void silu(OpBody& b) {
  const Value x = b.in(0);
  b.finish(b.div(x, b.add(b.number(1), b.unary(Op::k_exp, b.unary(Op::k_neg, x)))));
}
void silu_backward(OpBody& b) {
  const Value x = b.in(1), one = b.number(1), s = b.unary(Op::k_sigmoid, x);
  b.finish(b.mul(b.mul(b.in(0), s), b.add(one, b.mul(x, b.sub(one, s)))));
}

// ---- hard ones: pieces of straight lines

// Of equals the second operand comes back, which is what is held: its zeros keep their signs.
void hardtanh(OpBody& b) {
  b.finish(b.binary(Op::k_minimum, b.scalar(2), b.binary(Op::k_maximum, b.scalar(1), b.in(0))));
}
void hardtanh_backward(OpBody& b) {
  const Value x = b.in(1);
  b.finish(b.where(both(b, is_greater(b, x, b.scalar(2)), is_less(b, x, b.scalar(3))), b.in(0), b.number(0)));
}
Value held_in_six(OpBody& b, Value x) {
  const Value raised = b.binary(Op::k_maximum, b.add(x, b.number(3)), b.number(0));
  return b.binary(Op::k_minimum, raised, b.number(6));
}
void hardsigmoid(OpBody& b) { b.finish(b.div(held_in_six(b, b.in(0)), b.number(6))); }
void hardsigmoid_backward(OpBody& b) {
  const Value x = b.in(1), is_between = both(b, is_greater(b, x, b.number(-3)), is_less(b, x, b.number(3)));
  b.finish(b.where(is_between, b.mul(b.in(0), b.number(1.0f / 6.0f)), b.number(0)));  // a float, of doubles, too
}
void hardswish(OpBody& b) {
  const Value x = b.in(0);
  b.finish(b.div(b.mul(x, held_in_six(b, x)), b.number(6)));
}
void hardswish_backward(OpBody& b) {
  const Value gradient = b.in(0), x = b.in(1), three = b.number(3);
  const Value between = b.mul(gradient, b.add(b.div(x, three), b.number(0.5)));
  const Value not_left = b.where(b.binary(Op::k_ge, x, three), gradient, between);
  b.finish(b.where(b.binary(Op::k_le, x, b.number(-3)), b.number(0), not_left));
}
void hardshrink(OpBody& b) {
  const Value x = b.in(0), bound = b.scalar(1);
  const Value is_between = both(b, b.binary(Op::k_ge, x, b.unary(Op::k_neg, bound)), b.binary(Op::k_le, x, bound));
  b.finish(b.where(is_between, b.number(0), x));
}
void softshrink(OpBody& b) {
  const Value x = b.in(0), bound = b.scalar(1), below = b.unary(Op::k_neg, bound), zero = b.number(0);
  const Value inside = b.where(b.unary(Op::k_isnan, x), x, zero);
  const Value left = b.where(is_less(b, x, below), b.add(x, bound), inside);
  b.finish(b.where(is_greater(b, x, bound), b.sub(x, bound), left));
}
void shrink_backward(OpBody& b) {
  const Value x = b.in(1), bound = b.scalar(2);
  const Value is_outside =
      b.binary(Op::k_bit_or, is_less(b, x, b.unary(Op::k_neg, bound)), is_greater(b, x, bound));
  b.finish(b.where(is_outside, b.in(0), b.number(0)));
}

// ---- soft ones

void finish_elu(OpBody& b, Value depth, Value scale, Value steepness) {
  const Value x = b.in(0), left = b.mul(b.unary(Op::k_expm1, b.mul(x, steepness)), depth);
  b.finish(b.where(b.binary(Op::k_ge, x, b.number(0)), b.mul(x, scale), left));
}
void elu(OpBody& b) { finish_elu(b, b.mul(b.scalar(1), b.scalar(2)), b.scalar(2), b.scalar(3)); }
void celu(OpBody& b) {
  const double alpha = b.argument(1).toScalar().toDouble();
  finish_elu(b, b.number_of_call(alpha), b.number(1), b.number_of_call(1 / alpha));
}
// Of what was put in, or of what came out.
void elu_backward(OpBody& b) {
  const Value gradient = b.in(0), known = b.in(1), scale = b.scalar(2), steepness = b.scalar(3);
  const Value depth = b.mul(b.scalar(1), scale), steep = b.mul(gradient, steepness);
  const bool is_result = b.argument(4).toBool();
  const Value left = is_result ? b.mul(steep, b.add(known, depth))
                               : b.mul(b.mul(steep, depth), b.unary(Op::k_exp, b.mul(known, steepness)));
  b.finish(b.where(is_greater(b, known, b.number(0)), b.mul(gradient, scale), left));
}
// log(1 + e^x) is x and log(1 + e^-x) on the right: nothing overflows.
void softplus(OpBody& b) {
  const Value x = b.in(0), beta = b.scalar(1), steep = b.mul(x, beta);
  const Value above = log_of_one_and(b, exp_of_distance(b, steep));
  const Value soft = b.div(b.add(b.binary(Op::k_maximum, steep, b.number(0)), above), beta);
  b.finish(b.where(is_greater(b, steep, b.scalar(2)), x, soft));
}
void softplus_backward(OpBody& b) {
  const Value gradient = b.in(0), steep = b.mul(b.in(1), b.scalar(2)), power = b.unary(Op::k_exp, steep);
  const Value soft = b.div(b.mul(gradient, power), b.add(power, b.number(1)));
  b.finish(b.where(is_greater(b, steep, b.scalar(3)), gradient, soft));
}
// Of the second result, the gradient is made.
void log_sigmoid(OpBody& b) {
  const Value x = b.in(0), power = exp_of_distance(b, x);
  b.finish(0, b.sub(b.binary(Op::k_minimum, x, b.number(0)), log_of_one_and(b, power)));
  b.finish(1, power);
}
void log_sigmoid_backward(OpBody& b) {
  const Value power = b.in(2), one = b.number(1), share = b.div(power, b.add(one, power));
  b.finish(b.mul(b.where(is_less(b, b.in(1), b.number(0)), b.sub(one, share), share), b.in(0)));
}

// tanh(log(1 + e^x)) is n / (n + 2), where n is e^x (e^x + 2): one function in place of three. Past 20 it is 1, in doubles,
// too.
constexpr double kOneInMish = 20;
struct MishParts {
  Value power, n, below;  // e^x, n, n + 2
};
MishParts mish_parts(OpBody& b, Value x) {
  const Value two = b.number(2), power = b.unary(Op::k_exp, b.binary(Op::k_minimum, x, b.number(kOneInMish)));
  const Value n = b.mul(power, b.add(power, two));
  return {power, n, b.add(n, two)};
}
void mish(OpBody& b) {
  const Value x = b.in(0);
  const auto [power, n, below] = mish_parts(b, x);
  b.finish(b.mul(x, b.div(n, below)));
}
// 1 - t^2 is (1 - t) (1 + t), where 1 - t is 2 / (n + 2).
void mish_backward(OpBody& b) {
  const Value x = b.in(1), one = b.number(1);
  const auto [power, n, below] = mish_parts(b, x);
  const Value t = b.div(n, below), s = b.div(power, b.add(one, power));
  const Value slope = b.mul(b.div(b.number(2), below), b.add(one, t));
  const Value ending = b.where(is_greater(b, x, b.number(kOneInMish)), b.number(0), slope);
  b.finish(b.mul(b.in(0), b.add(t, b.mul(b.mul(x, s), ending))));
}

// ---- GELU

constexpr double kSqrt2OverPi = M_2_SQRTPI * M_SQRT1_2, kGeluCubic = 0.044715;

bool is_tanh(const OpBody& b, int position) { return b.argument(position).toStringView() == "tanh"; }

void gelu(OpBody& b) {
  const Value x = b.in(0);
  if (is_tanh(b, 1)) {  // 1/2 (1 + tanh(y)) is sigmoid(2 y)
    const Value cube = b.mul(b.mul(x, x), x);
    const Value inner = b.mul(b.number(2 * kSqrt2OverPi), b.add(x, b.mul(b.number(kGeluCubic), cube)));
    return b.finish(b.mul(x, b.unary(Op::k_sigmoid, inner)));
  }
  b.finish(b.mul(x, b.unary(Op::k_normal_cdf, x)));
}

void gelu_backward(OpBody& b) {
  const Value gradient = b.in(0), x = b.in(1), half = b.number(0.5), one = b.number(1);
  if (is_tanh(b, 2)) {
    const Value square = b.mul(x, x), factor = b.number(kSqrt2OverPi), cubic = b.number(kGeluCubic);
    const Value inner = b.mul(factor, b.add(x, b.mul(cubic, b.mul(square, x))));
    const Value t = b.unary(Op::k_tanh, inner);
    const Value left = b.mul(half, b.add(one, t));
    const Value slope = b.mul(factor, b.add(one, b.mul(b.number(3 * kGeluCubic), square)));
    const Value right = b.mul(b.mul(b.mul(half, x), b.sub(one, b.mul(t, t))), slope);
    return b.finish(b.mul(gradient, b.add(left, right)));
  }
  const Value cdf = b.unary(Op::k_normal_cdf, x);
  const Value density = b.mul(b.number(M_2_SQRTPI * M_SQRT1_2 * 0.5),
                              b.unary(Op::k_exp_nonpositive, b.mul(b.mul(x, x), b.number(-0.5))));
  b.finish(b.mul(gradient, b.add(cdf, b.mul(x, density))));
}

// ---- numbers that PyTorch's kernels refuse

bool has_bound(const Event& event) {
  const double bound = number_at(event, 1);
  return bound >= 0 && std::isfinite(bound) && is_number_of_result(event, 1);
}
// A depth and its inverse that are numbers of float32.
bool has_depth(const Event& event) {
  const double depth = std::abs(number_at(event, 1)), most = std::numeric_limits<float>::max();
  return depth <= most && depth >= 1 / most;
}
bool is_invertible(const Event& event) { return !event.args[4].toBool() || number_at(event, 1) >= 0; }

}  // namespace

Value exp_of_distance(OpBody& b, Value x) {
  return b.unary(Op::k_exp_nonpositive, b.unary(Op::k_neg, b.unary(Op::k_abs, x)));
}

// As fdlibm's log1p (s_log1p.c), with the plain series of the logarithm in s = x / (2 + x), which is at most 1/3:
// libmvec's rounds twice as much. In doubles the series would be too long.
Value log_of_one_and(OpBody& b, Value x) {
  if (b.type() != jit::DType::kFloat32) return b.unary(Op::k_log1p, x);
  const Value s = b.div(x, b.add(b.number(2), x)), z = b.mul(s, s), half_square = b.mul(b.mul(b.number(0.5), x), x);
  Value series = b.number(2.0 / 15);
  for (int odd = 13; odd >= 3; odd -= 2) series = b.multiply_add(series, z, b.number(2.0 / odd));
  const Value rest = b.mul(s, b.multiply_add(series, z, half_square));
  return b.sub(x, b.sub(half_square, rest));
}

const OpRows& activation_rows() {
  static const OpRows table = {
      {"relu", {&unary<Op::k_relu>, {}, {}, &computes_in_floats}},
      {"leaky_relu", {&leaky_relu, {1}, {}, &computes_in_floats}},
      {"leaky_relu_backward", {&leaky_relu_backward, {2}, {}, &computes_in_floats}},
      {"_prelu_kernel", {&prelu, {}, {}, &computes_in_floats}},
      {"_prelu_kernel_backward", {&prelu_backward, {}, {}, &computes_in_floats}},
      {"threshold", {&threshold, {1, 2}, {}, &computes_in_floats}},
      {"threshold_backward", {&threshold_backward, {2}, {}, &computes_in_floats}},
      {"sigmoid_backward", {&sigmoid_backward, {}, {}, &computes_in_floats}},
      {"tanh_backward", {&tanh_backward, {}, {}, &computes_in_floats}},
      {"silu", {&silu, {}, {}, &computes_in_floats}},
      {"silu_backward", {&silu_backward, {}, {}, &computes_in_floats}},
      {"hardtanh", {&hardtanh, {1, 2}, {}, &computes_in_floats}},
      {"hardtanh_backward", {&hardtanh_backward, {2, 3}, {}, &computes_in_floats}},
      {"hardsigmoid", {&hardsigmoid, {}, {}, &computes_in_floats}},
      {"hardsigmoid_backward", {&hardsigmoid_backward, {}, {}, &computes_in_floats}},
      {"hardswish", {&hardswish, {}, {}, &computes_in_floats}},
      {"hardswish_backward", {&hardswish_backward, {}, {}, &computes_in_floats}},
      {"hardshrink", {&hardshrink, {1}, {}, &computes_in_floats}},
      {"hardshrink_backward", {&shrink_backward, {2}, {}, &computes_in_floats}},
      {"softshrink", with_numbers({&softshrink, {1}, {}, &computes_in_floats}, &has_bound)},
      {"softshrink_backward", {&shrink_backward, {2}, {}, &computes_in_floats}},
      {"elu", {&elu, {1, 2, 3}, {}, &computes_in_floats}},
      {"celu", with_numbers({&celu, {}, {1}, &computes_in_floats}, &has_depth)},
      {"elu_backward", with_numbers({&elu_backward, {1, 2, 3}, {4}, &computes_in_floats}, &is_invertible)},
      {"softplus", {&softplus, {1, 2}, {}, &computes_in_floats}},
      {"softplus_backward", {&softplus_backward, {2, 3}, {}, &computes_in_floats}},
      {"log_sigmoid_forward", {&log_sigmoid, {}, {}, &computes_in_floats}},
      {"log_sigmoid_backward", {&log_sigmoid_backward, {}, {}, &computes_in_floats}},
      {"mish", {&mish, {}, {}, &computes_in_floats}},
      {"mish_backward", {&mish_backward, {}, {}, &computes_in_floats}},
      {"gelu", {&gelu, {}, {}, &computes_in_floats}},
      {"gelu_backward", {&gelu_backward, {}, {}, &computes_in_floats}},
  };
  return table;
}

}  // namespace lockstep::dynamic
