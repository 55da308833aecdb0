// A fused group as data: an iteration space, the buffers it walks over, and a body in SSA form that is evaluated at
// every point of the space. What a kernel computes is defined here and nowhere else:
//
//   - each op rounds as a separate kernel of its type would; bfloat16 and float16 ops compute in float32 and round;
//   - a Reduce folds the reduced dims and its result is there again at each of their points;
//   - the order in which a Reduce adds depends on the sizes of the space alone, never on the other ops, on strides, on
//     threads or on the width of the host's vectors. So the dims must be given as the ops see them, outermost first,
//     in memory order (reduced dims are not collapsed here);
//   - a total is an output that is broadcast along all dims but the innermost, or along all: it holds what is stored at
//     the points that share an element added up, in an order of which the same holds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dynamic/jit/ops.h"

namespace lockstep::dynamic::jit {

enum class DType : uint8_t {
  kBool,
  kUInt8,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  kCount
};
inline constexpr const char* kDTypeNames[] = {"bool", "u8", "i8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64"};
inline constexpr int kDTypeBytes[] = {1, 1, 1, 2, 4, 8, 2, 2, 4, 8};
inline constexpr const char* name_of(DType type) { return kDTypeNames[static_cast<int>(type)]; }
inline constexpr int bytes_of(DType type) { return kDTypeBytes[static_cast<int>(type)]; }
inline constexpr bool is_floating(DType type) { return type >= DType::kFloat16; }

inline constexpr int64_t kSymbolic = -1;  // a size or stride that is given at each call
inline constexpr int kMaxDims = 8;
inline constexpr int kMaxBuffers = 64;

enum class Access : uint8_t { kIn, kOut, kInOut };
enum class Total : uint8_t { kNone, kSum, kMean };
inline constexpr const char* kTotalNames[] = {"", "sum", "mean"};

// Buffers of one spec do not overlap each other; what is read and written is one buffer with kInOut.
struct Buffer {
  DType type = DType::kFloat32;
  Access access = Access::kIn;
  std::vector<int64_t> strides;  // in elements, one a dim; 0 broadcasts
  bool streaming = false;        // written past the cache if alignment allows; for results much larger than it
  Total total = Total::kNone;
  bool packed = false;           // an input of bools, one bit each: element i is bit i % 8 of byte i / 8
  bool operator==(const Buffer&) const = default;
};

// kMaxNumber passes over nans (-inf, if there is nothing else), which costs a third of what kMax costs.
enum class ReduceKind : uint8_t { kSum, kProd, kMax, kMin, kAny, kAll, kMaxNumber, kCount };
inline constexpr const char* kReduceNames[] = {"sum", "prod", "max", "min", "any", "all", "max_number"};

using ValueId = int32_t;

struct Instruction {
  Op op = Op::k_constant;
  DType type = DType::kFloat32;  // of the result; of the stored value for store
  ReduceKind kind = ReduceKind::kSum;
  ValueId operands[3] = {-1, -1, -1};
  int64_t immediate = 0;  // see ops.h; for reduce the mask of dims
  bool operator==(const Instruction&) const = default;
};

struct KernelSpec {
  std::vector<int64_t> sizes;  // outermost first; kSymbolic where given at the call
  std::vector<Buffer> buffers;
  std::vector<DType> scalars;
  std::vector<Instruction> body;  // an instruction's index is its value
  bool operator==(const KernelSpec&) const = default;

  // For making one. The result is checked by verify_spec, not here.
  int add_buffer(DType type, Access access, std::vector<int64_t> strides, bool streaming = false);
  int add_total(DType type, Total total, std::vector<int64_t> strides);
  int add_packed(std::vector<int64_t> strides);
  int add_scalar(DType type);
  ValueId load(int buffer);
  ValueId scalar(int index);
  ValueId constant(DType type, double value);
  ValueId index(int dim);
  ValueId cast(ValueId value, DType type);
  ValueId unary(Op op, ValueId value);
  ValueId binary(Op op, ValueId left, ValueId right);
  ValueId fma(ValueId a, ValueId b, ValueId c);
  ValueId where(ValueId condition, ValueId yes, ValueId no);
  ValueId reduce(ReduceKind kind, ValueId value, const std::vector<int>& dims);
  void store(int buffer, ValueId value);

  DType type_of(ValueId value) const { return body[value].type; }
  // The dims that its Reduces fold, as a mask; 0 without any.
  int64_t reduced_mask() const;
  bool has_totals() const;
  // The innermost dim that is not 1, or -1.
  int innermost() const;

 private:
  ValueId append(Instruction instruction);
};

}  // namespace lockstep::dynamic::jit
