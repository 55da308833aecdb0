#include "dynamic/kernels/channel_loops.h"

#include <algorithm>

#include "dynamic/kernels/vector_loops.h"

namespace lockstep::dynamic {
namespace {

#define LOCKSTEP_LOOPS_BODY "dynamic/kernels/channel_loops_body.h"
#include "dynamic/kernels/instruction_sets_body.h"

}  // namespace

const ChannelLoops& channel_loops() {
  static const ChannelLoops& loops = loops_of(best_instruction_set());
  return loops;
}

}  // namespace lockstep::dynamic
