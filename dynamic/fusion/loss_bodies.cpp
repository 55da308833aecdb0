// The bodies of losses and their gradients, as PyTorch's kernels compute them (aten/src/ATen/native/Loss.cpp, LossNLL.cpp,
// cpu/BinaryOpsKernel.cpp, cpu/PointwiseOpsKernel.cpp). What a loss comes to is a total, or the values themselves where
// they are not reduced.
#include <ATen/core/Reduction.h>

#include <algorithm>

#include "dynamic/fusion/body_parts.h"

namespace lockstep::dynamic {

namespace {

using jit::Op;
using Value = OpBody::Value;

bool is_mean(const OpBody& b, int reduction) { return b.argument(reduction).toInt() == at::Reduction::Mean; }

Value apart(OpBody& b) { return b.unary(Op::k_abs, b.sub(b.in(0), b.in(1))); }

void mse_loss(OpBody& b) {
  const Value difference = b.sub(b.in(0), b.in(1));
  b.finish(b.mul(difference, difference));
}
void smooth_l1_loss(OpBody& b) {
  const Value z = apart(b), beta = b.scalar(3), half = b.number(0.5);
  const Value near = b.div(b.mul(b.mul(half, z), z), beta), far = b.sub(z, b.mul(half, beta));
  b.finish(b.where(b.binary(Op::k_ge, z, beta), far, near));
}
void huber_loss(OpBody& b) {
  const Value z = apart(b), delta = b.scalar(3), half = b.number(0.5);
  const Value near = b.mul(b.mul(half, z), z), far = b.mul(delta, b.sub(z, b.mul(half, delta)));
  b.finish(b.where(b.binary(Op::k_ge, z, delta), far, near));
}
// (1 - target) x - log(sigmoid(x)), whose weight is 1 + (positive - 1) target
void binary_cross_entropy_with_logits(OpBody& b) {
  const Value x = b.in(0), target = b.in(1), one = b.number(1);
  Value likelihood = b.sub(b.binary(Op::k_minimum, x, b.number(0)), log_of_one_and(b, exp_of_distance(b, x)));
  if (b.is_given(3)) likelihood = b.mul(likelihood, b.add(b.mul(b.sub(b.in(3), one), target), one));
  Value loss = b.sub(b.mul(b.sub(one, target), x), likelihood);
  if (b.is_given(2)) loss = b.mul(loss, b.in(2));
  b.finish(loss);
}

// (gradient, values, targets, ..., reduction): of a mean, each has a share.
Value share(OpBody& b, double whole, int reduction) {
  return is_mean(b, reduction) ? b.number_of_call(whole / b.element_count()) : b.number(whole);
}
void mse_loss_backward(OpBody& b) {
  b.finish(b.mul(b.mul(share(b, 2, 3), b.sub(b.in(1), b.in(2))), b.in(0)));
}
// -1, 0 is -1, too, or 1
Value side(OpBody& b, Value x) { return b.where(b.binary(Op::k_gt, x, b.number(0)), b.number(1), b.number(-1)); }
void smooth_l1_loss_backward(OpBody& b) {
  const Value x = b.sub(b.in(1), b.in(2)), beta = b.scalar(4);
  const Value slope = b.where(b.binary(Op::k_ge, b.unary(Op::k_abs, x), beta), side(b, x), b.div(x, beta));
  b.finish(b.mul(b.mul(share(b, 1, 3), slope), b.in(0)));
}
void huber_loss_backward(OpBody& b) {
  const Value x = b.sub(b.in(1), b.in(2)), delta = b.scalar(4);
  const Value slope = b.where(b.binary(Op::k_ge, b.unary(Op::k_abs, x), delta), b.mul(side(b, x), delta), x);
  b.finish(b.mul(b.mul(share(b, 1, 3), slope), b.in(0)));
}
// Of probabilities: at least this is divided by.
constexpr float kLeastProduct = 1e-12f;
void binary_cross_entropy_backward(OpBody& b) {
  const Value p = b.in(1), product = b.mul(b.sub(b.number(1), p), p);
  const Value below = b.binary(Op::k_maximum, product, b.number(kLeastProduct));
  Value slope = b.div(b.mul(b.in(0), b.sub(p, b.in(2))), below);
  if (b.is_given(3)) slope = b.mul(slope, b.in(3));
  if (is_mean(b, 4)) slope = b.div(slope, b.number_of_call(b.element_count()));
  b.finish(slope);
}

// All of one type, and the values fill the space.
bool is_of_one_type(const Event& event) {
  const auto& inputs = event.signature->inputs;
  if (!keeps_type(event)) return false;
  return std::all_of(inputs.begin(), inputs.end(), [&](const graph::Layout& input) {
    return !input.is_defined() || input.dtype == inputs[0].dtype;
  });
}
template <int reduction>
bool takes_loss(const Event& event) {
  if (!is_of_one_type(event)) return false;
  return event.args[reduction].toInt() == at::Reduction::None || has_rows_of_total(*event.signature);
}
// The gradient is one number where the loss is.
bool takes_gradient_of_loss(const Event& event) {
  const auto& signature = *event.signature;
  return is_of_one_type(event) && signature.inputs[1].sizes == signature.outputs[0].sizes;
}

// LossNLL.cpp, of (N, classes): not zero at the target alone.
void nll_loss_backward(OpBody& b) {
  const Value gradient = is_mean(b, 4) ? b.div(b.in(0), b.in(4)) : b.in(0);
  Value slope = b.unary(Op::k_neg, gradient);
  if (b.is_given(3)) slope = b.mul(b.in(3), slope);
  const Value target = b.in_own_type(2), ignored = b.spec().constant(jit::DType::kInt64, b.argument(5).toInt());
  const Value is_target = b.binary(Op::k_bit_and, b.binary(Op::k_eq, b.place_in_row(), target),
                                   b.binary(Op::k_ne, target, ignored));
  b.finish(b.where(is_target, slope, b.number(0)));
}
bool has_rows_of_classes(const Event& event) {
  const auto& inputs = event.signature->inputs;
  const int64_t reduction = event.args[4].toInt();
  const size_t rank = reduction == at::Reduction::None ? 1 : 0;
  return keeps_type(event) && inputs[1].sizes.size() == 2 && inputs[2].sizes.size() == 1 &&
         inputs[2].dtype == c10::ScalarType::Long && inputs[0].sizes.size() == rank && inputs[4].sizes.empty() &&
         (reduction == at::Reduction::None || reduction == at::Reduction::Mean || reduction == at::Reduction::Sum);
}
int of_classes(const Event&) { return 1; }

// Where two pieces meet.
template <int argument>
bool has_beta(const Event& event) {
  return number_at(event, argument) >= 0;
}
template <int argument>
bool has_delta(const Event& event) {
  return number_at(event, argument) > 0;
}

// A loss whose argument number `reduction` says what becomes of the values.
OpRow loss_row(void (*lower)(OpBody&), std::vector<int> scalars, int reduction, bool (*accepts)(const Event&)) {
  OpRow row{lower, std::move(scalars), {reduction}, accepts, &last_dim_of_first};
  row.reduction = reduction;
  return row;
}

}  // namespace

const OpRows& loss_rows() {
  static const OpRows table = {
      {"mse_loss", loss_row(&mse_loss, {}, 2, &takes_loss<2>)},
      {"mse_loss_backward", {&mse_loss_backward, {}, {3}, &takes_gradient_of_loss}},
      {"smooth_l1_loss", with_numbers(loss_row(&smooth_l1_loss, {3}, 2, &takes_loss<2>), &has_beta<3>)},
      {"smooth_l1_loss_backward",
       with_numbers({&smooth_l1_loss_backward, {4}, {3}, &takes_gradient_of_loss}, &has_beta<4>)},
      {"huber_loss", with_numbers(loss_row(&huber_loss, {3}, 2, &takes_loss<2>), &has_delta<3>)},
      {"huber_loss_backward", with_numbers({&huber_loss_backward, {4}, {3}, &takes_gradient_of_loss}, &has_delta<4>)},
      {"binary_cross_entropy_backward", {&binary_cross_entropy_backward, {}, {4}, &takes_gradient_of_loss}},
      {"binary_cross_entropy_with_logits", loss_row(&binary_cross_entropy_with_logits, {}, 4, &takes_loss<4>)},
      {"nll_loss_backward", {&nll_loss_backward, {}, {4, 5}, &has_rows_of_classes, &of_classes, {0, 2}}},
  };
  return table;
}

}  // namespace lockstep::dynamic
