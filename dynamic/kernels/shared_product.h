// Matrix products by PyTorch's BLAS in parts of a shared loop, each part on one thread. On a board no team is woken for
// them. How they are divided depends on their sizes alone, so bits do not depend on who computes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace lockstep::dynamic {

// Whether there is a BLAS to ask, and nobody asked for products of another precision.
bool has_shared_products();
// Multiplications that make a product worth a part.
constexpr int64_t kSmallestPart = 1 << 20;

// left (rows, depth) @ right (depth, columns) + bias (columns); each factor contiguous, or its transposed is.
at::Tensor multiply_in_parts(const at::Tensor& left, const at::Tensor& right, const std::optional<at::Tensor>& bias);
// total (rows, columns), contiguous, += left @ right: each part while it is in the cache, with the bits of one after the
// other.
void add_in_parts(const at::Tensor& total, const at::Tensor& left, const at::Tensor& right);

// Whether each of (count, rows, columns) lies in dense rows or in dense columns.
bool are_dense(const at::Tensor& matrices);
// left (count, rows, depth) @ right (count, depth, columns), one by one; all of them dense.
at::Tensor multiply_all_in_parts(const at::Tensor& left, const at::Tensor& right);
// Their sum: (rows, columns).
at::Tensor sum_products_in_parts(const at::Tensor& left, const at::Tensor& right);

}  // namespace lockstep::dynamic
