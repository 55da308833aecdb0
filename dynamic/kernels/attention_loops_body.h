// Compiled for each instruction set (instruction_sets_body.h), inside of a namespace and under its target options; hence
// no include guard and no includes. LOCKSTEP_LANES: float32 lanes of a register.

typedef float Floats __attribute__((vector_size(4 * LOCKSTEP_LANES)));
typedef int32_t Integers __attribute__((vector_size(4 * LOCKSTEP_LANES)));
typedef float FloatsInMemory __attribute__((vector_size(4 * LOCKSTEP_LANES), aligned(4), may_alias));

constexpr int64_t kBlockOfKeys = 64;  // sums of so many are added up, so that long rows lose no digits

static inline Floats load(const float* from) { return *reinterpret_cast<const FloatsInMemory*>(from); }
static inline void store(float* to, Floats value) { *reinterpret_cast<FloatsInMemory*>(to) = value; }
static inline Floats spread(float value) { return Floats{} + value; }

// Within 2 ulp; what is below the smallest normal number is 0. The polynomial is that of Cephes' expf.
static inline Floats exponential(Floats x) {
  constexpr float kLeast = -87.33654f, kMost = 88.72283f, kRounds = 12582912.0f;  // 1.5 * 2^23: adding it rounds
  const Floats whole = (x * 1.44269504f + kRounds) - kRounds;
  const Floats rest = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
  Floats p = spread(1.9875691500e-4f);
  p = p * rest + 1.3981999507e-3f;
  p = p * rest + 8.3334519073e-3f;
  p = p * rest + 4.1665795894e-2f;
  p = p * rest + 1.6666665459e-1f;
  p = p * rest + 5.0000001201e-1f;
  p = p * (rest * rest) + rest + 1.0f;
  // In two steps, since 2^128 is none of these numbers.
  const Integers power = __builtin_convertvector(whole, Integers), half = power >> 1;
  const auto power_of_two = [](Integers exponent) { return reinterpret_cast<Floats>((exponent + 127) << 23); };
  const Floats result = p * power_of_two(half) * power_of_two(power - half);
  const Floats bounded = x > kMost ? spread(std::numeric_limits<float>::infinity()) : result;
  return x < kLeast ? Floats{} : bounded;
}

template <ScoreMask::Kind kKind, int kRegisters>
static inline Floats masked(Floats score, const float* mask, int64_t key, int register_index) {
  if constexpr (kKind == ScoreMask::Kind::kByKey) return score + mask[key];
  if constexpr (kKind == ScoreMask::Kind::kByPair)
    return score + load(mask + (key * kRegisters + register_index) * LOCKSTEP_LANES);
  return score;
}

template <ScoreMask::Kind kKind, int kRegisters>
static inline void exponentiate_columns(float* scores, int64_t keys, float scale, const float* mask, float* largest,
                                        float* sums) {
  constexpr int64_t kColumns = kRegisters * LOCKSTEP_LANES;
  Floats shifts[kRegisters], totals[kRegisters] = {};
#pragma GCC unroll 3
  for (int r = 0; r < kRegisters; ++r) shifts[r] = spread(-std::numeric_limits<float>::infinity());
  for (int64_t key = 0; key < keys; ++key)
#pragma GCC unroll 3
    for (int r = 0; r < kRegisters; ++r) {
      float* at = scores + key * kColumns + r * LOCKSTEP_LANES;
      const Floats score = masked<kKind, kRegisters>(load(at) * scale, mask, key, r);
      store(at, score);
      shifts[r] = score > shifts[r] ? score : shifts[r];  // nan shows in the sum
    }
#pragma GCC unroll 3
  for (int r = 0; r < kRegisters; ++r)
    shifts[r] = shifts[r] == -std::numeric_limits<float>::infinity() ? Floats{} : shifts[r];
  for (int64_t first = 0; first < keys; first += kBlockOfKeys) {
    Floats part[kRegisters] = {};
    for (int64_t key = first, end = std::min(first + kBlockOfKeys, keys); key < end; ++key)
#pragma GCC unroll 3
      for (int r = 0; r < kRegisters; ++r) {
        float* at = scores + key * kColumns + r * LOCKSTEP_LANES;
        const Floats weight = exponential(load(at) - shifts[r]);
        store(at, weight);
        part[r] += weight;
      }
#pragma GCC unroll 3
    for (int r = 0; r < kRegisters; ++r) totals[r] += part[r];
  }
#pragma GCC unroll 3
  for (int r = 0; r < kRegisters; ++r) {
    store(largest + r * LOCKSTEP_LANES, shifts[r]);
    store(sums + r * LOCKSTEP_LANES, totals[r]);
  }
}

template <ScoreMask::Kind kKind, int kRegisters>
static inline void restore_columns(float* scores, int64_t keys, float scale, const float* mask, const float* logarithms) {
  for (int64_t key = 0; key < keys; ++key)
#pragma GCC unroll 3
    for (int r = 0; r < kRegisters; ++r) {
      float* at = scores + (key * kRegisters + r) * LOCKSTEP_LANES;
      const Floats score = masked<kKind, kRegisters>(load(at) * scale, mask, key, r);
      store(at, exponential(score - load(logarithms + r * LOCKSTEP_LANES)));
    }
}

template <int kRegisters>
static inline void differentiate_columns(const float* weights, float* gradient, int64_t keys, float scale,
                                         const float* dots) {
  for (int64_t key = 0; key < keys; ++key)
#pragma GCC unroll 3
    for (int r = 0; r < kRegisters; ++r) {
      const int64_t at = (key * kRegisters + r) * LOCKSTEP_LANES;
      store(gradient + at, load(weights + at) * (load(gradient + at) - load(dots + r * LOCKSTEP_LANES)) * scale);
    }
}

// run(number of registers), of which the compiler knows.
template <class Run>
static inline void with_registers(int64_t columns, Run run) {
  switch (columns / LOCKSTEP_LANES) {
    case 1: return run(std::integral_constant<int, 1>());
    case 2: return run(std::integral_constant<int, 2>());
    default: return run(std::integral_constant<int, 3>());
  }
}

template <class Run>
static inline void with_kind(ScoreMask mask, Run run) {
  using Kind = ScoreMask::Kind;
  switch (mask.kind) {
    case Kind::kNone: return run(std::integral_constant<Kind, Kind::kNone>());
    case Kind::kByKey: return run(std::integral_constant<Kind, Kind::kByKey>());
    case Kind::kByPair: return run(std::integral_constant<Kind, Kind::kByPair>());
  }
}

static void exponentiate(float* scores, int64_t keys, int64_t columns, float scale, ScoreMask mask, float* largest,
                         float* sums) {
  with_kind(mask, [&](auto kind) {
    with_registers(columns, [&](auto registers) {
      exponentiate_columns<kind.value, registers.value>(scores, keys, scale, mask.values, largest, sums);
    });
  });
}

static void restore(float* scores, int64_t keys, int64_t columns, float scale, ScoreMask mask, const float* logarithms) {
  with_kind(mask, [&](auto kind) {
    with_registers(columns, [&](auto registers) {
      restore_columns<kind.value, registers.value>(scores, keys, scale, mask.values, logarithms);
    });
  });
}

static void differentiate(const float* weights, float* gradient, int64_t keys, int64_t columns, float scale,
                          const float* dots) {
  with_registers(columns, [&](auto registers) {
    differentiate_columns<registers.value>(weights, gradient, keys, scale, dots);
  });
}

static constexpr AttentionLoops kLoops = {LOCKSTEP_LANES, &exponentiate, &restore, &differentiate};
