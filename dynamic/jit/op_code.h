// One op of a body as LLVM code over vectors of lanes.
#pragma once

#include "dynamic/jit/lane_code.h"

namespace lockstep::dynamic::jit {

// Any op but load, scalar, constant, index, reduce and store. `operand_type` is the first operand's.
llvm::Value* emit_op(CodeContext& code, const Instruction& instruction, DType operand_type,
                     llvm::Value* const* operands);

// Folding of a reduction: sums and products of wide lanes, comparisons of any. `type` is the reduction's.
llvm::Value* emit_fold(CodeContext& code, ReduceKind kind, DType type, llvm::Value* total, llvm::Value* value);
// One lane that changes nothing when folded. `lane` is the accumulator's type.
llvm::Value* fold_identity(CodeContext& code, ReduceKind kind, DType type, llvm::Type* lane);

}  // namespace lockstep::dynamic::jit
