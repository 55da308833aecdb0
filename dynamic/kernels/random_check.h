// Whether PyTorch, as built and on this processor, draws what random_fill.h draws: found by trying both on generators
// of our own at the first use of a sampler for a type. It may not: with MKL on an Intel processor bernoulli_ takes
// another way, and ATEN_CPU_CAPABILITY chooses other kernels.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace lockstep::dynamic {

enum class Sampler : uint8_t { kBernoulli, kBernoulliEach, kUniform, kNormal, kRandom, kRandomRange, kCount };

// kFused: with x * span + from rounded once, which only uniform_ distinguishes.
enum class Agreement : uint8_t { kUnknown, kDiffers, kAgrees, kAgreesFused };

// Values and resulting state, bit by bit. Any thread; the answer is that of the first use for the whole process.
Agreement agreement_with_eager(Sampler sampler, c10::ScalarType type);

}  // namespace lockstep::dynamic
