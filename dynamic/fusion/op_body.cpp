#include "dynamic/fusion/op_body.h"

namespace lockstep::dynamic {

std::optional<jit::DType> jit_type(c10::ScalarType type) {
  using c10::ScalarType;
  using jit::DType;
  switch (type) {
    case ScalarType::Bool: return DType::kBool;
    case ScalarType::Byte: return DType::kUInt8;
    case ScalarType::Char: return DType::kInt8;
    case ScalarType::Short: return DType::kInt16;
    case ScalarType::Int: return DType::kInt32;
    case ScalarType::Long: return DType::kInt64;
    case ScalarType::Float: return DType::kFloat32;
    case ScalarType::Double: return DType::kFloat64;
    default: return std::nullopt;
  }
}

namespace {

// Position of the operand that the op writes, or -1.
int written_operand(const Event& event) {
  int operand = 0;
  for (size_t a = 0; a < event.node->op->args.size(); ++a) {
    const auto& slot = event.node->op->args[a];
    if (slot.kind != graph::ArgKind::kTensor) continue;
    if (slot.is_written) return operand;
    ++operand;
  }
  return -1;
}

const graph::Layout& target_layout(const Event& event) {
  const int written = written_operand(event);
  return written >= 0 ? event.signature->inputs[written] : event.signature->outputs[0];
}

}  // namespace

jit::DType OpBody::type() const {
  const auto target = target_layout(event_).dtype;
  if (target == c10::ScalarType::Bool && !event_.signature->inputs.empty() && event_.signature->inputs[0].is_defined())
    return *jit_type(event_.signature->inputs[0].dtype);
  return *jit_type(target);
}

OpBody::Value OpBody::in_own_type(int operand) {
  if (event_.operands[operand].direct.defined())
    return use_scalar_({index_, -1, operand, *jit_type(event_.signature->inputs[operand].dtype)});
  return read_(operand);
}

OpBody::Value OpBody::in(int operand) {
  if (event_.operands[operand].direct.defined()) return use_scalar_({index_, -1, operand, type()});
  const Value value = read_(operand);
  return spec_.type_of(value) == type() ? value : spec_.cast(value, type());
}

OpBody::Value OpBody::scalar(int argument) { return use_scalar_({index_, argument, -1, type()}); }

void OpBody::finish(Value value) {
  const auto wanted = *jit_type(target_layout(event_).dtype);
  if (spec_.type_of(value) != wanted) value = spec_.cast(value, wanted);
  const int written = written_operand(event_);
  write_(written >= 0 ? written : 0, written < 0, value);
}

}  // namespace lockstep::dynamic
