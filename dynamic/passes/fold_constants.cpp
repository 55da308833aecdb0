#include <bit>
#include <cmath>
#include <optional>

#include "dynamic/passes/body_rewriter.h"
#include "dynamic/passes/spec_passes.h"

namespace lockstep::dynamic {

namespace {

using jit::DType;
using jit::Instruction;
using jit::Op;
using jit::ValueId;
using Body = std::vector<Instruction>;

// Constants of these types stand in the body as what they are; others round on the way.
bool is_exact(DType type) { return type == DType::kFloat32 || type == DType::kFloat64; }

std::optional<double> constant_of(const Body& body, ValueId value) {
  const auto& instruction = body[value];
  if (instruction.op != Op::k_constant || !is_exact(instruction.type)) return {};
  const auto number = std::bit_cast<double>(instruction.immediate);
  return instruction.type == DType::kFloat32 ? static_cast<double>(static_cast<float>(number)) : number;
}

template <class Float>
std::optional<Float> compute(Op op, Float a, Float b, Float c) {
  switch (op) {
    case Op::k_neg: return -a;
    case Op::k_abs: return std::abs(a);
    case Op::k_sqrt: return std::sqrt(a);
    case Op::k_add: return a + b;
    case Op::k_sub: return a - b;
    case Op::k_mul: return a * b;
    case Op::k_div: return a / b;
    case Op::k_fma: return std::fma(a, b, c);
    default: return {};
  }
}

// Of an op that rounds once, all of whose operands are constants. What is not a number keeps its way of becoming one, and
// what is denormal depends on the mode of the processor.
std::optional<double> fold(const Instruction& instruction, const Body& body) {
  double operands[3] = {};
  const int arity = jit::row_of(instruction.op).arity;
  if (arity == 0 || !is_exact(instruction.type)) return {};
  for (int k = 0; k < arity; ++k) {
    const auto operand = constant_of(body, instruction.operands[k]);
    if (!operand || (*operand != 0 && !std::isnormal(static_cast<float>(*operand)))) return {};
    operands[k] = *operand;
  }
  const bool is_float = instruction.type == DType::kFloat32;
  std::optional<double> result;
  if (instruction.op == Op::k_cast) {
    result = is_float ? static_cast<double>(static_cast<float>(operands[0])) : operands[0];
  } else if (is_float) {
    result = compute<float>(instruction.op, operands[0], operands[1], operands[2]);
  } else {
    result = compute<double>(instruction.op, operands[0], operands[1], operands[2]);
  }
  if (result && (*result == 0 || std::isnormal(static_cast<float>(*result)))) return result;
  return {};
}

bool is_number(const Body& body, ValueId value, double number) {
  const auto constant = constant_of(body, value);
  return constant && *constant == number && std::signbit(*constant) == std::signbit(number);
}

// The operand that the instruction gives as it is. A multiplication by one quiets nothing that a load would not give to
// the next op in the same way.
std::optional<ValueId> passed_on(const Instruction& instruction, const Body& body) {
  const ValueId a = instruction.operands[0], b = instruction.operands[1];
  switch (instruction.op) {
    case Op::k_cast:
      if (body[a].type == instruction.type) return a;
      return {};
    case Op::k_mul:
      if (is_number(body, b, 1)) return a;
      if (is_number(body, a, 1)) return b;
      return {};
    case Op::k_div:
      if (is_number(body, b, 1)) return a;
      return {};
    case Op::k_add:
      if (is_number(body, b, -0.0)) return a;
      if (is_number(body, a, -0.0)) return b;
      return {};
    case Op::k_sub:
      if (is_number(body, b, 0)) return a;
      return {};
    case Op::k_where:
      if (b == instruction.operands[2]) return b;
      return {};
    default: return {};
  }
}

// The product of one and another needs no multiplication: both forms round once.
Instruction simplified(const Instruction& instruction, const Body& body) {
  if (instruction.op != Op::k_fma) return instruction;
  for (const int one : {0, 1})
    if (is_number(body, instruction.operands[one], 1))
      return {Op::k_add, instruction.type, {}, {instruction.operands[1 - one], instruction.operands[2], -1}, 0};
  return instruction;
}

}  // namespace

void fold_constants(jit::KernelSpec& spec) {
  rewrite_body(spec, [](const Instruction& instruction, Body& body) {
    if (const auto number = fold(instruction, body))
      return append(body, {Op::k_constant, instruction.type, {}, {-1, -1, -1}, std::bit_cast<int64_t>(*number)});
    const Instruction simple = simplified(instruction, body);
    if (const auto value = passed_on(simple, body)) return *value;
    return append(body, simple);
  });
}

}  // namespace lockstep::dynamic
