// Makes a spec's body anew, instruction by instruction.
#pragma once

#include <vector>

#include "dynamic/jit/kernel_spec.h"

namespace lockstep::dynamic {

// `rewrite(instruction, body)`: gets an instruction of the old body whose operands are values of the new one, and says
// which value of the new body stands for it: one that is there, or, after appending, the last. What stands for a store
// is never asked.
template <class Rewrite>
void rewrite_body(jit::KernelSpec& spec, Rewrite rewrite) {
  std::vector<jit::Instruction> body;
  std::vector<jit::ValueId> values;  // of the old body, in the new one
  body.reserve(spec.body.size());
  for (jit::Instruction instruction : spec.body) {
    for (int k = 0; k < jit::row_of(instruction.op).arity; ++k) instruction.operands[k] = values[instruction.operands[k]];
    values.push_back(rewrite(instruction, body));
  }
  spec.body = std::move(body);
}

inline jit::ValueId append(std::vector<jit::Instruction>& body, const jit::Instruction& instruction) {
  body.push_back(instruction);
  return static_cast<jit::ValueId>(body.size()) - 1;
}

}  // namespace lockstep::dynamic
