// Elementary functions of float lanes that are worth more than a call: what softmax, GELU and gates are made of. By tables
// in registers where these have 512 bits, else by polynomials: the bits are the same on every host with registers as wide.
#pragma once

#include "dynamic/jit/lane_code.h"

namespace lockstep::dynamic::jit {

// Sines and cosines are right for arguments up to here.
inline constexpr double kMostTurned = 1 << 21;

// Null where there is no such code for the op and the lanes' type.
llvm::Value* try_emit_inline(CodeContext& code, Op op, llvm::Value* x);

}  // namespace lockstep::dynamic::jit
