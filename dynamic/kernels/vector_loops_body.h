// Compiled for each instruction set (instruction_sets_body.h), inside of a namespace and under its target options; hence
// no include guard and no includes. LOCKSTEP_LANES: 32-bit lanes of a register.
// Source of the recurrence and the distributions: PyTorch's ATen/core/MT19937RNGEngine.h, TransformationHelper.h.

typedef uint32_t Lanes __attribute__((vector_size(4 * LOCKSTEP_LANES)));
typedef uint32_t LanesInMemory __attribute__((vector_size(4 * LOCKSTEP_LANES), aligned(4), may_alias));

static inline Lanes load(const uint32_t* from) { return *reinterpret_cast<const LanesInMemory*>(from); }
static inline void store(uint32_t* to, Lanes lanes) { *reinterpret_cast<LanesInMemory*>(to) = lanes; }

template <typename Word>
static inline Word tempered(Word y) {
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680u;
  y ^= (y << 15) & 0xefc60000u;
  return y ^ (y >> 18);
}

// What is loaded already, where to move it takes one instruction.
static inline Lanes one_further(const uint32_t* at, Lanes here, Lanes next) {
#if LOCKSTEP_LANES == 16
  return __builtin_shuffle(here, next, Lanes{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16});
#else
  return load(at + 1);
#endif
}

enum class Words { kNone, kRaw, kTempered };

// Lanes [i, i + LOCKSTEP_LANES) of the next state; `far` is where the recurrence reaches, 397 words ahead. `here` are those
// of the old one, afterwards those that follow.
template <Words kWords>
static inline void step(const uint32_t* state, Lanes& here, Lanes far, int i, uint32_t* next, uint32_t* words) {
  const Lanes following = load(state + i + LOCKSTEP_LANES);
  const Lanes after = one_further(state + i, here, following);
  const Lanes mixed = (here & 0x80000000u) | (after & 0x7fffffffu);
  const Lanes fresh = far ^ (mixed >> 1) ^ (-(after & 1u) & 0x9908b0dfu);
  here = following;
  store(next + i, fresh);
  if constexpr (kWords == Words::kRaw) store(words + i, fresh);
  if constexpr (kWords == Words::kTempered) store(words + i, tempered(fresh));
}

// Whole registers, so that all stores are aligned: the one in the middle reaches into the old state and into the new one.
template <Words kWords>
static inline void renew(uint32_t* state, uint32_t* next, uint32_t* words) {
  constexpr int kCount = 624, kAhead = 397, kFirst = kCount - kAhead, kSeam = kFirst / LOCKSTEP_LANES * LOCKSTEP_LANES;
  static_assert(kCount % LOCKSTEP_LANES == 0);
  Lanes here = load(state);
  int i = 0;
  for (; i < kSeam; i += LOCKSTEP_LANES) step<kWords>(state, here, load(state + i + kAhead), i, next, words);
  uint32_t seam[LOCKSTEP_LANES];
  for (int lane = 0; lane < LOCKSTEP_LANES; ++lane)
    seam[lane] = i + lane < kFirst ? state[i + lane + kAhead] : next[i + lane - kFirst];
  step<kWords>(state, here, load(seam), i, next, words);
  state[kCount] = next[0];
  for (i += LOCKSTEP_LANES; i < kCount; i += LOCKSTEP_LANES)
    step<kWords>(state, here, load(next + i - kFirst), i, next, words);
}

static void next_block(uint32_t* state, uint32_t* next, uint32_t* words) {
  renew<Words::kTempered>(state, next, words);
}
static void next_raw_block(uint32_t* state, uint32_t* next, uint32_t* words) { renew<Words::kRaw>(state, next, words); }
static void skip_block(uint32_t* state, uint32_t* next) { renew<Words::kNone>(state, next, nullptr); }

static void temper(const uint32_t* state, int64_t count, uint32_t* words) {
  for (int64_t i = 0; i < count; ++i) words[i] = tempered(state[i]);
}

static inline uint64_t pair_bits(const uint32_t* words, int64_t i) {
  uint64_t swapped;  // little endian: the first word lies low
  __builtin_memcpy(&swapped, words + 2 * i, sizeof(swapped));
  return (swapped << 32 | swapped >> 32) & ((uint64_t{1} << 53) - 1);
}

template <typename Out>
static void bernoulli(const uint32_t* words, int64_t count, int64_t threshold, Out one, Out* out) {
  for (int64_t i = 0; i < count; ++i)
    out[i] = static_cast<int64_t>(pair_bits(words, i)) < threshold ? one : Out{0};
}

// The upper 21 of a pair's 53 bits come from its first word; with that alone all is said but where they are the
// threshold's own.
struct PairThreshold {
  explicit PairThreshold(int64_t threshold)
      : whole(threshold), upper(static_cast<uint32_t>(threshold >> 32)) {}
  bool is_above(const uint32_t* raw, int64_t i) const {
    const uint32_t first = tempered(raw[2 * i]) & kUpperBits;
    if (first != upper) return first < upper;
    return static_cast<int64_t>(uint64_t{first} << 32 | tempered(raw[2 * i + 1])) < whole;
  }
  // One bit for each of the pairs of a mask.
  uint32_t bits_of(const uint32_t* raw, uint32_t pairs) const {
    uint32_t bits = 0;
    for (; pairs; pairs &= pairs - 1) {
      const int i = __builtin_ctz(pairs);
      bits |= static_cast<uint32_t>(is_above(raw, i)) << i;
    }
    return bits;
  }
  static constexpr uint32_t kUpperBits = (1u << 21) - 1;
  int64_t whole;
  uint32_t upper;
};

#if LOCKSTEP_LANES == 16
// One bit for each of 16 pairs.
static inline uint32_t bits_of_pairs(const uint32_t* raw, const PairThreshold& threshold) {
  const Lanes evens = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30};
  const Lanes upper = tempered(__builtin_shuffle(load(raw), load(raw + 16), evens)) & PairThreshold::kUpperBits;
  const auto wanted = _mm512_set1_epi32(static_cast<int>(threshold.upper));
  const uint32_t bits = _mm512_cmplt_epu32_mask(reinterpret_cast<__m512i>(upper), wanted);
  const uint32_t open = _mm512_cmpeq_epi32_mask(reinterpret_cast<__m512i>(upper), wanted);
  return bits | threshold.bits_of(raw, open);
}
#elif LOCKSTEP_LANES == 8
static inline uint32_t bits_of_eight(const uint32_t* raw, const PairThreshold& threshold) {
  const Lanes evens = {0, 2, 4, 6, 8, 10, 12, 14};
  const Lanes upper = tempered(__builtin_shuffle(load(raw), load(raw + 8), evens)) & PairThreshold::kUpperBits;
  const auto found = reinterpret_cast<__m256i>(upper), wanted = _mm256_set1_epi32(static_cast<int>(threshold.upper));
  const uint32_t bits = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(wanted, found)));
  const uint32_t open = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(wanted, found)));
  return bits | threshold.bits_of(raw, open);
}
static inline uint32_t bits_of_pairs(const uint32_t* raw, const PairThreshold& threshold) {
  return bits_of_eight(raw, threshold) | bits_of_eight(raw + 16, threshold) << 8;
}
#else
static inline uint32_t bits_of_pairs(const uint32_t* raw, const PairThreshold& threshold) {
  uint32_t bits = 0;
  for (int i = 0; i < 16; ++i) bits |= static_cast<uint32_t>(threshold.is_above(raw, i)) << i;
  return bits;
}
#endif

static void bernoulli_bits(const uint32_t* raw, int64_t byte_count, int64_t threshold, uint8_t* bits) {
  const PairThreshold limit(threshold);
  int64_t at = 0;
  for (; at + 2 <= byte_count; at += 2) {
    const auto two = static_cast<uint16_t>(bits_of_pairs(raw + 16 * at, limit));
    __builtin_memcpy(bits + at, &two, sizeof(two));
  }
  if (at < byte_count) bits[at] = static_cast<uint8_t>(limit.bits_of(raw + 16 * at, 0xff));
}

static inline double from_bits(uint64_t bits) {
  double value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

static inline uint64_t to_bits(double value) {
  uint64_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  return bits;
}

constexpr double kTwo52 = 0x1p52;
constexpr uint64_t kTwo52Bits = 0x4330000000000000;  // 2^52: its low 32 bits count in ones
constexpr uint64_t kTwo84Bits = 0x4530000000000000;  // 2^84: its low 32 bits count in 2^32

template <bool kIsFused>
static void uniform_float_as(const uint32_t* words, int64_t count, const UniformRange<float>& range, float* out) {
  const UniformRange<float> r = range;
  for (int64_t i = 0; i < count; ++i) {
    const float x = static_cast<float>(static_cast<int32_t>(words[i] & 0xffffffu)) * 0x1p-24f;
    const float value = kIsFused ? __builtin_fmaf(x, r.span, r.from) : x * r.span + r.from;
    out[i] = value == r.upper ? r.from : value;
  }
}

static void uniform_float(const uint32_t* words, int64_t count, const UniformRange<float>& range, float* out) {
  (range.is_fused ? uniform_float_as<true> : uniform_float_as<false>)(words, count, range, out);
}

// The 53 bits as a double without a 64-bit conversion, which AVX2 lacks; both halves and their sum are exact.
template <bool kIsFused>
static void uniform_double_as(const uint32_t* words, int64_t count, const UniformRange<double>& range, double* out) {
  const UniformRange<double> r = range;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t bits = pair_bits(words, i);
    const double high = from_bits(bits >> 32 | kTwo84Bits) - (0x1p84 + 0x1p52);
    const double x = (high + from_bits((bits & 0xffffffffu) | kTwo52Bits)) * 0x1p-53;
    const double value = kIsFused ? __builtin_fma(x, r.span, r.from) : x * r.span + r.from;
    out[i] = value == r.upper ? r.from : value;
  }
}

static void uniform_double(const uint32_t* words, int64_t count, const UniformRange<double>& range, double* out) {
  (range.is_fused ? uniform_double_as<true> : uniform_double_as<false>)(words, count, range, out);
}

// word % divisor, exact: the quotient is rounded to the nearest, so that the remainder lies within half a divisor.
static inline double remainder_of(uint32_t word, double divisor, double reciprocal) {
  const double value = from_bits(word | kTwo52Bits) - kTwo52;
  const double quotient = (value * reciprocal + kTwo52) - kTwo52;
  const double remainder = value - quotient * divisor;
  return remainder < 0 ? remainder + divisor : remainder;
}

template <typename Real>
static void remainder_real(const uint32_t* words, int64_t count, double divisor, double base, Real* out) {
  const double reciprocal = 1 / divisor;
  for (int64_t i = 0; i < count; ++i)
    out[i] = static_cast<Real>(remainder_of(words[i], divisor, reciprocal) + base);
}

static void remainder_int(const uint32_t* words, int64_t count, double divisor, int64_t base, int64_t* out) {
  const double reciprocal = 1 / divisor;
  for (int64_t i = 0; i < count; ++i)
    out[i] = static_cast<int64_t>(to_bits(remainder_of(words[i], divisor, reciprocal) + kTwo52) - kTwo52Bits) + base;
}

constexpr VectorLoops kLoops = {next_block,
                                next_raw_block,
                                skip_block,
                                temper,
                                bernoulli<uint8_t>,
                                bernoulli<uint16_t>,
                                bernoulli<uint32_t>,
                                bernoulli<uint64_t>,
                                bernoulli_bits,
                                uniform_float,
                                uniform_double,
                                remainder_real<double>,
                                remainder_real<float>,
                                remainder_int};
