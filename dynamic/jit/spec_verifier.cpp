#include "dynamic/jit/spec_verifier.h"

#include "dynamic/jit/value_facts.h"

namespace lockstep::dynamic::jit {
namespace {

using Problem = std::optional<std::string>;

std::string at_value(size_t number) { return "%" + std::to_string(number) + ": "; }
std::string at_buffer(int64_t number) { return "b" + std::to_string(number) + ": "; }

Problem check_space(const KernelSpec& spec) {
  int dim_count = static_cast<int>(spec.sizes.size());
  if (dim_count > kMaxDims) return "dims: " + std::to_string(dim_count) + ", at most " + std::to_string(kMaxDims);
  for (int64_t size : spec.sizes) {
    if (size < 0 && size != kSymbolic) return "dims: size " + std::to_string(size) + " is negative";
  }
  if (spec.buffers.size() > kMaxBuffers) return "more than " + std::to_string(kMaxBuffers) + " buffers";
  for (size_t i = 0; i < spec.buffers.size(); ++i) {
    if (spec.buffers[i].total != Total::kNone && spec.buffers[i].access != Access::kOut)
      return at_buffer(i) + "a total is an output alone";
    if (spec.buffers[i].packed && (spec.buffers[i].access != Access::kIn || spec.buffers[i].type != DType::kBool))
      return at_buffer(i) + "bools that are read alone may be packed";
    if (spec.buffers[i].strides.size() != spec.sizes.size()) return at_buffer(i) + "one stride a dim is wanted";
    for (int64_t stride : spec.buffers[i].strides) {
      if (stride < 0 && stride != kSymbolic) return at_buffer(i) + "negative stride " + std::to_string(stride);
    }
  }
  return {};
}

bool fits_class(const KernelSpec& spec, const Instruction& instruction) {
  const OpRow& row = row_of(instruction.op);
  auto type_at = [&](int operand) { return spec.type_of(instruction.operands[operand]); };
  DType first = row.arity ? type_at(0) : instruction.type;
  for (int i = 1; i < row.arity; ++i) {
    if (row.op_class != OpClass::kSelect && type_at(i) != first) return false;
  }
  switch (row.op_class) {
    case OpClass::kSame: return instruction.type == first && first != DType::kBool;
    case OpClass::kFloat: return instruction.type == first && is_floating(first);
    case OpClass::kBits:
      return !is_floating(first) || instruction.op == Op::k_logical_not
                 ? instruction.type == (instruction.op == Op::k_logical_not ? DType::kBool : first)
                 : false;
    case OpClass::kAny: return instruction.type == first;
    case OpClass::kCompare: return instruction.type == DType::kBool;
    case OpClass::kTest: return instruction.type == DType::kBool && is_floating(first);
    case OpClass::kSelect:
      return first == DType::kBool && type_at(1) == instruction.type && type_at(2) == instruction.type;
    case OpClass::kSpecial: return true;
  }
  return false;
}

Problem check_special(const KernelSpec& spec, const Instruction& instruction, size_t number) {
  int64_t immediate = instruction.immediate;
  auto in_range = [&](size_t count) { return immediate >= 0 && immediate < static_cast<int64_t>(count); };
  switch (instruction.op) {
    case Op::k_load:
      if (!in_range(spec.buffers.size())) return at_value(number) + "no such buffer";
      if (spec.buffers[immediate].access == Access::kOut) return at_value(number) + "loads from an output";
      if (spec.buffers[immediate].type != instruction.type) return at_value(number) + "type is not the buffer's";
      return {};
    case Op::k_store:
      if (!in_range(spec.buffers.size())) return at_value(number) + "no such buffer";
      if (spec.buffers[immediate].access == Access::kIn) return at_value(number) + "stores into an input";
      if (spec.buffers[immediate].type != spec.type_of(instruction.operands[0])) {
        return at_value(number) + "type is not the buffer's";
      }
      return {};
    case Op::k_scalar:
      if (!in_range(spec.scalars.size())) return at_value(number) + "no such scalar";
      if (spec.scalars[immediate] != instruction.type) return at_value(number) + "type is not the scalar's";
      return {};
    case Op::k_index:
      if (!in_range(spec.sizes.size())) return at_value(number) + "no such dim";
      if (instruction.type != DType::kInt64) return at_value(number) + "an index is i64";
      return {};
    case Op::k_reduce: {
      DType type = spec.type_of(instruction.operands[0]);
      bool is_logical = instruction.kind == ReduceKind::kAny || instruction.kind == ReduceKind::kAll;
      if (type != instruction.type) return at_value(number) + "a reduction has its operand's type";
      if (is_logical != (type == DType::kBool)) return at_value(number) + "any and all take bool, the others numbers";
      if (immediate <= 0 || immediate >> spec.sizes.size() != 0) return at_value(number) + "reduced dims out of range";
      if (immediate != spec.reduced_mask()) {
        return at_value(number) + "reduces other dims than an earlier reduction of the same spec";
      }
      return {};
    }
    default: return {};
  }
}

// A total holds one element, or one for each point of the innermost dim, which is all that may be reduced beside it.
Problem check_total(const KernelSpec& spec, const Instruction& store) {
  const Buffer& buffer = spec.buffers[store.immediate];
  const auto problem = [&](const char* text) { return at_buffer(store.immediate) + text; };
  if (buffer.type != DType::kFloat32 && buffer.type != DType::kFloat64) return problem("a total is f32 or f64");
  if (buffer.streaming) return problem("a total is not streamed");
  const int innermost = spec.innermost();
  const int64_t reduced = spec.reduced_mask();
  for (int dim = 0; dim < static_cast<int>(spec.sizes.size()); ++dim) {
    if (dim == innermost || spec.sizes[dim] == 1) continue;
    if (buffer.strides[dim] != 0) return problem("a total is broadcast along all dims but the innermost");
    if (reduced >> dim & 1) return problem("beside a total the innermost dim alone may be reduced");
  }
  return {};
}

// An output holds one element for each point of the space, or for each kept point if it holds reduced values.
Problem check_store(const KernelSpec& spec, const std::vector<ValueFacts>& facts, const Instruction& store) {
  const Buffer& buffer = spec.buffers[store.immediate];
  if (buffer.total != Total::kNone) return check_total(spec, store);
  int64_t reduced = spec.reduced_mask();
  int zero_count = 0;
  int reduced_count = 0;
  for (size_t dim = 0; dim < spec.sizes.size(); ++dim) {
    if (spec.sizes[dim] == 1) continue;
    bool is_reduced = reduced >> dim & 1;
    reduced_count += is_reduced;
    if (buffer.strides[dim] != 0) continue;
    if (!is_reduced) return at_buffer(store.immediate) + "an output may not be broadcast along a kept dim";
    ++zero_count;
  }
  if (zero_count != 0 && zero_count != reduced_count) {
    return at_buffer(store.immediate) + "an output is broadcast along all reduced dims or along none";
  }
  if (zero_count != 0 && facts[store.operands[0]].varies & reduced) {
    return at_buffer(store.immediate) + "what is stored there varies along the reduced dims";
  }
  return {};
}

// A reduced value that is written in place is written before the last pass over the data: no pass may read it.
Problem check_in_place(const KernelSpec& spec, const std::vector<ValueFacts>& facts) {
  int64_t reduced = spec.reduced_mask();
  for (const Instruction& store : spec.body) {
    if (store.op != Op::k_store || spec.buffers[store.immediate].access != Access::kInOut) continue;
    if (!is_reduced_store(spec, store)) continue;
    for (size_t i = 0; i < spec.body.size(); ++i) {
      const Instruction& user = spec.body[i];
      if (!(facts[i].varies & reduced) && user.op != Op::k_reduce) continue;
      for (int k = 0; k < row_of(user.op).arity; ++k) {
        const ValueFacts& operand = facts[user.operands[k]];
        if (operand.level == 0 && operand.loads >> store.immediate & 1) {
          return at_buffer(store.immediate) + "is reduced, written in place, and read by values that are not reduced";
        }
      }
    }
  }
  return {};
}

}  // namespace

std::optional<std::string> verify_spec(const KernelSpec& spec) {
  if (Problem problem = check_space(spec)) return problem;
  std::vector<int> store_counts(spec.buffers.size());
  for (size_t number = 0; number < spec.body.size(); ++number) {
    const Instruction& instruction = spec.body[number];
    for (int i = 0; i < row_of(instruction.op).arity; ++i) {
      ValueId operand = instruction.operands[i];
      if (operand < 0 || operand >= static_cast<ValueId>(number))
        return at_value(number) + "operand is not defined before";
      if (spec.body[operand].op == Op::k_store) return at_value(number) + "a store has no value";
    }
    if (!fits_class(spec, instruction)) {
      return at_value(number) + row_of(instruction.op).name + " does not take these types";
    }
    if (Problem problem = check_special(spec, instruction, number)) return problem;
    if (instruction.op == Op::k_store) ++store_counts[instruction.immediate];
  }
  for (size_t i = 0; i < spec.buffers.size(); ++i) {
    bool is_written = spec.buffers[i].access != Access::kIn;
    if (store_counts[i] != is_written) return at_buffer(i) + "stored " + std::to_string(store_counts[i]) + " times";
  }
  std::vector<ValueFacts> facts = find_facts(spec);
  for (const Instruction& instruction : spec.body) {
    if (instruction.op != Op::k_store) continue;
    if (Problem problem = check_store(spec, facts, instruction)) return problem;
  }
  return check_in_place(spec, facts);
}

}  // namespace lockstep::dynamic::jit
