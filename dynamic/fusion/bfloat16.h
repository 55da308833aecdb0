// What PyTorch's kernels do with bfloat16, op by op: most compute in float32 and round once, so that a body of ours does
// the same and stores what is rounded. They differ in numbers.
#pragma once

#include <cstdint>

#include "graph/op_info.h"
#include "graph/trace_graph.h"

namespace lockstep::dynamic {

struct Bfloat16Rule {
  bool is_once = false;            // computed in float32, and rounded once; else there is no body of ours
  bool rounds_arguments = false;   // scalar arguments become bfloat16 first
  uint8_t unrounded_operands = 0;  // mask: numbers and tensors of one element stay as wide as they are there
};
Bfloat16Rule bfloat16_rule(const graph::OpInfo& op);
// Among what the op reads or makes.
bool has_bfloat16(const graph::Signature& signature);

}  // namespace lockstep::dynamic
