// Sources: for 256 bits the reduction and polynomial of exp are those of SLEEF's expf (N. Shibata, F. Petrogalli, "SLEEF:
// A Portable Vectorized Library of C Standard Mathematical Functions"); erf and tanh are split where their series ends, as
// in N. Juffa's published float32 versions. Tables follow P. Tang's exp (1989), where a lookup costs a cycle. Every bound is
// checked by tests/dynamic/jit_math_test.cpp.
#include "dynamic/jit/inline_math.h"

#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Intrinsics.h>
#include <llvm/IR/IntrinsicsX86.h>
#include <llvm/IR/Module.h>

#include <cmath>

#include "dynamic/jit/function_table.h"
#include "dynamic/jit/loop_plan.h"

namespace lockstep::dynamic::jit {
namespace {

using llvm::Value;

struct FloatCode {
  CodeContext& code;
  llvm::IRBuilderBase& b;
  llvm::Type* type;

  explicit FloatCode(CodeContext& context, Value* x) : code(context), b(context.builder), type(x->getType()) {}
  Value* number(double value) { return llvm::ConstantFP::get(type, value); }
  Value* fma(Value* x, Value* y, Value* z) { return b.CreateIntrinsic(llvm::Intrinsic::fma, {type}, {x, y, z}); }
  Value* fabs(Value* x) { return b.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x); }
  Value* copysign(Value* x, Value* sign) { return b.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, x, sign); }
  // Both keep a nan.
  Value* at_most(Value* x, double bound) { return b.CreateSelect(b.CreateFCmpOLT(number(bound), x), number(bound), x); }
  Value* at_least(Value* x, double bound) {
    return b.CreateSelect(b.CreateFCmpOGT(number(bound), x), number(bound), x);
  }
  // c0 + x (c1 + x (c2 + ...))
  Value* polynomial(Value* x, std::initializer_list<double> high_to_low) {
    Value* sum = nullptr;
    for (double coefficient : high_to_low) sum = sum ? fma(sum, x, number(coefficient)) : number(coefficient);
    return sum;
  }
};

constexpr double kLog2E = 1.442695040888963407;
constexpr double kLn2High = 0.693145751953125, kLn2Low = 1.428606765330187045e-06;

// ---- AVX2: polynomials alone

// p * 2^n with one rounding; n is whole and between -151 and 130.
Value* scale(FloatCode& f, Value* p, Value* n) {
  auto& b = f.b;
  llvm::Type* whole = llvm::FixedVectorType::get(b.getInt32Ty(), kLanes);
  auto power = [&](Value* exponent) {
    Value* bits =
        b.CreateShl(b.CreateAdd(exponent, llvm::ConstantInt::get(whole, 127)), llvm::ConstantInt::get(whole, 23));
    return b.CreateBitCast(bits, f.type);
  };
  Value* exponent = b.CreateFreeze(b.CreateFPToSI(n, whole));
  Value* half = b.CreateAShr(exponent, llvm::ConstantInt::get(whole, 1));
  return b.CreateFMul(b.CreateFMul(p, power(half)), power(b.CreateSub(exponent, half)));
}

Value* emit_exp(FloatCode& f, Value* x) {
  auto& b = f.b;
  x = f.at_least(f.at_most(x, 89.5), -104.5);
  Value* n = b.CreateUnaryIntrinsic(llvm::Intrinsic::roundeven, b.CreateFMul(x, f.number(kLog2E)));
  Value* r = f.fma(n, f.number(-kLn2High), x);
  r = f.fma(n, f.number(-kLn2Low), r);
  Value* p = f.polynomial(r, {0.000198527617612853646278381, 0.00139304355252534151077271, 0.00833336077630519866943359,
                              0.0416664853692054748535156, 0.166666671633720397949219, 0.5, 1.0, 1.0});
  return scale(f, p, n);
}

Value* emit_erf(FloatCode& f, Value* x) {
  auto& b = f.b;
  Value* t = f.at_most(f.fabs(x), 4.5);
  Value* s = b.CreateFMul(t, t);
  Value* high = f.fma(f.number(-1.72853470e-5), t, f.number(3.83197126e-4));
  high = f.fma(high, s, f.fma(f.number(-3.88396438e-3), t, f.number(2.42546219e-2)));
  high = f.fma(high, t, f.number(-1.06777877e-1));
  high = f.fma(high, t, f.number(-6.34846687e-1));
  high = f.fma(high, t, f.number(-1.28717512e-1));
  high = f.fma(high, t, b.CreateFNeg(t));
  Value* far = f.copysign(b.CreateFSub(f.number(1), emit_exp(f, high)), x);
  Value* low =
      f.polynomial(s, {-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1});
  return b.CreateSelect(b.CreateFCmpOGT(t, f.number(0.927734375)), far, f.fma(low, x, x));
}

Value* emit_tanh(FloatCode& f, Value* x) {
  auto& b = f.b;
  Value* t = f.at_most(f.fabs(x), 10);
  Value* e = emit_exp(f, b.CreateFAdd(t, t));
  Value* far = b.CreateFSub(f.number(1), b.CreateFDiv(f.number(2), b.CreateFAdd(e, f.number(1))));
  Value* s = b.CreateFMul(t, t);
  Value* low = f.polynomial(s, {1.57394409e-2, -5.23025580e-2, 1.33152470e-1, -3.33327681e-1});
  Value* near = f.fma(b.CreateFMul(low, s), t, t);
  return f.copysign(b.CreateSelect(b.CreateFCmpOGT(t, f.number(0.599609375)), far, near), x);
}

// ---- AVX-512: tables in registers

constexpr int kNearest = 4;  // the rounding mode that is set

Value* lanes_of(FloatCode& f, const float* values) {
  return llvm::ConstantDataVector::get(f.b.getContext(), llvm::ArrayRef<float>(values, kLanes));
}

// Bits of whole numbers in the mantissa, if the sum's last bit is worth one of what counts.
Value* bits_of(FloatCode& f, Value* x) {
  return f.b.CreateBitCast(x, llvm::FixedVectorType::get(f.b.getInt32Ty(), kLanes));
}

Value* look_up(FloatCode& f, const std::array<float, PowerTable::kCount>& table, Value* index) {
  return f.b.CreateIntrinsic(llvm::Intrinsic::x86_avx512_permvar_sf_512, {}, {lanes_of(f, table.data()), index});
}
Value* look_up(FloatCode& f, const FunctionTable::Row& table, Value* index) {
  return f.b.CreateIntrinsic(llvm::Intrinsic::x86_avx512_vpermi2var_ps_512, {},
                             {lanes_of(f, table.data()), index, lanes_of(f, table.data() + kLanes)});
}

// 2^(k / 16) e^r. Too large and too small come from the scaling; all that r needs is to stay a number there.
Value* emit_exp_by_table(FloatCode& f, Value* x) {
  auto& b = f.b;
  Value* all = b.getInt16(0xffff);
  Value* zeros = llvm::Constant::getNullValue(f.type);
  constexpr double kSixteenths = 1.5 * (1 << 19);
  Value* shifted = f.fma(x, f.number(kLog2E), f.number(kSixteenths));
  Value* n = b.CreateFSub(shifted, f.number(kSixteenths));
  Value* r = f.fma(n, f.number(-kLn2Low), f.fma(n, f.number(-kLn2High), x));
  Value* least_magnitude = b.getInt32(2);  // with the sign of r
  r = b.CreateIntrinsic(llvm::Intrinsic::x86_avx512_mask_range_ps_512, {},
                        {r, f.number(0.022), least_magnitude, zeros, all, b.getInt32(kNearest)});
  Value* q = f.fma(b.CreateFMul(r, r), f.fma(r, f.number(1.0 / 6), f.number(0.5)), r);
  Value* index = bits_of(f, shifted);
  Value* power = look_up(f, power_table().high, index);
  Value* p = b.CreateFAdd(power, f.fma(power, q, look_up(f, power_table().low, index)));
  return b.CreateIntrinsic(llvm::Intrinsic::x86_avx512_mask_scalef_ps_512, {}, {p, n, zeros, all, b.getInt32(kNearest)});
}

// Past the last interval the function is 1.
Value* emit_odd_by_table(FloatCode& f, const FunctionTable& table, Value* x) {
  auto& b = f.b;
  constexpr double kWhole = 1.5 * (1 << 23);
  Value* t = f.at_most(f.fabs(x), table.step * (FunctionTable::kIntervals - 0.53125));
  Value* shifted = f.fma(t, f.number(1 / table.step), f.number(kWhole));
  Value* index = bits_of(f, shifted);
  Value* near = f.fma(b.CreateFSub(shifted, f.number(kWhole)), f.number(-table.step), t);
  // In pairs (Estrin): what counts is how long one vector takes, not how many operations.
  auto coefficient = [&](int i) { return look_up(f, table.coefficients[i], index); };
  Value* square = b.CreateFMul(near, near);
  Value* high = nullptr;
  for (int i = table.degree / 2 * 2; i >= 2; i -= 2) {
    Value* pair = i == table.degree ? coefficient(i) : f.fma(coefficient(i + 1), near, coefficient(i));
    high = high ? f.fma(high, square, pair) : pair;
  }
  Value* sum = f.fma(high, square, f.fma(coefficient(1), near, look_up(f, table.low, index)));
  return f.copysign(b.CreateFAdd(look_up(f, table.coefficients[0], index), b.CreateFAdd(near, sum)), x);
}

const FunctionTable& erf_table() {
  static const FunctionTable table = make_function_table(&std::erf, 0.125f, 5);
  return table;
}
const FunctionTable& tanh_table() {
  static const FunctionTable table = make_function_table(&std::tanh, 0.296875f, 6);
  return table;
}

}  // namespace

Value* try_emit_inline(CodeContext& code, Op op, Value* x) {
  FloatCode f(code, x);
  if (!f.type->getScalarType()->isFloatTy()) return nullptr;
  if (code.target.is_wide) {
    if (op == Op::k_exp) return emit_exp_by_table(f, x);
    if (op == Op::k_erf) return emit_odd_by_table(f, erf_table(), x);
    if (op == Op::k_tanh) return emit_odd_by_table(f, tanh_table(), x);
    return nullptr;
  }
  if (op == Op::k_exp) return emit_exp(f, x);
  if (op == Op::k_erf) return emit_erf(f, x);
  if (op == Op::k_tanh) return emit_tanh(f, x);
  return nullptr;
}

}  // namespace lockstep::dynamic::jit
