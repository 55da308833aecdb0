#include "dynamic/kernels/product_loops.h"

#include <algorithm>
#include <type_traits>

#include "dynamic/kernels/vector_loops.h"

namespace lockstep::dynamic {
namespace {

#define LOCKSTEP_LOOPS_BODY "dynamic/kernels/product_loops_body.h"
#include "dynamic/kernels/instruction_sets_body.h"

}  // namespace

const ProductLoops& product_loops() {
  static const ProductLoops& loops = loops_of(best_instruction_set());
  return loops;
}

const ProductLoops& product_loops_for(int64_t columns) {
  const auto& widest = product_loops();
  if (best_instruction_set() != InstructionSet::kAvx512) return widest;
  const ProductLoops& narrow = loops_of(InstructionSet::kAvx2);
  const auto wasted = [columns](const ProductLoops& loops) { return (loops.lanes - columns % loops.lanes) % loops.lanes; };
  return wasted(narrow) < wasted(widest) ? narrow : widest;
}

}  // namespace lockstep::dynamic
