// Sources: for 256 bits the argument of exp is reduced as in SLEEF's expf (N. Shibata, F. Petrogalli, "SLEEF: A Portable
// Vectorized Library of C Standard Mathematical Functions"); erf and tanh are split where their series ends, as in
// N. Juffa's published float32 versions. Polynomials are the best ones in relative error, fitted by Lawson's iteration.
// Tables follow P. Tang's exp (1989), where a lookup costs a cycle. Every bound is checked by
// tests/dynamic/jit_math_test.cpp.
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
};

constexpr double kLog2E = 1.442695040888963407;
constexpr double kLn2High = 0.693145751953125, kLn2Low = 1.428606765330187045e-06;

// ---- AVX2: polynomials alone, in pairs (Estrin): what counts is how long one vector takes, since few fit the processor's
// queue at a time

llvm::Type* whole_numbers(FloatCode& f) { return llvm::FixedVectorType::get(f.b.getInt32Ty(), kLanes); }
Value* bits_of(FloatCode& f, Value* x) { return f.b.CreateBitCast(x, whole_numbers(f)); }

// Whole numbers stand in the last bits of a float of this size.
constexpr double kWhole = 1.5 * (1 << 23);
constexpr int kExponentBits = 23, kBias = 127;

// 2^n, where the last bits of `shifted` are n + 127.
Value* power_of_bits(FloatCode& f, Value* shifted) {
  return f.b.CreateBitCast(f.b.CreateShl(shifted, llvm::ConstantInt::get(whole_numbers(f), kExponentBits)), f.type);
}

// c0 + x (c1 + x (c2 + ...)), from low to high.
Value* in_pairs(FloatCode& f, Value* x, Value* square, llvm::ArrayRef<double> coefficients) {
  Value* sum = nullptr;
  for (size_t i = (coefficients.size() - 1) / 2 * 2 + 2; i >= 2; i -= 2) {
    const bool is_single = i - 1 == coefficients.size();
    Value* pair = is_single ? f.number(coefficients[i - 2])
                            : f.fma(x, f.number(coefficients[i - 1]), f.number(coefficients[i - 2]));
    sum = sum ? f.fma(sum, square, pair) : pair;
  }
  return sum;
}

struct Power {  // mantissa 2^n
  Value* mantissa;
  Value* shifted;  // with n plus what was asked for in its last bits
};
// e^x is e^r 2^n.
Power reduce_exp(FloatCode& f, Value* x, int added) {
  auto& b = f.b;
  Value* whole = f.number(kWhole + added);
  Value* shifted = f.fma(x, f.number(kLog2E), whole);
  Value* n = b.CreateFSub(shifted, whole);
  Value* r = f.fma(n, f.number(-kLn2Low), f.fma(n, f.number(-kLn2High), x));
  Value* square = b.CreateFMul(r, r);
  constexpr double kRest[] = {0.4999999403953552, 0.1666651964187622, 0.041668400168418884, 0.00836885068565607,
                              0.0013814320554956794};
  Value* q = f.fma(in_pairs(f, r, square, kRest), square, r);
  return {b.CreateFAdd(q, f.number(1)), bits_of(f, shifted)};
}

// The power in two steps, of which the second rounds: what is too large or too small comes out right.
Value* emit_exp(FloatCode& f, Value* x) {
  auto& b = f.b;
  const auto [mantissa, shifted] = reduce_exp(f, f.at_least(f.at_most(x, 89.5), -104.5), 2 * kBias);
  Value* half = b.CreateLShr(shifted, llvm::ConstantInt::get(whole_numbers(f), 1));
  Value* once = b.CreateFMul(mantissa, power_of_bits(f, half));
  return b.CreateFMul(once, power_of_bits(f, b.CreateSub(shifted, half)));
}

// Nothing is too large, and all is lifted alike on the way.
Value* emit_exp_nonpositive(FloatCode& f, Value* x) {
  constexpr int kLift = 64;
  const auto [mantissa, shifted] = reduce_exp(f, f.at_least(x, -104.5), kBias + kLift);
  Value* lifted = f.b.CreateFMul(mantissa, power_of_bits(f, shifted));
  return f.b.CreateFMul(lifted, f.number(0x1p-64));
}

// Of -87 to 88.
Value* emit_moderate_exp(FloatCode& f, Value* x) {
  const auto [mantissa, shifted] = reduce_exp(f, x, kBias);
  return f.b.CreateFMul(mantissa, power_of_bits(f, shifted));
}

// 2^(x y).
Power raise_two(FloatCode& f, Value* x, Value* y, int added) {
  auto& b = f.b;
  constexpr double kPower[] = {1.0, 0.6931470036506653, 0.24022239446640015, 0.0555073618888855, 0.009671725332736969,
                               0.0013264453737065196};
  Value* whole = f.number(kWhole + added);
  Value* shifted = f.fma(x, y, whole);
  Value* rest = f.fma(x, y, b.CreateFSub(whole, shifted));
  return {in_pairs(f, rest, b.CreateFMul(rest, rest), kPower), bits_of(f, shifted)};
}

// Near zero x + x P(x^2); from there on 1 - 2^(t Q(t)), where log2 of what is left of 1 is nearly a straight line.
Value* emit_erf(FloatCode& f, Value* x) {
  auto& b = f.b;
  constexpr double kNear[] = {0.12837915122509003,   -0.3761248290538788,  0.11281704902648926,
                              -0.02676253952085972, 0.004987142514437437, -0.0005959857953712344};
  constexpr double kFar[] = {-1.62809419631958,   -0.9171749949455261,    -0.15182405710220337,
                             0.032999295741319656, -0.004630610346794128, 0.0003077806904911995};
  Value* t = f.at_most(f.fabs(x), 4.5);
  Value* s = b.CreateFMul(t, t);
  const auto [power, shifted] = raise_two(f, in_pairs(f, t, s, kFar), t, kBias);
  Value* far = b.CreateFSub(f.number(1), b.CreateFMul(power, power_of_bits(f, shifted)));
  Value* near = f.fma(in_pairs(f, s, b.CreateFMul(s, s), kNear), t, t);
  return f.copysign(b.CreateSelect(b.CreateFCmpOGT(t, f.number(0.927734375)), far, near), x);
}

// The tail to one side is 2^(t Q(t) - 1) for t = |x|, straight from there to where it is nothing: what is wanted is as
// good as the sum of two numbers, of which one is 1/2.
Value* emit_normal_cdf(FloatCode& f, Value* x) {
  auto& b = f.b;
  constexpr double kTail[] = {-1.1511052053015725,    -0.4592081966716403,     -0.05249617632021917,
                              0.0070634200937114006,  -0.00013693634869876847, -0.0001861802474417834,
                              3.937769199421903e-05,  -2.8349128152194147e-06};
  constexpr double kEnd = 9.956670038649001;  // t Q(t) is -126 there: the power's bits are those of zero
  Value* t = f.at_most(f.fabs(x), kEnd);
  Value* square = b.CreateFMul(t, t);
  const llvm::ArrayRef<double> all(kTail);
  Value* low = in_pairs(f, t, square, all.take_front(4));
  Value* high = in_pairs(f, t, square, all.drop_front(4));
  Value* q = f.fma(high, b.CreateFMul(square, square), low);
  const auto [power, shifted] = raise_two(f, q, t, kBias - 1);
  Value* tail = b.CreateFMul(power, power_of_bits(f, shifted));
  Value* is_left = b.CreateICmpSLT(bits_of(f, x), llvm::Constant::getNullValue(whole_numbers(f)));
  return b.CreateSelect(is_left, tail, b.CreateFSub(f.number(1), tail));
}

Value* emit_tanh(FloatCode& f, Value* x) {
  auto& b = f.b;
  constexpr double kNear[] = {-3.33327681e-1, 1.33152470e-1, -5.23025580e-2, 1.57394409e-2};
  Value* t = f.at_most(f.fabs(x), 10);
  Value* e = emit_moderate_exp(f, b.CreateFAdd(t, t));
  Value* far = b.CreateFSub(f.number(1), b.CreateFDiv(f.number(2), b.CreateFAdd(e, f.number(1))));
  Value* s = b.CreateFMul(t, t);
  Value* near = f.fma(b.CreateFMul(in_pairs(f, s, b.CreateFMul(s, s), kNear), s), t, t);
  return f.copysign(b.CreateSelect(b.CreateFCmpOGT(t, f.number(0.599609375)), far, near), x);
}

// ---- AVX2 and AVX-512 alike

// e^x - 1 is (e^r - 1) 2^n + 2^n - 1, at half its size, where nothing is too large; near zero n is zero.
Value* emit_expm1(FloatCode& f, Value* x) {
  auto& b = f.b;
  constexpr double kRest[] = {0.5, 0.1666666567325592, 0.04166635870933533, 0.008333389647305012, 0.0013940684730187058,
                              0.00019845883070956916};
  Value* t = f.at_least(f.at_most(x, 89), -30);
  Value* whole = f.number(kWhole + kBias - 1);
  Value* shifted = f.fma(t, f.number(kLog2E), whole);
  Value* n = b.CreateFSub(shifted, whole);
  Value* r = f.fma(n, f.number(-kLn2Low), f.fma(n, f.number(-kLn2High), t));
  Value* square = b.CreateFMul(r, r);
  Value* near = f.fma(in_pairs(f, r, square, kRest), square, r);
  Value* power = power_of_bits(f, bits_of(f, shifted));
  Value* half = f.fma(power, near, b.CreateFSub(power, f.number(0.5)));
  Value* is_near = b.CreateFCmpOLT(f.fabs(x), f.number(0.25));
  return f.copysign(b.CreateSelect(is_near, near, b.CreateFAdd(half, half)), x);
}

// What was rounded, and what that lacks.
struct Sum {
  Value *sum, *lacks;
};
Sum add(FloatCode& f, Value* x, Value* y) {
  auto& b = f.b;
  Value* sum = b.CreateFAdd(x, y);
  Value* added = b.CreateFSub(sum, x);
  return {sum, b.CreateFAdd(b.CreateFSub(x, b.CreateFSub(sum, added)), b.CreateFSub(y, added))};
}
Sum multiply(FloatCode& f, Value* x, Value* y) {
  Value* product = f.b.CreateFMul(x, y);
  return {product, f.fma(x, y, f.b.CreateFNeg(product))};
}

// Quarters of a turn that x is nearest to: their count in the last bits of `count`, what is left, and what that lacks. Up to
// kMostTurned the first difference is exact.
struct Turned {
  Value *count, *rest, *lacks;
};
Turned count_quarters(FloatCode& f, Value* x) {
  auto& b = f.b;
  constexpr double kFirst = 1.5707963705062866, kSecond = -4.371138828673793e-08, kThird = -1.7151245100058819e-15;
  Value* shifted = f.fma(x, f.number(M_2_PI), f.number(kWhole));
  Value* n = b.CreateFSub(shifted, f.number(kWhole));
  const Sum product = multiply(f, n, f.number(-kSecond)), sum = add(f, f.fma(n, f.number(-kFirst), x), product.sum);
  return {bits_of(f, shifted), sum.sum, f.fma(n, f.number(-kThird), b.CreateFAdd(sum.lacks, product.lacks))};
}

// r + r^3 P(r^2), and 1 - r^2 / 2 + r^4 P(r^2) with what each difference lacks; one of them, with a sign.
Value* emit_sine_or_cosine(FloatCode& f, Value* x, bool is_cosine) {
  auto& b = f.b;
  constexpr double kSine[] = {-0.16666654573138567, 0.008332158409802067, -0.0001951495764785276};
  constexpr double kCosine[] = {0.041666645618802955, -0.001388731306287604, 2.4432785110479137e-05};
  auto whole = [&](uint32_t value) { return llvm::ConstantInt::get(whole_numbers(f), value); };
  const auto [count, r, lacks] = count_quarters(f, x);
  Value *square = b.CreateFMul(r, r), *fourth = b.CreateFMul(square, square);
  Value* sine = b.CreateFAdd(r, f.fma(b.CreateFMul(r, square), in_pairs(f, square, fourth, kSine), lacks));
  Value* half = b.CreateFMul(square, f.number(0.5));
  Value* near = b.CreateFSub(f.number(1), half);
  Value* rest = b.CreateFSub(b.CreateFSub(f.number(1), near), half);
  rest = f.fma(f.fma(r, r, b.CreateFNeg(square)), f.number(-0.5), rest);
  rest = f.fma(r, b.CreateFNeg(lacks), rest);
  Value* cosine = b.CreateFAdd(near, f.fma(fourth, in_pairs(f, square, fourth, kCosine), rest));
  Value* turns = is_cosine ? b.CreateAdd(count, whole(1)) : count;
  Value* is_odd = b.CreateICmpNE(b.CreateAnd(turns, whole(1)), whole(0));
  Value* sign = b.CreateAnd(b.CreateShl(turns, whole(30)), whole(1u << 31));
  Value* value = b.CreateBitCast(b.CreateXor(bits_of(f, b.CreateSelect(is_odd, cosine, sine)), sign), f.type);
  return is_cosine ? value : b.CreateSelect(b.CreateFCmpOEQ(x, f.number(0)), x, value);  // -0 stays
}

// x is (1 + g) 2^e for g near zero, and the logarithm of 1 + g is g - g^2 / 2 + g^3 P(g).
Value* emit_logarithm(FloatCode& f, Op op, Value* of) {
  auto& b = f.b;
  constexpr double kRest[] = {0.3333331260410927,   -0.2500000959923925, 0.20002118656107704,
                              -0.16667995860903803, 0.14219552413575748, -0.12405588827541118,
                              0.11888161822655828,  -0.1167565220906773, 0.06746641931870023};
  constexpr double kLog2EHigh = 1.4426950216293335, kLog2ELow = 1.925963033500011e-08;
  constexpr int kRootOfHalf = 0x3f3504f3;  // its bits: from here to twice as much is e = 0
  auto whole = [&](int value) { return llvm::ConstantInt::get(whole_numbers(f), value); };
  Value *x = of, *lacks = nullptr, *lifted = nullptr;
  if (op == Op::k_log1p) {
    const Sum sum = add(f, f.number(1), of);
    x = sum.sum;
    lacks = b.CreateFDiv(sum.lacks, x);
  } else {  // denormals have no exponent of their own
    Value* is_tiny = b.CreateFCmpOLT(x, f.number(0x1p-126));
    x = b.CreateSelect(is_tiny, b.CreateFMul(x, f.number(0x1p24)), x);
    lifted = b.CreateSelect(is_tiny, f.number(-24), f.number(0));
  }
  Value* bits = bits_of(f, x);
  Value* power = b.CreateAShr(b.CreateSub(bits, whole(kRootOfHalf)), whole(kExponentBits));
  Value* g = b.CreateFSub(b.CreateBitCast(b.CreateSub(bits, b.CreateShl(power, whole(kExponentBits))), f.type), f.number(1));
  Value* e = b.CreateSIToFP(power, f.type);
  if (lifted) e = b.CreateFAdd(e, lifted);
  Value* square = b.CreateFMul(g, g);
  Value* cube = b.CreateFNeg(b.CreateFMul(square, g));
  Value* away = f.fma(cube, in_pairs(f, g, square, kRest), b.CreateFMul(square, f.number(0.5)));
  Value* value;
  if (op == Op::k_log2) {
    Value* low = f.fma(g, f.number(kLog2ELow), b.CreateFMul(away, f.number(-kLog2EHigh)));
    value = b.CreateFAdd(e, f.fma(g, f.number(kLog2EHigh), low));
  } else {
    Value* low = b.CreateFMul(e, f.number(kLn2Low));
    if (lacks) low = b.CreateFAdd(low, lacks);
    value = f.fma(e, f.number(kLn2High), b.CreateFAdd(g, b.CreateFSub(low, away)));
  }
  Value* none = b.CreateSelect(b.CreateFCmpOEQ(x, f.number(0)), f.number(-HUGE_VAL), f.number(std::nan("")));
  value = b.CreateSelect(b.CreateFCmpOGT(x, f.number(0)), value, none);
  value = b.CreateSelect(b.CreateFCmpOEQ(x, f.number(HUGE_VAL)), x, value);
  return op == Op::k_log1p ? f.copysign(value, of) : value;  // -0 stays
}

// ---- AVX-512: tables in registers

constexpr int kNearest = 4;  // the rounding mode that is set

Value* lanes_of(FloatCode& f, const float* values) {
  return llvm::ConstantDataVector::get(f.b.getContext(), llvm::ArrayRef<float>(values, kLanes));
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
  switch (op) {
    case Op::k_expm1: return emit_expm1(f, x);
    case Op::k_sin: return emit_sine_or_cosine(f, x, /*is_cosine=*/false);
    case Op::k_cos: return emit_sine_or_cosine(f, x, /*is_cosine=*/true);
    case Op::k_log:
    case Op::k_log2:
    case Op::k_log1p: return emit_logarithm(f, op, x);
    default: break;
  }
  if (code.target.is_wide) {
    if (op == Op::k_exp || op == Op::k_exp_nonpositive) return emit_exp_by_table(f, x);
    if (op == Op::k_erf) return emit_odd_by_table(f, erf_table(), x);
    if (op == Op::k_tanh) return emit_odd_by_table(f, tanh_table(), x);
    return nullptr;
  }
  if (op == Op::k_exp) return emit_exp(f, x);
  if (op == Op::k_exp_nonpositive) return emit_exp_nonpositive(f, x);
  if (op == Op::k_erf) return emit_erf(f, x);
  if (op == Op::k_normal_cdf) return emit_normal_cdf(f, x);
  if (op == Op::k_tanh) return emit_tanh(f, x);
  return nullptr;
}

}  // namespace lockstep::dynamic::jit
