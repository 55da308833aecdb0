// Variances, deviations and euclidean norms over dims that lie beside each other. PyTorch's kernels take the values one by
// one there, and a variance by Welford's recurrence; these go over whole lines, twice where means are wanted.
#pragma once

#include <ATen/core/stack.h>

namespace lockstep::dynamic {

// For the kernel table: aten::var and aten::std with a correction, aten::linalg_vector_norm. The same bits for any number
// of threads.
bool try_variance(torch::jit::Stack& stack);
bool try_deviation(torch::jit::Stack& stack);
bool try_vector_norm(torch::jit::Stack& stack);

}  // namespace lockstep::dynamic
