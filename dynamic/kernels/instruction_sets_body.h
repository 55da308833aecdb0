// Included inside of an anonymous namespace, with LOCKSTEP_LOOPS_BODY the file of the loops: compiles that once for each
// instruction set, under its target options and with LOCKSTEP_LANES 32-bit lanes of a register, and defines `loops_of`,
// the `kLoops` of a set. Hence no include guard and no includes.

namespace baseline {
#define LOCKSTEP_LANES 4
#include LOCKSTEP_LOOPS_BODY
#undef LOCKSTEP_LANES
}  // namespace baseline

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)

#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace avx2 {
#define LOCKSTEP_LANES 8
#include LOCKSTEP_LOOPS_BODY
#undef LOCKSTEP_LANES
}  // namespace avx2
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")
namespace avx512 {
#define LOCKSTEP_LANES 16
#include LOCKSTEP_LOOPS_BODY
#undef LOCKSTEP_LANES
}  // namespace avx512
#pragma GCC pop_options

const auto& loops_of(InstructionSet set) {
  if (set == InstructionSet::kAvx512) return avx512::kLoops;
  return set == InstructionSet::kAvx2 ? avx2::kLoops : baseline::kLoops;
}

#else

const auto& loops_of(InstructionSet) { return baseline::kLoops; }

#endif
