// Convolutions and their gradients, by the way that measures fastest: as eager does them, with the channels innermost
// while the kernel runs, or as matrix products. Values differ from eager's in the last bits.
#pragma once

#include <ATen/core/stack.h>

namespace lockstep::dynamic {

// aten::convolution and aten::convolution_backward on a boxed stack. False: nothing was touched, PyTorch's own kernel
// is to run (other devices, types, dims or layouts; deterministic algorithms).
bool try_convolution(torch::jit::Stack& stack, bool in_any_order = false);
bool try_convolution_backward(torch::jit::Stack& stack, bool in_any_order = false);

// Of the last argument of the latter: the gradient of the bias is wanted, and not that of the weight. Whether that comes
// back, too, PyTorch's kernels for several types and numbers of threads do not agree on.
bool wants_bias_alone(const c10::IValue& mask);

}  // namespace lockstep::dynamic
