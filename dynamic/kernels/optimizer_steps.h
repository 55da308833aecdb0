// The step of an optimizer for all of its parameters in one parallel loop, each value read and written once. PyTorch's
// fused kernels begin a parallel loop for each parameter, however small, and round otherwise than its loops over single
// parameters, which these follow.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <initializer_list>
#include <vector>

namespace lockstep::dynamic {

// What one step takes: for each parameter its gradient and the same number of states, each list as long as the others.
struct StepTensors {
  std::vector<at::Tensor> parameters, gradients;
  std::vector<std::vector<at::Tensor>> states;  // as large as the parameters: moments, buffers
  std::vector<at::Tensor> counts;               // of steps, one number each; none where the optimizer does not count
};

// How tensors that share memory are known: by their storages, if no two of these share any, or by addresses.
enum class SharedBy { kStorage, kAddress };
// Whether the kernels below take them: float32 in plain memory, all tensors of a parameter laid out alike and without
// holes, and none of those that are written overlapping another. Looks at no values: by storage, placeholders will do.
bool fit_one_step(const StepTensors& tensors, SharedBy shared_by);
// Whether the loop's numbers are those of the kernels: it raises where one does not fit float32, or nothing is divided by.
bool has_usual_rates(double rate, double weight_decay, std::initializer_list<double> below_one = {});

// For the kernel table: aten::_fused_adam_ and its kin, with numbers as rates; and of RMSprop, for which PyTorch has none,
// lockstep::_fused_rmsprop_ (optimizer_ops.cpp).
bool try_adam_step(torch::jit::Stack& stack);
bool try_adamw_step(torch::jit::Stack& stack);
bool try_sgd_step(torch::jit::Stack& stack);
bool try_adagrad_step(torch::jit::Stack& stack);
bool try_rmsprop_step(torch::jit::Stack& stack);
// aten::_foreach_add_.Scalar on float32 tensors of one value: the counts of steps. PyTorch's bits.
bool try_count_steps(torch::jit::Stack& stack);

}  // namespace lockstep::dynamic
