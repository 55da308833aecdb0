// Source of every distribution: PyTorch's ATen/core/DistributionsHelper.h and ATen/native/cpu/DistributionTemplates.h.
#include "dynamic/kernels/random_fill.h"

#include <ATen/Dispatch.h>

#include <cmath>
#include <limits>

#include "dynamic/kernels/mt19937_block.h"
#include "dynamic/kernels/normal_fill.h"
#include "dynamic/kernels/vector_loops.h"

namespace lockstep::dynamic {
namespace {

using at::CPUGeneratorImpl;
using at::ScalarType;
using at::TensorBase;

constexpr int64_t kGroup = 16;                        // of the Box-Muller transform
constexpr int64_t kLongest = 4 * WordSource::kBlock;  // elements that draw_elements hands out at once
constexpr uint64_t kPairFrom = 1ULL << 28;            // a range from here on takes two words an element
constexpr float kNever = std::numeric_limits<float>::quiet_NaN();

// consume(words, first, count) with a source of its own; perhaps by two threads at a time.
template <typename Consume>
void draw(CPUGeneratorImpl& generator, int64_t count, int64_t words_per_element, const Consume& consume) {
  WordSource source(generator, count * words_per_element);
  draw_elements(source, count, words_per_element, consume);
}

template <typename T>
T* data_of(const TensorBase& self) { return static_cast<T*>(self.mutable_data_ptr()); }

// u * 2^-53 < p is u < ceil(p * 2^53): the product is exact.
int64_t threshold_of(double p) { return static_cast<int64_t>(std::ceil(p * 0x1p53)); }

template <typename Out>
void bernoulli_as(const TensorBase& self, double p, Out one, CPUGeneratorImpl& generator) {
  const auto loop = vector_loops().bernoulli<Out>();
  const int64_t threshold = threshold_of(p);
  Out* out = data_of<Out>(self);
  draw(generator, self.numel(), 2, [&](const uint32_t* words, int64_t first, int64_t count) {
    loop(words, count, threshold, one, out + first);
  });
}

uint64_t pair_at(const uint32_t* words, int64_t i) { return uint64_t{words[2 * i]} << 32 | words[2 * i + 1]; }

constexpr UniformRange<float> kUnitFloat{0, 1, kNever, false};
constexpr UniformRange<double> kUnitDouble{0, 1, kNever, false};

// A p for each element: 53 bits against a double, but 24 bits of one word against a float.
template <typename Out, typename Real>
void bernoulli_each(const TensorBase& self, const TensorBase& p, Out one, CPUGeneratorImpl& generator,
                    void (*uniform)(const uint32_t*, int64_t, const UniformRange<Real>&, Real*),
                    const UniformRange<Real>& unit) {
  Out* out = data_of<Out>(self);
  const Real* limits = p.const_data_ptr<Real>();
  draw(generator, self.numel(), sizeof(Real) / 4, [&](const uint32_t* words, int64_t first, int64_t count) {
    Real values[kLongest];
    uniform(words, count, unit, values);
    for (int64_t i = 0; i < count; ++i) out[first + i] = values[i] < limits[first + i] ? one : Out{0};
  });
}

template <typename Out>
void bernoulli_each(const TensorBase& self, const TensorBase& p, Out one, CPUGeneratorImpl& generator) {
  const auto& loops = vector_loops();
  if (p.scalar_type() == ScalarType::Double)
    bernoulli_each<Out, double>(self, p, one, generator, loops.uniform_double, kUnitDouble);
  else
    bernoulli_each<Out, float>(self, p, one, generator, loops.uniform_float, kUnitFloat);
}

// Calls use(one), where one is 1 in the bits of the type, as an unsigned integer of its size.
template <typename Use>
void with_one(ScalarType type, Use use) {
  switch (type) {
    case ScalarType::Float: return use(uint32_t{0x3f800000});
    case ScalarType::Double: return use(uint64_t{0x3ff} << 52);
    case ScalarType::BFloat16: return use(uint16_t{0x3f80});
    case ScalarType::Half: return use(uint16_t{0x3c00});
    case ScalarType::Long: return use(uint64_t{1});
    case ScalarType::Int: return use(uint32_t{1});
    case ScalarType::Short: return use(uint16_t{1});
    default: return use(uint8_t{1});
  }
}

// As c10::BFloat16 rounds (to nearest, ties to even), without its branch for what is no number.
at::BFloat16 rounded(float value, at::BFloat16) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return {static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16), at::BFloat16::from_bits()};
}

at::Half rounded(float value, at::Half) { return static_cast<at::Half>(value); }

template <typename Out>
void uniform_rounded(const TensorBase& self, double from, double to, bool is_fused, CPUGeneratorImpl& generator) {
  Out* out = data_of<Out>(self);
  const auto low = static_cast<float>(from);
  const UniformRange<float> range{low, static_cast<float>(to) - low, kNever, is_fused};
  const auto lowest = static_cast<Out>(low), upper = static_cast<Out>(static_cast<float>(to));
  draw(generator, self.numel(), 1, [&](const uint32_t* words, int64_t first, int64_t count) {
    float exact[kLongest];
    vector_loops().uniform_float(words, count, range, exact);
    for (int64_t i = 0; i < count; ++i) {
      const Out value = rounded(exact[i], Out{});
      out[first + i] = static_cast<float>(value) == static_cast<float>(upper) ? lowest : value;
    }
  });
}

template <typename Real>
void uniform_exact(const TensorBase& self, double from, double to, bool is_fused, CPUGeneratorImpl& generator,
                   void (*loop)(const uint32_t*, int64_t, const UniformRange<Real>&, Real*)) {
  Real* out = data_of<Real>(self);
  const auto low = static_cast<Real>(from), high = static_cast<Real>(to);
  const UniformRange<Real> range{low, high - low, high, is_fused};
  draw(generator, self.numel(), sizeof(Real) / 4, [&](const uint32_t* words, int64_t first, int64_t count) {
    loop(words, count, range, out + first);
  });
}

// Where the size is no multiple of 16, the last 16 are drawn anew. Eager has drawn the incomplete group before, too.
template <typename Real>
void normal_exact(const TensorBase& self, double mean, double std, CPUGeneratorImpl& generator,
                  void (*uniform)(const uint32_t*, int64_t, const UniformRange<Real>&, Real*),
                  const UniformRange<Real>& unit) {
  constexpr int64_t kWords = sizeof(Real) / 4;
  Real* out = data_of<Real>(self);
  const int64_t size = self.numel(), rest = size % kGroup;
  const auto transform = [&](const uint32_t* words, int64_t first, int64_t group_count) {
    Real* const group = out + first * kGroup;
    uniform(words, group_count * kGroup, unit, group);
    transform_to_normal(group, group_count * kGroup, static_cast<Real>(mean), static_cast<Real>(std));
  };
  WordSource source(generator, (size + kGroup) * kWords);
  draw_elements(source, size / kGroup, kGroup * kWords, transform);
  if (!rest) return;
  uint32_t words[2 * kGroup * kWords];
  source.take(words, (rest + kGroup) * kWords);
  out += size - kGroup;
  transform(words + rest * kWords, 0, 1);
}

// Half precision: computed in float, and an incomplete group is drawn once only.
template <typename Out>
void normal_rounded(const TensorBase& self, double mean, double std, CPUGeneratorImpl& generator) {
  Out* out = data_of<Out>(self);
  const int64_t size = self.numel();
  const auto transform = [&](const uint32_t* words, int64_t first, int64_t group_count) {
    float exact[kLongest];
    const int64_t count = group_count * kGroup;
    vector_loops().uniform_float(words, count, kUnitFloat, exact);
    transform_to_normal(exact, count, static_cast<float>(mean), static_cast<float>(std));
    for (int64_t i = 0; i < count; ++i) out[first * kGroup + i] = rounded(exact[i], Out{});
  };
  WordSource source(generator, size + kGroup);
  draw_elements(source, size / kGroup, kGroup, transform);
  if (size % kGroup == 0) return;
  out += size - kGroup;
  draw_elements(source, 1, kGroup, transform);
}

template <typename Out>
void random_masked(const TensorBase& self, uint32_t mask, CPUGeneratorImpl& generator) {
  Out* out = data_of<Out>(self);
  draw(generator, self.numel(), 1, [&](const uint32_t* words, int64_t first, int64_t count) {
    for (int64_t i = 0; i < count; ++i) out[first + i] = static_cast<Out>(words[i] & mask);
  });
}

template <typename Out>
void random_of_pairs(const TensorBase& self, int64_t from, uint64_t range, CPUGeneratorImpl& generator) {
  Out* out = data_of<Out>(self);
  draw(generator, self.numel(), 2, [&](const uint32_t* words, int64_t first, int64_t count) {
    for (int64_t i = 0; i < count; ++i)
      out[first + i] = static_cast<Out>(static_cast<int64_t>(pair_at(words, i) % range + from));
  });
}

// A range below 2^28. Through int64_t, or for a rounded type through float, as eager converts.
template <typename Out>
void random_of_words(const TensorBase& self, int64_t from, uint64_t range, CPUGeneratorImpl& generator) {
  Out* out = data_of<Out>(self);
  const auto divisor = static_cast<double>(range), base = static_cast<double>(from);
  const auto& loops = vector_loops();
  draw(generator, self.numel(), 1, [&](const uint32_t* words, int64_t first, int64_t count) {
    if constexpr (std::is_same_v<Out, double>) {
      loops.remainder_double(words, count, divisor, base, out + first);
    } else if constexpr (std::is_same_v<Out, float>) {
      loops.remainder_float(words, count, divisor, base, out + first);
    } else if constexpr (std::is_same_v<Out, int64_t>) {
      loops.remainder_int(words, count, divisor, from, out + first);
    } else if constexpr (std::is_integral_v<Out>) {
      int64_t exact[kLongest];
      loops.remainder_int(words, count, divisor, from, exact);
      for (int64_t i = 0; i < count; ++i) out[first + i] = static_cast<Out>(exact[i]);
    } else {
      float exact[kLongest];
      loops.remainder_float(words, count, divisor, base, exact);
      for (int64_t i = 0; i < count; ++i) out[first + i] = static_cast<Out>(exact[i]);
    }
  });
}

}  // namespace

void fill_bernoulli(const TensorBase& self, double p, CPUGeneratorImpl& generator) {
  with_one(self.scalar_type(), [&](auto one) { bernoulli_as(self, p, one, generator); });
}

void fill_bernoulli(const TensorBase& self, const TensorBase& p, CPUGeneratorImpl& generator) {
  with_one(self.scalar_type(), [&](auto one) { bernoulli_each(self, p, one, generator); });
}

void fill_bernoulli_bits(uint8_t* bits, int64_t count, double p, CPUGeneratorImpl& generator) {
  const auto& loops = vector_loops();
  const int64_t threshold = threshold_of(p);
  WordSource source(generator, 2 * count);
  int64_t rest = count;  // of which nothing is drawn in blocks
  if (source.has_blocks()) {
    source.leave_raw();
    draw_elements(source, count / 8, 16, [&](const uint32_t* words, int64_t first, int64_t byte_count) {
      loops.bernoulli_bits(words, byte_count, threshold, bits + first);
    });
    rest = count % 8;
  }
  for (; rest > 0; rest -= std::min<int64_t>(8, rest)) {
    uint32_t words[16];
    uint8_t bytes[8];
    const int64_t width = std::min<int64_t>(8, rest);
    source.take(words, 2 * width);
    if (source.has_blocks()) loops.temper(words, 2 * width, words);
    loops.bernoulli_8(words, width, threshold, 1, bytes);
    uint8_t& byte = bits[(count - rest) / 8];
    byte = 0;
    for (int64_t i = 0; i < width; ++i) byte |= bytes[i] << i;
  }
}

void fill_uniform(const TensorBase& self, double from, double to, bool is_fused, CPUGeneratorImpl& generator) {
  const auto& loops = vector_loops();
  switch (self.scalar_type()) {
    case ScalarType::Float: return uniform_exact<float>(self, from, to, is_fused, generator, loops.uniform_float);
    case ScalarType::Double: return uniform_exact<double>(self, from, to, is_fused, generator, loops.uniform_double);
    case ScalarType::BFloat16: return uniform_rounded<at::BFloat16>(self, from, to, is_fused, generator);
    default: return uniform_rounded<at::Half>(self, from, to, is_fused, generator);
  }
}

void fill_normal(const TensorBase& self, double mean, double std, CPUGeneratorImpl& generator) {
  const auto& loops = vector_loops();
  switch (self.scalar_type()) {
    case ScalarType::Float:
      return normal_exact<float>(self, mean, std, generator, loops.uniform_float, kUnitFloat);
    case ScalarType::Double:
      return normal_exact<double>(self, mean, std, generator, loops.uniform_double, kUnitDouble);
    case ScalarType::BFloat16: return normal_rounded<at::BFloat16>(self, mean, std, generator);
    default: return normal_rounded<at::Half>(self, mean, std, generator);
  }
}

void fill_random(const TensorBase& self, CPUGeneratorImpl& generator) {
  switch (self.scalar_type()) {
    case ScalarType::Bool: return random_masked<bool>(self, 1, generator);
    case ScalarType::Byte: return random_masked<uint8_t>(self, 0xff, generator);
    case ScalarType::Char: return random_masked<int8_t>(self, 0x7f, generator);
    case ScalarType::Short: return random_masked<int16_t>(self, 0x7fff, generator);
    case ScalarType::Int: return random_masked<int32_t>(self, 0x7fffffff, generator);
    case ScalarType::Long: return random_of_pairs<int64_t>(self, 0, 1ULL << 63, generator);
    case ScalarType::Double: return random_of_pairs<double>(self, 0, (1ULL << 53) + 1, generator);
    case ScalarType::Float: return random_of_words<float>(self, 0, (1ULL << 24) + 1, generator);
    case ScalarType::BFloat16: return random_of_words<at::BFloat16>(self, 0, (1ULL << 8) + 1, generator);
    default: return random_of_words<at::Half>(self, 0, (1ULL << 11) + 1, generator);
  }
}

void fill_random(const TensorBase& self, int64_t from, uint64_t range, CPUGeneratorImpl& generator) {
  AT_DISPATCH_ALL_TYPES_AND3(ScalarType::Bool, ScalarType::Half, ScalarType::BFloat16, self.scalar_type(),
                             "fill_random", [&] {
                               if (range >= kPairFrom)
                                 random_of_pairs<scalar_t>(self, from, range, generator);
                               else
                                 random_of_words<scalar_t>(self, from, range, generator);
                             });
}

}  // namespace lockstep::dynamic
