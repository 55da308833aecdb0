// Kernels of our own, by op. They run where numerics is not strict.
#pragma once

#include <ATen/core/stack.h>

#include "graph/op_info.h"

namespace lockstep::dynamic {

// Works on a boxed stack. False: nothing was touched, PyTorch's own kernel is to run.
using OwnKernel = bool (*)(torch::jit::Stack& stack);

// Null where PyTorch's own kernel always runs.
OwnKernel find_own_kernel(const graph::OpInfo& op);

inline bool run_own_kernel(const graph::OpInfo& op, torch::jit::Stack& stack) {
  const OwnKernel kernel = find_own_kernel(op);
  return kernel && kernel(stack);
}

}  // namespace lockstep::dynamic
