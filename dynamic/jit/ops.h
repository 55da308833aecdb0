// Every op a kernel body may hold, with its arity and what types it takes. One row an op; the text form, the verifier
// and the emitters read this table.
#pragma once

#include <cstdint>

namespace lockstep::dynamic::jit {

// What an op takes and gives:
//   kSame     operands and result of one type, numbers            kFloat    the same, floating types only
//   kBits     the same, integers and bool                         kAny      the same, every type
//   kCompare  operands of one type, result bool                   kTest     floating operand, result bool
//   kSelect   bool, then two of the result's type                 kSpecial  see the verifier
enum class OpClass : uint8_t { kSame, kFloat, kBits, kAny, kCompare, kTest, kSelect, kSpecial };

#define LOCKSTEP_JIT_OPS(X)                                                                          \
  X(load, 0, kSpecial)   /* immediate: buffer */                                                     \
  X(scalar, 0, kSpecial) /* immediate: run-time scalar */                                            \
  X(constant, 0, kSpecial) /* immediate: bits of a double for floating types, else of an int64 */    \
  X(index, 0, kSpecial)  /* immediate: dim; the coordinate, int64 */                                 \
  X(cast, 1, kSpecial)                                                                               \
  X(reduce, 1, kSpecial) /* immediate: kind and mask of dims */                                      \
  X(store, 1, kSpecial)  /* immediate: buffer */                                                     \
  X(neg, 1, kSame) X(abs, 1, kSame) X(relu, 1, kSame) X(sign, 1, kSame)                              \
  X(exp_nonpositive, 1, kFloat) /* exp of what is at most zero, or nan */                            \
  X(normal_cdf, 1, kFloat) /* 1/2 (1 + erf(x / sqrt 2)), and that good: small values are not to the last digit */ \
  X(exp, 1, kFloat) X(expm1, 1, kFloat) X(log, 1, kFloat) X(log1p, 1, kFloat) X(log2, 1, kFloat)     \
  X(sqrt, 1, kFloat) X(rsqrt, 1, kFloat) X(reciprocal, 1, kFloat) X(tanh, 1, kFloat)                 \
  X(erf, 1, kFloat) X(sigmoid, 1, kFloat) X(sin, 1, kFloat) X(cos, 1, kFloat) X(floor, 1, kFloat)    \
  X(ceil, 1, kFloat) X(round, 1, kFloat) /* half to even */ X(trunc, 1, kFloat)                      \
  X(isnan, 1, kTest) X(logical_not, 1, kBits) X(bitwise_not, 1, kBits)                               \
  X(add, 2, kSame) X(sub, 2, kSame) X(mul, 2, kSame) X(div, 2, kFloat)                               \
  X(minimum, 2, kSame) X(maximum, 2, kSame) /* nan as torch's */                                     \
  X(pow, 2, kFloat) X(atan2, 2, kFloat) X(fmod, 2, kFloat) X(remainder, 2, kFloat)                   \
  X(bit_and, 2, kBits) X(bit_or, 2, kBits) X(bit_xor, 2, kBits)                                      \
  X(eq, 2, kCompare) X(ne, 2, kCompare) X(lt, 2, kCompare) X(le, 2, kCompare) X(gt, 2, kCompare)     \
  X(ge, 2, kCompare)                                                                                 \
  X(fma, 3, kFloat) /* one rounding */ X(where, 3, kSelect)

enum class Op : uint8_t {
#define LOCKSTEP_JIT_ENUM(name, arity, kind) k_##name,
  LOCKSTEP_JIT_OPS(LOCKSTEP_JIT_ENUM)
#undef LOCKSTEP_JIT_ENUM
      kCount
};

struct OpRow {
  const char* name;
  int arity;
  OpClass op_class;
};
inline constexpr OpRow kOpRows[] = {
#define LOCKSTEP_JIT_ROW(name, arity, kind) {#name, arity, OpClass::kind},
    LOCKSTEP_JIT_OPS(LOCKSTEP_JIT_ROW)
#undef LOCKSTEP_JIT_ROW
};
inline constexpr const OpRow& row_of(Op op) { return kOpRows[static_cast<int>(op)]; }

}  // namespace lockstep::dynamic::jit
