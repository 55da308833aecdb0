#include "dynamic/kernels/winograd_loops.h"

#include "dynamic/kernels/vector_loops.h"

namespace lockstep::dynamic {
namespace {

#define LOCKSTEP_LOOPS_BODY "dynamic/kernels/winograd_loops_body.h"
#include "dynamic/kernels/instruction_sets_body.h"

}  // namespace

const WinogradLoops& winograd_loops() {
  static const WinogradLoops& loops = loops_of(best_instruction_set());
  return loops;
}

}  // namespace lockstep::dynamic
