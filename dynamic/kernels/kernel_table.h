// Our kernels by schema, for whoever runs ops through a stack: one row an op, in one table a topic.
#pragma once

#include <ATen/core/stack.h>

#include <span>

#include "graph/op_info.h"

namespace lockstep::dynamic {

// Arguments on top of the stack. True: they are replaced by the results, as callBoxed leaves them. False: nothing has
// happened, call PyTorch's kernel. Works below autograd.
using OwnKernel = bool (*)(torch::jit::Stack& stack);

struct OwnKernelRow {
  const char* name;
  const char* overload;
  OwnKernel kernel;
};

// Same bits and same generator state as PyTorch's; calls no op.
std::span<const OwnKernelRow> random_kernels();
// Within float32's accuracy.
std::span<const OwnKernelRow> measured_kernels();

// Null if there is none.
OwnKernel find_own_kernel(const graph::OpInfo& op);

inline bool run_own_kernel(const graph::OpInfo& op, torch::jit::Stack& stack) {
  const OwnKernel kernel = find_own_kernel(op);
  return kernel && kernel(stack);
}

}  // namespace lockstep::dynamic
