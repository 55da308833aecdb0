#include "dynamic/fusion/op_body.h"

#include <ATen/core/Reduction.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>
#include <limits>

#include "dynamic/fusion/bfloat16.h"

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
    case ScalarType::BFloat16: return DType::kBFloat16;
    case ScalarType::Float: return DType::kFloat32;
    case ScalarType::Double: return DType::kFloat64;
    default: return std::nullopt;
  }
}

double largest_of(jit::DType type) {
  switch (type) {
    case jit::DType::kFloat64: return std::numeric_limits<double>::max();
    case jit::DType::kBFloat16: return std::numeric_limits<at::BFloat16>::max();
    case jit::DType::kFloat16: return std::numeric_limits<at::Half>::max();
    default: return std::numeric_limits<float>::max();
  }
}
bool fits(double number, jit::DType type) { return !std::isfinite(number) || std::abs(number) <= largest_of(type); }

jit::DType OpBody::common_type() const {
  if (target_.dtype == c10::ScalarType::Bool && !event_.signature->inputs.empty() && event_.signature->inputs[0].is_defined())
    return *jit_type(event_.signature->inputs[0].dtype);
  return *jit_type(target_.dtype);
}

jit::DType OpBody::type() const {
  const auto common = common_type();
  return common == jit::DType::kBFloat16 ? jit::DType::kFloat32 : common;
}

// PyTorch makes all operands of the common type, before it computes in float32: but for numbers of some ops, which a
// tensor of one element is for them as well.
bool OpBody::rounds_operand(int operand) const {
  if (common_type() != jit::DType::kBFloat16) return false;
  const auto& layout = event_.signature->inputs[operand];
  const bool is_number = layout.wrapped_number || layout.numel() == 1;
  return layout.dtype != c10::ScalarType::BFloat16 && layout.dtype != c10::ScalarType::Bool &&
         !(is_number && bfloat16_rule(event_.op()).unrounded_operands >> operand & 1);
}

OpBody::Value OpBody::rounded(Value value) {
  return spec_.cast(spec_.cast(value, jit::DType::kBFloat16), jit::DType::kFloat32);
}

OpBody::Value OpBody::in_own_type(int operand) {
  if (event_.operands[operand].direct.defined())
    return use_scalar_({index_, -1, operand, *jit_type(event_.signature->inputs[operand].dtype)});
  return read_(operand);
}

OpBody::Value OpBody::in(int operand) {
  const bool is_number = event_.operands[operand].direct.defined();
  const Value value = is_number ? use_scalar_({index_, -1, operand, type(), 0, common_type()}) : read_(operand);
  if (rounds_operand(operand)) return rounded(value);
  return spec_.type_of(value) == type() ? value : spec_.cast(value, type());
}

bool OpBody::rounds_arguments() const {
  return common_type() == jit::DType::kBFloat16 && bfloat16_rule(event_.op()).rounds_arguments;
}

OpBody::Value OpBody::scalar(int argument) {
  const Value value = use_scalar_({index_, argument, -1, type(), 0, common_type()});
  return rounds_arguments() ? rounded(value) : value;
}

OpBody::Value OpBody::static_scalar(int argument) {
  const Value value = number_of_call(event_.args[argument].toScalar().toDouble());
  return rounds_arguments() ? rounded(value) : value;
}

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
