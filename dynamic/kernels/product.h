// Matrix products by the way that measures fastest: MKL, as eager does them, oneDNN, or loops of our own.
#pragma once

#include <ATen/core/stack.h>

#include "dynamic/kernels/flag_scope.h"

namespace lockstep::dynamic {

// While it lives, factors may be rounded to bfloat16 on this thread, and what comes out as well (numerics="fast").
using RoundedProductsScope = FlagScope<struct RoundedProducts>;

// Whether float32 is multiplied as it is: nobody asked for less. Of all that PyTorch may be told, what its products on the
// CPU go by.
bool multiplies_in_float32();

// Whether the processor multiplies pairs of bfloat16.
bool has_bfloat16_products();

// aten::mm, aten::addmm and aten::bmm on a boxed stack. False: nothing was touched, PyTorch's own kernel is to run.
bool try_mm(torch::jit::Stack& stack);
bool try_addmm(torch::jit::Stack& stack);
bool try_bmm(torch::jit::Stack& stack);

constexpr int64_t kSmallestProduct = 1 << 18;  // multiplications; below it the call itself counts
// total += left @ right, with the bits of the product and the sum one after the other, and `left @ right` by the way that
// is known to be the fastest. False: nothing was touched; there is no such way, or none is known yet.
bool try_add_mm(const at::Tensor& total, const at::Tensor& left, const at::Tensor& right);

}  // namespace lockstep::dynamic
