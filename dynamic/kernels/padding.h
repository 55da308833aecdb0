// A tensor inside of a larger one that holds a constant otherwise, written once: PyTorch fills all of it first.
#pragma once

#include <ATen/core/stack.h>

namespace lockstep::dynamic {

// For the kernel table: the bits are PyTorch's. Any type of a whole number of bytes.
bool try_constant_pad(torch::jit::Stack& stack);
bool try_slice_backward(torch::jit::Stack& stack);
bool try_select_backward(torch::jit::Stack& stack);

}  // namespace lockstep::dynamic
