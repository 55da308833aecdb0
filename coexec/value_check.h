// Errors by value: can this op raise because of what its operands hold? Decided on the leading thread where the
// deciding operands are at rest.
#pragma once

#include <ATen/core/ivalue.h>

#include "graph/op_info.h"

namespace lockstep::coexec {

// True where the operands, which are at rest, are known to be in range. False: cannot tell, or out of range; always so
// where only integers are checked, and one would have to look through them all.
bool values_in_range(const graph::OpInfo& op, at::ArrayRef<c10::IValue> args);
// Whether a number of this type may be too large for the other's, for which PyTorch raises.
bool may_not_hold(const at::Tensor& target, const at::Tensor& number);
// The operands whose values decide, as indices into the flattened tensor arguments.
bool is_deciding(const graph::OpInfo& op, const at::Tensor& operand);

}  // namespace lockstep::coexec
