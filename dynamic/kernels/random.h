// PyTorch's in-place samplers on dense CPU tensors: same values, same generator state afterwards, several times faster.
// Each returns whether it has done the call. If not, nothing has happened and PyTorch's own kernel is to be called: for
// arguments that eager refuses, tensors that are not plain, cases where eager draws otherwise (random_check.h).
// As kernels below autograd: versions are not bumped. The generator's mutex is taken, as eager takes it.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace lockstep::dynamic {

using MaybeGenerator = std::optional<at::Generator>;  // none: the default CPU generator

// float32, float64, bfloat16, float16, bool and signed or 8-bit integers.
bool try_bernoulli_(const at::Tensor& self, double p, const MaybeGenerator& generator);
// p: float32 or float64 with self's sizes, both contiguous.
bool try_bernoulli_(const at::Tensor& self, const at::Tensor& p, const MaybeGenerator& generator);
bool try_uniform_(const at::Tensor& self, double from, double to, const MaybeGenerator& generator);
// Contiguous, 16 elements or more: where eager transforms groups of 16 and keeps no sample for the next call.
bool try_normal_(const at::Tensor& self, double mean, double std, const MaybeGenerator& generator);
bool try_random_(const at::Tensor& self, const MaybeGenerator& generator);
// In [from, to); floating types as long as they hold both bounds exactly.
bool try_random_(const at::Tensor& self, int64_t from, int64_t to, const MaybeGenerator& generator);

// The draws of bernoulli_(p) on `count` elements of a type, one bit an element: element i is bit i % 8 of bits[i / 8].
bool generate_bernoulli_mask(c10::ScalarType type, const MaybeGenerator& generator, double p, int64_t count, uint8_t* bits);

}  // namespace lockstep::dynamic
