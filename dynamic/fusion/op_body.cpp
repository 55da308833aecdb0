#include "dynamic/fusion/op_body.h"

#include <ATen/core/Reduction.h>

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

jit::DType OpBody::type() const {
  if (target_.dtype == c10::ScalarType::Bool && !event_.signature->inputs.empty() && event_.signature->inputs[0].is_defined())
    return *jit_type(event_.signature->inputs[0].dtype);
  return *jit_type(target_.dtype);
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

jit::Total total_of(const OpRow& row, const Event& event) {
  if (row.reduction < 0) return row.total;
  switch (event.args[row.reduction].toInt()) {
    case at::Reduction::Mean: return jit::Total::kMean;
    case at::Reduction::Sum: return jit::Total::kSum;
    default: return jit::Total::kNone;
  }
}

void OpBody::finish(int result, Value value) {
  const bool is_result = written_ < 0;
  const auto wanted = *jit_type(is_result ? event_.signature->outputs[result].dtype : target_.dtype);
  if (spec_.type_of(value) != wanted) value = spec_.cast(value, wanted);
  write_(is_result ? result : written_, is_result, value);
}

}  // namespace lockstep::dynamic
