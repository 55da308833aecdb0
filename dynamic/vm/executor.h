// Executes one event: builds the kernel's arguments over the runner's storages, calls PyTorch's kernel, checks the
// results against what the placeholders promised and puts the data where they were promised.
#pragma once

#include <ATen/core/stack.h>

#include <atomic>

#include "dynamic/vm/event.h"

namespace lockstep::dynamic {

// The arguments of an event as a kernel wants them. `takes_hidden`: hidden maps as they lie, with channels innermost; all
// others are restored.
torch::jit::Stack build_arguments(const Event& event, bool takes_hidden = false);
// Whether the kernel gets hidden maps as they lie: it must know how to take them, and they must be whole.
bool takes_hidden(const Event& event, bool is_pointwise);
// Throws what the kernel throws. The caller has switched off autograd and the hook on this thread. `is_pointwise`: maps
// may come in any order, as long as all have the same.
void execute(Event& event, bool is_pointwise = false);
// For measuring the skeleton: kernels are replaced by nothing, results are memory as it comes.
extern std::atomic<bool> skip_kernels;

// A tensor over a storage, outside of autograd.
at::Tensor tensor_over(StorageRef storage, const graph::Layout& layout, int64_t offset);
StorageRef create_empty_storage(int64_t bytes);
// All tensors of the returned values that do not alias an argument, lists flattened.
std::vector<at::Tensor> fresh_results(const graph::OpInfo& op, const torch::jit::Stack& results,
                                      std::vector<int>* list_sizes = nullptr);
// The result of a kernel of ours, which may have put it elsewhere, with the strides that PyTorch's gives it. Where these are
// no strides of it at all, as it is.
at::Tensor as_promised(const at::Tensor& result, const graph::Layout& promised);

}  // namespace lockstep::dynamic
