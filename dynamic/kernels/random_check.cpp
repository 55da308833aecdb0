#include "dynamic/kernels/random_check.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/bernoulli_cpu_dispatch.h>
#include <ATen/ops/normal_cpu_dispatch.h>
#include <ATen/ops/random_cpu_dispatch.h>
#include <ATen/ops/uniform_cpu_dispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "dynamic/kernels/normal_fill.h"
#include "dynamic/kernels/random_fill.h"

namespace lockstep::dynamic {
namespace {

using at::CPUGeneratorImpl;
using at::Generator;
using at::Tensor;
using c10::ScalarType;

// Within groups of 16 and across blocks of 624 words. The longest makes a difference in one of ten thousand last bits
// show.
constexpr int64_t kSizes[] = {1, 15, 16, 17, 700, 5000, 20000};

Tensor empty(int64_t size, ScalarType type) { return Tensor(at::detail::empty_cpu({size}, type)); }

bool same_bytes(const at::TensorBase& a, const at::TensorBase& b) {
  return a.nbytes() == b.nbytes() && std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

bool same_state(const Generator& a, const Generator& b) {
  return same_bytes(Tensor::wrap_tensor_impl(a.unsafeGetGeneratorImpl()->get_state()),
                    Tensor::wrap_tensor_impl(b.unsafeGetGeneratorImpl()->get_state()));
}

Generator generator_within_block(int64_t drawn) {
  Generator generator = at::detail::createCPUGenerator(1234567 + drawn);
  for (int64_t i = 0; i < drawn; ++i) generator.get<CPUGeneratorImpl>()->random();
  return generator;
}

// own(tensor, generator impl), eager(tensor, generator)
template <typename Own, typename Eager>
bool agree(ScalarType type, int64_t smallest, Own own, Eager eager) {
  for (const int64_t size : kSizes) {
    if (size < smallest) continue;
    Tensor ours = empty(size, type), theirs = empty(size, type);
    Generator our_generator = generator_within_block(size % 7), their_generator = generator_within_block(size % 7);
    own(ours, *our_generator.get<CPUGeneratorImpl>());
    eager(theirs, their_generator);
    if (!same_bytes(ours, theirs) || !same_state(our_generator, their_generator)) return false;
  }
  return true;
}

Agreement plain(bool agrees) { return agrees ? Agreement::kAgrees : Agreement::kDiffers; }

Agreement check_bernoulli(ScalarType type) {
  bool agrees = true;
  for (const double p : {0.1, 0.5, 0.9, 1.0})
    agrees = agrees && agree(
                           type, 1, [&](const Tensor& t, CPUGeneratorImpl& g) { fill_bernoulli(t, p, g); },
                           [&](Tensor& t, const Generator& g) { at::cpu::bernoulli_(t, p, g); });
  return plain(agrees);
}

Agreement check_bernoulli_each(ScalarType type) {
  bool agrees = true;
  for (const auto p_type : {ScalarType::Float, ScalarType::Double}) {
    const auto p_like = [&](const Tensor& t) {
      Tensor p = empty(t.numel(), p_type);
      at::cpu::uniform_(p, 0, 1, generator_within_block(0));
      return p;
    };
    agrees = agrees && agree(
                           type, 1, [&](const Tensor& t, CPUGeneratorImpl& g) { fill_bernoulli(t, p_like(t), g); },
                           [&](Tensor& t, const Generator& g) { at::cpu::bernoulli_(t, p_like(t), g); });
  }
  return plain(agrees);
}

// One or two roundings differ where the span is no power of two.
bool uniform_agrees(ScalarType type, bool is_fused) {
  bool agrees = true;
  for (const auto& [from, to] : {std::pair{0.0, 1.0}, std::pair{-0.3, 1.4}, std::pair{0.1, 3.0}})
    agrees = agrees && agree(
                           type, 1,
                           [&](const Tensor& t, CPUGeneratorImpl& g) { fill_uniform(t, from, to, is_fused, g); },
                           [&](Tensor& t, const Generator& g) { at::cpu::uniform_(t, from, to, g); });
  return agrees;
}

// Rounding to half precision hides nearly all of how often float was rounded; the same expression was compiled.
Agreement check_uniform(ScalarType type) {
  const bool is_rounded = type == ScalarType::Half || type == ScalarType::BFloat16;
  const auto known = is_rounded ? agreement_with_eager(Sampler::kUniform, ScalarType::Float) : Agreement::kUnknown;
  if (known == Agreement::kDiffers) return known;
  if (known != Agreement::kAgrees && uniform_agrees(type, true)) return Agreement::kAgreesFused;
  return plain(known != Agreement::kAgreesFused && uniform_agrees(type, false));
}

Agreement check_normal(ScalarType type) {
  if (type != ScalarType::Double && !has_single_precision_normal()) return Agreement::kDiffers;
  const bool is_rounded = type == ScalarType::Half || type == ScalarType::BFloat16;
  bool agrees = !is_rounded || agreement_with_eager(Sampler::kNormal, ScalarType::Float) == Agreement::kAgrees;
  for (const auto& [mean, std] : {std::pair{0.0, 1.0}, std::pair{-1.3, 0.02}})
    agrees = agrees && agree(
                           type, 16, [&](const Tensor& t, CPUGeneratorImpl& g) { fill_normal(t, mean, std, g); },
                           [&](Tensor& t, const Generator& g) { at::cpu::normal_(t, mean, std, g); });
  return plain(agrees);
}

Agreement check_random(ScalarType type) {
  return plain(agree(
      type, 1, [](const Tensor& t, CPUGeneratorImpl& g) { fill_random(t, g); },
      [](Tensor& t, const Generator& g) { at::cpu::random_(t, g); }));
}

// Ranges of either side of 2^28, as far as the type holds them.
Agreement check_random_range(ScalarType type) {
  const bool is_wide = type == ScalarType::Long || type == ScalarType::Double || type == ScalarType::Int;
  bool agrees = true;
  for (const int64_t to : {int64_t{1}, int64_t{100}, (int64_t{1} << 28) - 1, (int64_t{1} << 28) + 5}) {
    if (to > 100 && !is_wide) continue;
    const int64_t last = type == ScalarType::Bool ? std::min<int64_t>(to, 2) : to;
    agrees = agrees && agree(
                           type, 1,
                           [&](const Tensor& t, CPUGeneratorImpl& g) { fill_random(t, 0, last, g); },
                           [&](Tensor& t, const Generator& g) { at::cpu::random_(t, 0, last, g); });
  }
  return plain(agrees);
}

Agreement check(Sampler sampler, ScalarType type) {
  // Nobody who listens to ops hears of these.
  const c10::impl::ForceDispatchKeyGuard guard({}, c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  switch (sampler) {
    case Sampler::kBernoulli: return check_bernoulli(type);
    case Sampler::kBernoulliEach: return check_bernoulli_each(type);
    case Sampler::kUniform: return check_uniform(type);
    case Sampler::kNormal: return check_normal(type);
    case Sampler::kRandom: return check_random(type);
    default: return check_random_range(type);
  }
}

}  // namespace

Agreement agreement_with_eager(Sampler sampler, ScalarType type) {
  static std::atomic<Agreement> known[static_cast<int>(Sampler::kCount)][static_cast<int>(ScalarType::NumOptions)];
  auto& entry = known[static_cast<int>(sampler)][static_cast<int>(type)];
  auto agreement = entry.load(std::memory_order_relaxed);
  if (agreement != Agreement::kUnknown) return agreement;
  // Two threads may both check: they find the same.
  agreement = check(sampler, type);
  entry.store(agreement, std::memory_order_relaxed);
  return agreement;
}

}  // namespace lockstep::dynamic
