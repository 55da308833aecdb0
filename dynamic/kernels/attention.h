// Scaled dot product attention and its gradients, as softmax(query @ key^T * scale + mask) @ value a few queries at a
// time, whose scores stay in the cache (Rabe and Staats 2021; Dao et al. 2022). Scores lie turned (attention_loops.h).
#pragma once

#include <ATen/core/stack.h>

namespace lockstep::dynamic {

// aten::_scaled_dot_product_flash_attention_for_cpu and its backward on a boxed stack, by our own loops or PyTorch's,
// whichever measures faster. False: nothing was touched, PyTorch's own kernel is to run.
bool try_attention(torch::jit::Stack& stack);
bool try_attention_backward(torch::jit::Stack& stack);

}  // namespace lockstep::dynamic
