// Sources: the reduction and polynomial of exp are those of SLEEF's expf (N. Shibata, F. Petrogalli, "SLEEF: A Portable
// Vectorized Library of C Standard Mathematical Functions"); erf and tanh are split where their series ends, as in
// N. Juffa's published float32 versions. Every bound is checked by tests/dynamic/jit_math_test.cpp.
#include "dynamic/jit/inline_math.h"

#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Intrinsics.h>
#include <llvm/IR/IntrinsicsX86.h>
#include <llvm/IR/Module.h>

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

// p * 2^n with one rounding; n is whole and between -151 and 130.
Value* scale(FloatCode& f, Value* p, Value* n) {
  auto& b = f.b;
  if (f.code.target.is_wide) {
    Value* all = llvm::ConstantInt::get(b.getInt16Ty(), 0xffff);
    Value* nearest = b.getInt32(4);  // the mode that is set
    return b.CreateIntrinsic(llvm::Intrinsic::x86_avx512_mask_scalef_ps_512, {},
                             {p, n, llvm::Constant::getNullValue(f.type), all, nearest});
  }
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
  Value* n = b.CreateUnaryIntrinsic(llvm::Intrinsic::roundeven, b.CreateFMul(x, f.number(1.442695040888963407)));
  Value* r = f.fma(n, f.number(-0.693145751953125), x);
  r = f.fma(n, f.number(-1.428606765330187045e-06), r);
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

}  // namespace

Value* try_emit_inline(CodeContext& code, Op op, Value* x) {
  FloatCode f(code, x);
  if (!f.type->getScalarType()->isFloatTy()) return nullptr;
  if (op == Op::k_exp) return emit_exp(f, x);
  if (op == Op::k_erf) return emit_erf(f, x);
  if (op == Op::k_tanh) return emit_tanh(f, x);
  return nullptr;
}

}  // namespace lockstep::dynamic::jit
