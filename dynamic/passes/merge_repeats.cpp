#include <algorithm>

#include "dynamic/passes/body_rewriter.h"
#include "dynamic/passes/spec_passes.h"

namespace lockstep::dynamic {

void merge_repeats(jit::KernelSpec& spec) {
  rewrite_body(spec, [](const jit::Instruction& instruction, std::vector<jit::Instruction>& body) {
    const auto same = instruction.op == jit::Op::k_store ? body.end() : std::find(body.begin(), body.end(), instruction);
    return same == body.end() ? append(body, instruction) : static_cast<jit::ValueId>(same - body.begin());
  });
}

}  // namespace lockstep::dynamic
