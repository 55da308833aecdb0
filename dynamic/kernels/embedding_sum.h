// The gradient of an embedding's weights, added to a gradient that is there without being made: it has a row for each word
// there is, most of them zero.
#pragma once

#include "dynamic/kernels/padding.h"

namespace lockstep::dynamic {

// total += what aten::embedding_dense_backward makes of the arguments; see try_add_part.
PartSum try_add_embedding_gradient(const torch::jit::Stack& arguments, const at::Tensor& total, bool has_no_minus_zero);

}  // namespace lockstep::dynamic
