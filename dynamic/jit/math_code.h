// Elementary functions over lanes of float and double. Each is within 4 ulp of the exact value everywhere, and gives
// the same bits in every lane and in every kernel. Most are glibc's vector functions (libmvec).
#pragma once

#include <vector>

#include "dynamic/jit/lane_code.h"

namespace lockstep::dynamic::jit {

llvm::Value* emit_math_unary(CodeContext& code, Op op, llvm::Value* x);
llvm::Value* emit_math_binary(CodeContext& code, Op op, llvm::Value* x, llvm::Value* y);

struct MathSymbol {
  std::string name;
  void* address;
};
// Everything that generated code may call. Empty if the vector library is not there.
const std::vector<MathSymbol>& math_symbols();

}  // namespace lockstep::dynamic::jit
