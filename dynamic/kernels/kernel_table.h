// Our kernels by schema, for whoever runs ops through a stack: one row an op, in one table a topic.
#pragma once

#include <ATen/core/stack.h>

#include <span>

#include "dynamic/kernels/map_order.h"
#include "graph/op_info.h"

namespace lockstep::dynamic {

// Arguments on top of the stack. True: they are replaced by the results, as callBoxed leaves them. False: nothing has
// happened, call PyTorch's kernel. Works below autograd.
using OwnKernel = bool (*)(torch::jit::Stack& stack);
// In any order: maps that are contiguous for everybody else may come and go with their channels innermost.
using OwnMapKernel = bool (*)(torch::jit::Stack& stack, bool in_any_order);

struct OwnKernelRow {
  const char* name;
  const char* overload;
  OwnKernel kernel;
  OwnMapKernel map_kernel = nullptr;
  // PyTorch's kernel gives other values where the first map has its channels innermost, and the others have not: that of
  // batch norm takes (1, C, H, W) with strides (C, 1, ...) for contiguous, that of group norm does not look. What eager
  // computes is what is wanted.
  bool wants_first_contiguous = false;

  bool run(torch::jit::Stack& stack, bool in_any_order = false) const {
    return map_kernel ? map_kernel(stack, in_any_order) : kernel(stack);
  }
};

// Same bits and same generator state as PyTorch's; calls no op.
std::span<const OwnKernelRow> random_kernels();
// Same bits as PyTorch's: they move values, or round each once.
std::span<const OwnKernelRow> exact_kernels();
// Within float32's accuracy.
std::span<const OwnKernelRow> measured_kernels();

// What lockstep/optimizers.py asks for in place of a loop over single parameters: they round as that loop does, which
// PyTorch's kernels for these ops do not. So they run wherever these ops do, where a call is recorded, too.
std::span<const OwnKernelRow> joined_kernels();

// Null if there is none.
const OwnKernelRow* find_own_kernel(const graph::OpInfo& op);
bool is_measured(const graph::OpInfo& op);  // it is one of measured_kernels()
bool multiplies(const graph::OpInfo& op);  // nearly all it does: of few bits perhaps by way of float32 (by_float32.h)
bool is_product(const graph::OpInfo& op);  // ... which is a product of matrices, and nothing beside
// Those that are joined alone; with other values below the arguments.
bool try_run_joined(const graph::OpInfo& op, torch::jit::Stack& stack);
MapOrder map_order_of(const graph::OpInfo& op);
// Whether the last bits may be others than PyTorch's: a kernel of ours, or sums in the order that maps happen to have.
bool may_round_otherwise(const graph::OpInfo& op);
// Whether writes raise its version: those of inference tensors do not, unless `.data` made one of an ordinary tensor.
inline bool counts_versions(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->version_counter().enabled();
}

}  // namespace lockstep::dynamic
