// Group norm and its gradients, in one reading of the maps for what is summed up and one for what comes out. PyTorch reads
// channels that are innermost with strides.
#pragma once

#include <ATen/core/stack.h>

namespace lockstep::dynamic {

// For the kernel table: see OwnMapKernel. The same bits for any number of threads.
bool try_group_norm(torch::jit::Stack& stack, bool in_any_order = false);
bool try_group_norm_backward(torch::jit::Stack& stack, bool in_any_order = false);

}  // namespace lockstep::dynamic
