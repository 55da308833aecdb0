// Vectors of kLanes lanes as LLVM values: types, memory, conversions, rounding. In registers bfloat16 and float16 are
// float lanes that hold a representable value, bool is i1.
#pragma once

#include "dynamic/jit/host_target.h"
#include "dynamic/jit/kernel_spec.h"

namespace llvm {
class IRBuilderBase;
class Module;
class Type;
class Value;
}  // namespace llvm

namespace lockstep::dynamic::jit {

struct CodeContext {
  llvm::Module& module;
  llvm::IRBuilderBase& builder;
  const HostTarget& target;
};

// The lanes that count, at the end of a row: the first `count` ones.
struct Tail {
  llvm::Value* mask = nullptr;   // <kLanes x i1>
  llvm::Value* count = nullptr;  // i64
};

llvm::Type* lane_type(CodeContext& code, DType type);    // in registers, one lane
llvm::Type* vector_type(CodeContext& code, DType type);  // kLanes of them

// A value of the type to which `type` widens in reductions' accumulators: float, double, an integer; bool as i8.
llvm::Type* accumulator_lane_type(CodeContext& code, DType type);

llvm::Value* splat(CodeContext& code, llvm::Value* lane);
llvm::Value* constant_lanes(CodeContext& code, DType type, int64_t immediate);
llvm::Value* lane_numbers(CodeContext& code);  // <kLanes x i64> 0, 1, ...
Tail make_tail(CodeContext& code, llvm::Value* count);

// Bytes, of vectors in memory that begins with a cache line.
uint64_t line_alignment(DType type);

// `tail` may be null: all lanes. `stride` is null for neighbours, else in elements between lanes.
llvm::Value* load_lanes(CodeContext& code, DType type, llvm::Value* address, llvm::Value* stride, const Tail* tail);
llvm::Value* load_splat(CodeContext& code, DType type, llvm::Value* address);
// The same of packed bools: the address, as a number, counts bits; some bytes beyond the last bit are read.
llvm::Value* load_packed_lanes(CodeContext& code, llvm::Value* address, llvm::Value* stride, const Tail* tail);
llvm::Value* load_packed_splat(CodeContext& code, llvm::Value* address);
void store_lanes(CodeContext& code, DType type, llvm::Value* value, llvm::Value* address, llvm::Value* stride,
                 const Tail* tail, bool streams);
void store_first_lane(CodeContext& code, DType type, llvm::Value* value, llvm::Value* address);

llvm::Value* cast_lanes(CodeContext& code, llvm::Value* value, DType from, DType to);
// Float lanes to the nearest value of the half type, as float lanes; others pass.
llvm::Value* round_lanes(CodeContext& code, llvm::Value* value, DType type);

}  // namespace lockstep::dynamic::jit
