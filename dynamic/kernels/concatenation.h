// Small tensors one beside the other: PyTorch's kernels take longer to begin than to copy.
#pragma once

#include <ATen/core/stack.h>

namespace lockstep::dynamic {

// For the kernel table: the bits are PyTorch's. Contiguous tensors of one type, which are not large together.
bool try_cat(torch::jit::Stack& stack);
bool try_stack(torch::jit::Stack& stack);

}  // namespace lockstep::dynamic
