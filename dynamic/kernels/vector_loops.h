// The loops under the samplers, compiled once for each instruction set and chosen at run time: the library itself stays
// portable. All of them give the same bits on all sets.
#pragma once

#include <cstdint>

namespace lockstep::dynamic {

enum class InstructionSet { kBaseline, kAvx2, kAvx512 };

// x * span + from, where x is a word's low 24 (or a pair's low 53) bits as a fraction; `upper` itself becomes `from`.
template <typename Real>
struct UniformRange {
  Real from;
  Real span;
  Real upper;
  bool is_fused;  // one rounding, as where the compiler of PyTorch's kernel had fused multiply-add
};

// Words are tempered draws. A pair is a first (high) and a second (low) word.
struct VectorLoops {
  // The state after `state` and its tempered words. `state` has room for 16 words more (the first left changed).
  void (*next_block)(uint32_t* state, uint32_t* next_state, uint32_t* words);
  void (*next_raw_block)(uint32_t* state, uint32_t* next_state, uint32_t* words);  // not tempered
  void (*skip_block)(uint32_t* state, uint32_t* next_state);  // without the words
  void (*temper)(const uint32_t* state, int64_t count, uint32_t* words);

  // out[i] = pair i's low 53 bits < threshold ? one : 0
  void (*bernoulli_8)(const uint32_t*, int64_t count, int64_t threshold, uint8_t one, uint8_t* out);
  void (*bernoulli_16)(const uint32_t*, int64_t count, int64_t threshold, uint16_t one, uint16_t*);
  void (*bernoulli_32)(const uint32_t*, int64_t count, int64_t threshold, uint32_t one, uint32_t*);
  void (*bernoulli_64)(const uint32_t*, int64_t count, int64_t threshold, uint64_t one, uint64_t*);

  // The same of pairs that are not tempered; pair i goes to bit i % 8 of byte i / 8, of whole bytes.
  void (*bernoulli_bits)(const uint32_t* raw, int64_t byte_count, int64_t threshold, uint8_t* bits);

  void (*uniform_float)(const uint32_t*, int64_t count, const UniformRange<float>&, float* out);
  void (*uniform_double)(const uint32_t*, int64_t count, const UniformRange<double>&, double* out);

  // out[i] = word i % divisor + base, for 0 < divisor < 2^28 and |base| < 2^52
  void (*remainder_double)(const uint32_t*, int64_t count, double divisor, double base, double*);
  void (*remainder_float)(const uint32_t*, int64_t count, double divisor, double base, float*);
  void (*remainder_int)(const uint32_t*, int64_t count, double divisor, int64_t base, int64_t*);

  template <typename Out>
  auto bernoulli() const {
    if constexpr (sizeof(Out) == 1) return bernoulli_8;
    else if constexpr (sizeof(Out) == 2) return bernoulli_16;
    else if constexpr (sizeof(Out) == 4) return bernoulli_32;
    else return bernoulli_64;
  }
};

const VectorLoops& vector_loops();
InstructionSet best_instruction_set();
// For tests: at most `best_instruction_set()`.
void use_instruction_set(InstructionSet set);

}  // namespace lockstep::dynamic
