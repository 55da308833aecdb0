// RMSprop's step over all parameters as an op, which PyTorch lacks. Its kernel here is the loop of torch.optim over one
// parameter after the other, for tensors that the one in optimizer_steps.cpp does not take.
#include <ATen/ops/add.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/sqrt.h>
#include <torch/library.h>

namespace lockstep::dynamic {
namespace {

void rmsprop_one_by_one(at::TensorList parameters, at::TensorList gradients, at::TensorList squares, at::TensorList means,
                        at::TensorList buffers, double rate, double alpha, double eps, double weight_decay, double momentum,
                        bool maximize) {
  const auto fits = [&](at::TensorList list) { return list.size() == parameters.size(); };
  TORCH_CHECK(fits(gradients) && fits(squares) && (means.empty() || fits(means)) && (buffers.empty() || fits(buffers)),
              "lockstep::_fused_rmsprop_: lists of ", parameters.size(), " parameters, ", gradients.size(), " grads, ",
              squares.size(), " square_avgs, ", means.size(), " grad_avgs and ", buffers.size(),
              " momentum_buffers; want one of each a parameter, or no grad_avgs or momentum_buffers at all");
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& parameter = parameters[i];
    at::Tensor gradient = maximize ? at::neg(gradients[i]) : gradients[i];
    if (weight_decay != 0) gradient = at::add(gradient, parameter, weight_decay);
    squares[i].mul_(alpha).addcmul_(gradient, gradient, 1 - alpha);
    at::Tensor root;
    if (means.empty()) {
      root = at::sqrt(squares[i]);
    } else {
      means[i].lerp_(gradient, 1 - alpha);
      root = at::addcmul(squares[i], means[i], means[i], -1).sqrt_();
    }
    root.add_(eps);
    if (buffers.empty()) {
      parameter.addcdiv_(gradient, root, -rate);
    } else {
      buffers[i].mul_(momentum).addcdiv_(gradient, root);
      parameter.add_(buffers[i], -rate);
    }
  }
}

// `grad_avgs`: none where squares are not centered; `momentum_buffers`: none without momentum.
TORCH_LIBRARY_FRAGMENT(lockstep, library) {
  library.def(
      "_fused_rmsprop_(Tensor(a!)[] self, Tensor[] grads, Tensor(b!)[] square_avgs, Tensor(c!)[] grad_avgs, "
      "Tensor(d!)[] momentum_buffers, float lr, float alpha, float eps, float weight_decay, float momentum, "
      "bool maximize) -> ()");
}
TORCH_LIBRARY_IMPL(lockstep, CPU, library) { library.impl("_fused_rmsprop_", &rmsprop_one_by_one); }

}  // namespace
}  // namespace lockstep::dynamic
