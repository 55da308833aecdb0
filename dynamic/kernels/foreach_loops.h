// Many tensors in one parallel loop: PyTorch's kernels go through them one by one, norms on one thread each. The clipping
// of gradients is made of these.
#pragma once

#include <ATen/core/stack.h>

namespace lockstep::dynamic {

// For the kernel table. The same bits for any number of threads.
bool try_foreach_norm(torch::jit::Stack& stack);   // 2-norms
bool try_foreach_scale(torch::jit::Stack& stack);  // in place, by a number that is a tensor; PyTorch's bits

}  // namespace lockstep::dynamic
