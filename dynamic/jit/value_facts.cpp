#include "dynamic/jit/value_facts.h"

#include <algorithm>

namespace lockstep::dynamic::jit {

std::vector<ValueFacts> find_facts(const KernelSpec& spec) {
  std::vector<ValueFacts> facts(spec.body.size());
  for (size_t i = 0; i < spec.body.size(); ++i) {
    const Instruction& instruction = spec.body[i];
    ValueFacts& fact = facts[i];
    for (int k = 0; k < row_of(instruction.op).arity; ++k) {
      const ValueFacts& operand = facts[instruction.operands[k]];
      fact.varies |= operand.varies;
      fact.loads |= operand.loads;
      fact.level = std::max(fact.level, operand.level);
    }
    if (instruction.op == Op::k_index && spec.sizes[instruction.immediate] != 1) {
      fact.varies = int64_t{1} << instruction.immediate;
    }
    if (instruction.op == Op::k_load) {
      fact.loads = uint64_t{1} << instruction.immediate;
      const Buffer& buffer = spec.buffers[instruction.immediate];
      for (size_t dim = 0; dim < spec.sizes.size(); ++dim) {
        if (buffer.strides[dim] != 0 && spec.sizes[dim] != 1) fact.varies |= int64_t{1} << dim;
      }
    }
    if (instruction.op == Op::k_reduce) {
      fact.varies &= ~instruction.immediate;
      fact.loads = 0;
      ++fact.level;
    }
  }
  return facts;
}

bool is_reduced_store(const KernelSpec& spec, const Instruction& store) {
  int64_t reduced = spec.reduced_mask();
  const Buffer& buffer = spec.buffers[store.immediate];
  if (buffer.total != Total::kNone) return false;
  for (size_t dim = 0; dim < spec.sizes.size(); ++dim) {
    if ((reduced >> dim & 1) && spec.sizes[dim] != 1) return buffer.strides[dim] == 0;
  }
  // All reduced dims have size 1: every store is one of a whole value.
  return false;
}

}  // namespace lockstep::dynamic::jit
