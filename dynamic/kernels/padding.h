// A tensor inside of a larger one that holds a constant otherwise, written once: PyTorch fills all of it first.
#pragma once

#include <ATen/core/stack.h>

namespace lockstep::dynamic {

// For the kernel table: the bits are PyTorch's. Any type of a whole number of bytes.
bool try_constant_pad(torch::jit::Stack& stack);
bool try_slice_backward(torch::jit::Stack& stack);
bool try_select_backward(torch::jit::Stack& stack);

// total += what aten::select_backward or aten::slice_backward makes of the arguments, without making it: of a loop over T
// steps, each would write, and add, as much as all steps together. The bits are those of the sum: -0.0 + 0.0 is 0.0, so
// that all of a total is gone over unless `has_no_minus_zero`. `total` is contiguous, of the type of the gradient.
enum class PartKind { kSelection, kSlice };
struct PartSum {
  bool is_done = false;  // else nothing was touched
  bool has_no_minus_zero = false;  // the total, now
};
PartSum try_add_part(PartKind kind, const torch::jit::Stack& arguments, const at::Tensor& total, bool has_no_minus_zero);

}  // namespace lockstep::dynamic
