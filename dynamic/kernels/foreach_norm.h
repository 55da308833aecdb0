// The 2-norms of many tensors in one parallel loop: PyTorch's kernel goes through them one by one, on one thread each.
#pragma once

#include <ATen/core/stack.h>

namespace lockstep::dynamic {

// For the kernel table. The same bits for any number of threads.
bool try_foreach_norm(torch::jit::Stack& stack);

}  // namespace lockstep::dynamic
