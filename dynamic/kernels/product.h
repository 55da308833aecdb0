// Matrix products by the way that measures fastest: MKL, as eager does them, oneDNN, or loops of our own.
#pragma once

#include <ATen/core/stack.h>

namespace lockstep::dynamic {

// aten::mm, aten::addmm and aten::bmm on a boxed stack. False: nothing was touched, PyTorch's own kernel is to run.
bool try_mm(torch::jit::Stack& stack);
bool try_addmm(torch::jit::Stack& stack);
bool try_bmm(torch::jit::Stack& stack);

}  // namespace lockstep::dynamic
