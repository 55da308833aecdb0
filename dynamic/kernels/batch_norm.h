// Batch norm over channels in training, and its gradients: each value is read twice, three times where a channel does not
// fit the cache.
#pragma once

#include <ATen/core/stack.h>

namespace lockstep::dynamic {

// For the kernel table: see OwnMapKernel.
bool try_batch_norm(torch::jit::Stack& stack, bool in_any_order = false);
bool try_batch_norm_backward(torch::jit::Stack& stack, bool in_any_order = false);

}  // namespace lockstep::dynamic
