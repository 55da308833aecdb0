#include "dynamic/kernels/attention_loops.h"

#include <algorithm>
#include <limits>

#include "dynamic/kernels/vector_loops.h"

namespace lockstep::dynamic {
namespace {

#define LOCKSTEP_LOOPS_BODY "dynamic/kernels/attention_loops_body.h"
#include "dynamic/kernels/instruction_sets_body.h"

}  // namespace

const AttentionLoops& attention_loops() {
  static const AttentionLoops& loops = loops_of(best_instruction_set());
  return loops;
}

}  // namespace lockstep::dynamic
