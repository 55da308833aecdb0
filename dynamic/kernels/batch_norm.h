// Batch norm over channels in training, and its gradients: each value is read twice, three times where a channel does not
// fit the cache.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

namespace lockstep::dynamic {

// For the kernel table: see OwnMapKernel.
bool try_batch_norm(torch::jit::Stack& stack, bool in_any_order = false);
bool try_batch_norm_backward(torch::jit::Stack& stack, bool in_any_order = false);

// By channel: the results that say what was measured, and what is left to do with each value.
struct BatchNormParts {
  at::Tensor mean, inverse, factor, shift;
};
// Whether measure_batch_norm takes these arguments, and what is left rounds alike in every kernel; maps with their
// channels innermost are taken, too.
bool can_measure_batch_norm(const torch::jit::Stack& stack);
// All that a batch norm does, but the map.
BatchNormParts measure_batch_norm(const torch::jit::Stack& stack);
// The map, with the bits of try_batch_norm: (input - mean) * factor + shift, in the order of the input.
at::Tensor scale_channels(const at::Tensor& input, const at::Tensor& mean, const at::Tensor& factor,
                          const at::Tensor& shift);

}  // namespace lockstep::dynamic
