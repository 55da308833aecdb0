// Products, convolutions and attention of bfloat16 by way of float32, where the processor cannot multiply pairs of
// bfloat16: what PyTorch has there goes one by one. Sums are float32 and are rounded once, in either.
#pragma once

#include <ATen/core/stack.h>

#include "dynamic/kernels/kernel_table.h"
#include "graph/op_info.h"

namespace lockstep::dynamic {

// As an OwnKernel (kernel_table.h), for one of the ops that multiply. `row`: what there is for float32, or null.
bool try_by_float32(const graph::OpInfo& op, const OwnKernelRow* row, torch::jit::Stack& stack);

}  // namespace lockstep::dynamic
