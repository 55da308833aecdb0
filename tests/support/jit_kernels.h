// Kernels for tests: calls over ATen tensors, comparison of bits.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "dynamic/jit/compiler.h"

namespace lockstep::dynamic::jit {

DType dtype_of(const at::Tensor& tensor);
c10::ScalarType scalar_type_of(DType type);

// Compiles or fails the test; null then.
std::shared_ptr<const Kernel> compile_or_fail(const KernelSpec& spec, TargetChoice choice = TargetChoice::kHost);

// The strides of a tensor that is broadcast to `sizes`.
std::vector<int64_t> strides_for(const at::Tensor& tensor, at::IntArrayRef sizes);

// Runs on the tensors' memory, one tensor a buffer.
void run_on(const Kernel& kernel, const std::vector<at::Tensor>& tensors, const std::vector<int64_t>& sizes = {},
            const std::vector<int64_t>& strides = {}, const std::vector<ScalarValue>& scalars = {});

// Equal to the bit; any nan equals any nan.
bool has_same_bits(const at::Tensor& a, const at::Tensor& b);

// A kernel of one op over contiguous operands of one size, and its result.
at::Tensor run_op(Op op, const std::vector<at::Tensor>& operands, TargetChoice choice = TargetChoice::kHost);

// Numbers of all magnitudes, with inf, nan, zeros and denormals among them if the type has them.
at::Tensor special_numbers(at::IntArrayRef sizes, c10::ScalarType type, uint64_t seed);

}  // namespace lockstep::dynamic::jit
