// Convolutions, attention and products of bfloat16 and float16 by way of float32, where that is faster: much of what
// PyTorch has for them goes value by value. Sums are float32 and are rounded once, in either. Products of bfloat16 are
// PyTorch's where the processor multiplies pairs of them.
#pragma once

#include <ATen/core/stack.h>

#include "dynamic/kernels/kernel_table.h"
#include "graph/op_info.h"

namespace lockstep::dynamic {

// As an OwnKernel (kernel_table.h), for one of the ops that multiply. `row`: what there is for float32, or null.
bool try_by_float32(const graph::OpInfo& op, const OwnKernelRow* row, torch::jit::Stack& stack);

}  // namespace lockstep::dynamic
