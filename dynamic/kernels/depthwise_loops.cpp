#include "dynamic/kernels/depthwise_loops.h"

#include <algorithm>
#include <type_traits>

#include "dynamic/kernels/vector_loops.h"

namespace lockstep::dynamic {
namespace {

#define LOCKSTEP_LOOPS_BODY "dynamic/kernels/depthwise_loops_body.h"
#include "dynamic/kernels/instruction_sets_body.h"

}  // namespace

const DepthwiseLoops& depthwise_loops() {
  static const DepthwiseLoops& loops = loops_of(best_instruction_set());
  return loops;
}

}  // namespace lockstep::dynamic
