// Plain loops and vector types, which the compiler turns into each set's instructions; no intrinsics but for masks of
// bits, so the baseline is whatever the build aims at. Built with -O3 and without contraction of a * b + c
// (CMakeLists.txt): where PyTorch's compiler contracted, the loops say so.
#include "dynamic/kernels/vector_loops.h"

#include <atomic>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>
#endif

namespace lockstep::dynamic {
namespace {

#define LOCKSTEP_LOOPS_BODY "dynamic/kernels/vector_loops_body.h"
#include "dynamic/kernels/instruction_sets_body.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)

InstructionSet detect() {
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (has_avx2 && has_avx512) return InstructionSet::kAvx512;
  return has_avx2 ? InstructionSet::kAvx2 : InstructionSet::kBaseline;
}

#else

InstructionSet detect() { return InstructionSet::kBaseline; }

#endif

std::atomic<const VectorLoops*>& chosen() {
  static std::atomic<const VectorLoops*> loops{&loops_of(best_instruction_set())};
  return loops;
}

}  // namespace

const VectorLoops& vector_loops() { return *chosen().load(std::memory_order_relaxed); }

InstructionSet best_instruction_set() {
  static const InstructionSet best = detect();
  return best;
}

void use_instruction_set(InstructionSet set) {
  if (set <= best_instruction_set()) chosen().store(&loops_of(set), std::memory_order_relaxed);
}

}  // namespace lockstep::dynamic
