#include "dynamic/kernels/product_loops.h"

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

}  // namespace lockstep::dynamic
