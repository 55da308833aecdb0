#include "dynamic/kernels/optimizer_loops.h"

#include <cmath>

#include "dynamic/kernels/vector_loops.h"

namespace lockstep::dynamic {
namespace {

#define LOCKSTEP_LOOPS_BODY "dynamic/kernels/optimizer_loops_body.h"
#include "dynamic/kernels/instruction_sets_body.h"

}  // namespace

const OptimizerLoops& optimizer_loops() {
  static const OptimizerLoops& loops = loops_of(best_instruction_set());
  return loops;
}

}  // namespace lockstep::dynamic
