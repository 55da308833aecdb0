#include "dynamic/kernels/channel_loops.h"

#include <algorithm>

#include "dynamic/kernels/vector_loops.h"

namespace lockstep::dynamic {
namespace {

namespace baseline {
#define LOCKSTEP_LANES 4
#include "dynamic/kernels/channel_loops_body.h"
#undef LOCKSTEP_LANES
}  // namespace baseline

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)

#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace avx2 {
#define LOCKSTEP_LANES 8
#include "dynamic/kernels/channel_loops_body.h"
#undef LOCKSTEP_LANES
}  // namespace avx2
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")
namespace avx512 {
#define LOCKSTEP_LANES 16
#include "dynamic/kernels/channel_loops_body.h"
#undef LOCKSTEP_LANES
}  // namespace avx512
#pragma GCC pop_options

const ChannelLoops& loops_of(InstructionSet set) {
  if (set == InstructionSet::kAvx512) return avx512::kLoops;
  return set == InstructionSet::kAvx2 ? avx2::kLoops : baseline::kLoops;
}

#else

const ChannelLoops& loops_of(InstructionSet) { return baseline::kLoops; }

#endif

}  // namespace

const ChannelLoops& channel_loops() {
  static const ChannelLoops& loops = loops_of(best_instruction_set());
  return loops;
}

}  // namespace lockstep::dynamic
