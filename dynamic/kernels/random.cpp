#include "dynamic/kernels/random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Dispatch.h>

#include <limits>
#include <mutex>

#include "dynamic/kernels/random_check.h"
#include "dynamic/kernels/random_fill.h"

namespace lockstep::dynamic {
namespace {

using at::CPUGeneratorImpl;
using at::ScalarType;
using at::Tensor;

constexpr int64_t kGroup = 16;  // from here on eager's normal_ transforms groups

bool is_floating(ScalarType type) {
  return type == ScalarType::Float || type == ScalarType::Double || type == ScalarType::BFloat16 ||
         type == ScalarType::Half;
}

bool is_integer(ScalarType type) {
  return type == ScalarType::Bool || type == ScalarType::Byte || type == ScalarType::Char ||
         type == ScalarType::Short || type == ScalarType::Int || type == ScalarType::Long;
}

// A strided CPU tensor whose bits are its values. Over memory without gaps eager's iterator runs in memory order,
// however the dimensions are permuted.
bool is_plain(const Tensor& self) {
  if (!self.defined()) return false;
  const auto keys = self.key_set() - c10::autograd_dispatch_keyset_with_ADInplaceOrView -
                    c10::getAutocastRelatedKeySetFromBackend(c10::BackendComponent::CPUBit);
  return keys == c10::DispatchKeySet(c10::DispatchKey::CPU) && self.is_non_overlapping_and_dense();
}

// Borrowed; null if it is not a CPU generator.
CPUGeneratorImpl* find_generator(const MaybeGenerator& generator) {
  const auto& chosen = generator && generator->defined() ? *generator : at::detail::getDefaultCPUGenerator();
  return dynamic_cast<CPUGeneratorImpl*>(chosen.unsafeGetGeneratorImpl());
}

// Calls fill(generator, agreement) under the generator's mutex, if eager agrees. Without elements there is nothing to
// draw; the arguments were checked by then.
template <typename Fill>
bool run(Sampler sampler, ScalarType type, int64_t count, const MaybeGenerator& generator, Fill fill) {
  auto* const impl = find_generator(generator);
  if (!impl) return false;
  if (count == 0) return true;
  const auto agreement = agreement_with_eager(sampler, type);
  if (agreement == Agreement::kDiffers) return false;
  const std::lock_guard lock(impl->mutex_);
  fill(*impl, agreement);
  return true;
}

bool is_probability(double p) { return 0 <= p && p <= 1; }

template <typename Real>
bool are_probabilities(const Tensor& p) {
  const Real* const data = p.const_data_ptr<Real>();
  bool is_any_outside = false;
  for (int64_t i = 0, count = p.numel(); i < count; ++i) is_any_outside |= !(data[i] >= 0) | !(data[i] <= 1);
  return !is_any_outside;
}

template <typename T>
double largest() { return static_cast<double>(std::numeric_limits<T>::max()); }

// Bounds that uniform_ accepts. It compares in double and once more in the type it computes in.
bool is_uniform_range(ScalarType type, double from, double to) {
  double most = largest<float>();
  if (type == ScalarType::Double) most = largest<double>();
  if (type == ScalarType::BFloat16) most = largest<at::BFloat16>();
  if (type == ScalarType::Half) most = largest<at::Half>();
  const bool is_inside = from >= -most && to <= most && from <= to && to - from <= most;
  if (!is_inside || type == ScalarType::Double) return is_inside;
  return static_cast<float>(to) - static_cast<float>(from) <= std::numeric_limits<float>::max();
}

// Bounds that random_ takes as they are, without a warning.
bool is_random_range(ScalarType type, int64_t from, int64_t to) {
  if (from >= to) return false;
  bool is_held = false;
  AT_DISPATCH_ALL_TYPES_AND3(
      ScalarType::Bool, ScalarType::Half, ScalarType::BFloat16, type, "is_random_range", [&] {
        using Limits = std::numeric_limits<scalar_t>;
        if constexpr (std::is_integral_v<scalar_t>) {
          is_held = from >= static_cast<int64_t>(Limits::lowest()) && to - 1 <= static_cast<int64_t>(Limits::max());
        } else {
          constexpr int64_t kExact = int64_t{1} << Limits::digits;
          is_held = from >= -kExact && to <= kExact;
        }
      });
  return is_held;
}

}  // namespace

bool try_bernoulli_(const Tensor& self, double p, const MaybeGenerator& generator) {
  if (!is_plain(self) || !is_probability(p)) return false;
  const auto type = self.scalar_type();
  if (!is_floating(type) && !is_integer(type)) return false;
  return run(Sampler::kBernoulli, type, self.numel(), generator,
             [&](CPUGeneratorImpl& impl, Agreement) { fill_bernoulli(self, p, impl); });
}

bool try_bernoulli_(const Tensor& self, const Tensor& p, const MaybeGenerator& generator) {
  if (!is_plain(self) || !is_plain(p) || !self.is_contiguous() || !p.is_contiguous()) return false;
  if (self.sizes() != p.sizes() || self.is_alias_of(p)) return false;
  const auto type = self.scalar_type(), p_type = p.scalar_type();
  if (!is_floating(type) && !is_integer(type)) return false;
  if (p_type != ScalarType::Float && p_type != ScalarType::Double) return false;
  if (!(p_type == ScalarType::Float ? are_probabilities<float>(p) : are_probabilities<double>(p))) return false;
  return run(Sampler::kBernoulliEach, type, self.numel(), generator,
             [&](CPUGeneratorImpl& impl, Agreement) { fill_bernoulli(self, p, impl); });
}

bool try_uniform_(const Tensor& self, double from, double to, const MaybeGenerator& generator) {
  if (!is_plain(self) || !is_floating(self.scalar_type())) return false;
  const auto type = self.scalar_type();
  if (!is_uniform_range(type, from, to)) return false;
  return run(Sampler::kUniform, type, self.numel(), generator, [&](CPUGeneratorImpl& impl, Agreement agreement) {
    fill_uniform(self, from, to, agreement == Agreement::kAgreesFused, impl);
  });
}

bool try_normal_(const Tensor& self, double mean, double std, const MaybeGenerator& generator) {
  if (!is_plain(self) || !is_floating(self.scalar_type()) || !(std >= 0)) return false;
  if (!self.is_contiguous() || self.numel() < kGroup) return false;
  return run(Sampler::kNormal, self.scalar_type(), self.numel(), generator,
             [&](CPUGeneratorImpl& impl, Agreement) { fill_normal(self, mean, std, impl); });
}

bool try_random_(const Tensor& self, const MaybeGenerator& generator) {
  if (!is_plain(self)) return false;
  const auto type = self.scalar_type();
  if (!is_floating(type) && !is_integer(type)) return false;
  return run(Sampler::kRandom, type, self.numel(), generator,
             [&](CPUGeneratorImpl& impl, Agreement) { fill_random(self, impl); });
}

bool try_random_(const Tensor& self, int64_t from, int64_t to, const MaybeGenerator& generator) {
  if (!is_plain(self)) return false;
  const auto type = self.scalar_type();
  if ((!is_floating(type) && !is_integer(type)) || !is_random_range(type, from, to)) return false;
  const uint64_t range = static_cast<uint64_t>(to) - static_cast<uint64_t>(from);
  return run(Sampler::kRandomRange, type, self.numel(), generator,
             [&](CPUGeneratorImpl& impl, Agreement) { fill_random(self, from, range, impl); });
}

bool generate_bernoulli_mask(ScalarType type, const MaybeGenerator& generator, double p, int64_t count, uint8_t* bits) {
  if (!is_probability(p)) return false;
  return run(Sampler::kBernoulli, type, count, generator,
             [&](CPUGeneratorImpl& impl, Agreement) { fill_bernoulli_bits(bits, count, p, impl); });
}

}  // namespace lockstep::dynamic
