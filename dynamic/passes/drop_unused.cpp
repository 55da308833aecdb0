#include "dynamic/passes/body_rewriter.h"
#include "dynamic/passes/spec_passes.h"

namespace lockstep::dynamic {

void drop_unused(jit::KernelSpec& spec) {
  std::vector<bool> is_used(spec.body.size());
  for (size_t value = spec.body.size(); value-- > 0;) {
    const auto& instruction = spec.body[value];
    if (instruction.op == jit::Op::k_store) is_used[value] = true;
    if (!is_used[value]) continue;
    for (int k = 0; k < jit::row_of(instruction.op).arity; ++k) is_used[instruction.operands[k]] = true;
  }
  size_t value = 0;
  rewrite_body(spec, [&](const jit::Instruction& instruction, std::vector<jit::Instruction>& body) {
    return is_used[value++] ? append(body, instruction) : -1;
  });
}

}  // namespace lockstep::dynamic
