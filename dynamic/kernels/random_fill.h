// The samplers themselves: fill the memory of a dense tensor from a generator whose mutex the caller holds. No argument
// is checked here (random.h), nor whether eager does the same (random_check.h).
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/TensorBase.h>

#include <cstdint>

namespace lockstep::dynamic {

void fill_bernoulli(const at::TensorBase& self, double p, at::CPUGeneratorImpl& generator);
// p: contiguous float or double, as many elements as self.
void fill_bernoulli(const at::TensorBase& self, const at::TensorBase& p, at::CPUGeneratorImpl& generator);
// Element i is bit i % 8 of byte i / 8; the bits beyond the last are 0.
void fill_bernoulli_bits(uint8_t* bits, int64_t count, double p, at::CPUGeneratorImpl& generator);
void fill_uniform(const at::TensorBase& self, double from, double to, bool is_fused,
                  at::CPUGeneratorImpl& generator);
// At least 16 elements.
void fill_normal(const at::TensorBase& self, double mean, double std, at::CPUGeneratorImpl& generator);
// random_() without bounds, and in [from, from + range).
void fill_random(const at::TensorBase& self, at::CPUGeneratorImpl& generator);
void fill_random(const at::TensorBase& self, int64_t from, uint64_t range, at::CPUGeneratorImpl& generator);

}  // namespace lockstep::dynamic
