#include "dynamic/jit/math_code.h"

#include <dlfcn.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Intrinsics.h>
#include <llvm/IR/Module.h>

#include <cmath>
#include <cstring>

#include "dynamic/jit/inline_math.h"
#include "dynamic/jit/loop_plan.h"

namespace lockstep::dynamic::jit {
namespace {

using llvm::FixedVectorType;
using llvm::Type;
using llvm::Value;

constexpr const char* kVectorUnary[] = {"exp", "expm1", "log", "log1p", "log2", "tanh", "erf", "sin", "cos"};
constexpr const char* kVectorBinary[] = {"pow", "atan2"};

// The name of glibc's vector function: _ZGV, e (512 bits) or d (256), N, lanes, v for each operand.
std::string vector_name(const char* function, bool is_wide, bool is_double, int arity) {
  int lanes = (is_wide ? 16 : 8) / (is_double ? 2 : 1);
  return std::string("_ZGV") + (is_wide ? "eN" : "dN") + std::to_string(lanes) + (arity == 1 ? "v_" : "vv_") +
         function + (is_double ? "" : "f");
}

llvm::FunctionCallee declare(CodeContext& code, const std::string& name, Type* type, size_t arity) {
  auto* signature = llvm::FunctionType::get(type, std::vector<Type*>(arity, type), false);
  llvm::FunctionCallee callee = code.module.getOrInsertFunction(name, signature);
  auto* function = llvm::cast<llvm::Function>(callee.getCallee());
  function->setDoesNotThrow();
  function->setDoesNotAccessMemory();
  return callee;
}

// Calls a function of `width` lanes on all kLanes, part by part.
Value* call_in_parts(CodeContext& code, const std::string& name, int width, std::initializer_list<Value*> operands) {
  auto& b = code.builder;
  auto* whole = llvm::cast<FixedVectorType>((*operands.begin())->getType());
  Type* part_type = width == 1 ? whole->getElementType() : FixedVectorType::get(whole->getElementType(), width);
  llvm::FunctionCallee callee = declare(code, name, part_type, operands.size());
  if (width == kLanes) return b.CreateCall(callee, llvm::ArrayRef<Value*>(operands.begin(), operands.size()));
  Value* result = llvm::PoisonValue::get(whole);
  for (int at = 0; at < kLanes; at += width) {
    llvm::SmallVector<Value*, 2> parts;
    for (Value* operand : operands) {
      parts.push_back(width == 1 ? b.CreateExtractElement(operand, at)
                                 : b.CreateExtractVector(part_type, operand, b.getInt64(at)));
    }
    Value* part = b.CreateCall(callee, parts);
    result = width == 1 ? b.CreateInsertElement(result, part, at)
                        : b.CreateInsertVector(whole, result, part, b.getInt64(at));
  }
  return result;
}

bool is_double(Value* x) { return x->getType()->getScalarType()->isDoubleTy(); }

Value* call_vector(CodeContext& code, const char* function, std::initializer_list<Value*> operands) {
  bool wide = code.target.is_wide;
  bool doubled = is_double(*operands.begin());
  std::string name = vector_name(function, wide, doubled, static_cast<int>(operands.size()));
  return call_in_parts(code, name, (wide ? 16 : 8) / (doubled ? 2 : 1), operands);
}

Value* call_scalar(CodeContext& code, const char* function, std::initializer_list<Value*> operands) {
  return call_in_parts(code, std::string(function) + (is_double(*operands.begin()) ? "" : "f"), 1, operands);
}

// exp(-|x|) / (1 + exp(-|x|)) on the left, 1 / (1 + exp(-|x|)) on the right. Where exp(-x) overflows PyTorch has zero, which
// what comes next may count on: no denormals that it does not have.
Value* emit_sigmoid(CodeContext& code, Value* x) {
  auto& b = code.builder;
  Value* one = llvm::ConstantFP::get(x->getType(), 1.0);
  Value* e = emit_math_unary(code, Op::k_exp_nonpositive, b.CreateFNeg(b.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x)));
  Value* zero = llvm::Constant::getNullValue(x->getType());
  const double lowest = is_double(x) ? -709.782712893384 : -88.72283172607422;  // of what exp(-x) is finite for
  e = b.CreateSelect(b.CreateFCmpOLT(x, llvm::ConstantFP::get(x->getType(), lowest)), zero, e);
  Value* is_left = b.CreateFCmpOLT(x, zero);
  return b.CreateFDiv(b.CreateSelect(is_left, e, one), b.CreateFAdd(one, e));
}

Value* emit_normal_cdf(CodeContext& code, Value* x) {
  auto& b = code.builder;
  auto number = [&](double value) { return llvm::ConstantFP::get(x->getType(), value); };
  Value* erf = emit_math_unary(code, Op::k_erf, b.CreateFMul(x, number(M_SQRT1_2)));
  return b.CreateFMul(number(0.5), b.CreateFAdd(number(1), erf));
}

// fmod with the sign of the divisor, as Python's %.
Value* emit_remainder(CodeContext& code, Value* x, Value* y) {
  auto& b = code.builder;
  Value* zero = llvm::Constant::getNullValue(x->getType());
  Value* rest = emit_math_binary(code, Op::k_fmod, x, y);
  Value* differ = b.CreateXor(b.CreateFCmpOLT(y, zero), b.CreateFCmpOLT(rest, zero));
  return b.CreateSelect(b.CreateAnd(b.CreateFCmpUNE(rest, zero), differ), b.CreateFAdd(rest, y), rest);
}

// libmvec's cosine may round to above 1, of which nobody expects 1 - c * c to be negative. nan stays.
Value* emit_within_one(CodeContext& code, Value* x) {
  auto& b = code.builder;
  Value *one = llvm::ConstantFP::get(x->getType(), 1.0), *minus_one = llvm::ConstantFP::get(x->getType(), -1.0);
  x = b.CreateSelect(b.CreateFCmpOGT(x, one), one, x);
  return b.CreateSelect(b.CreateFCmpOLT(x, minus_one), minus_one, x);
}

// By libmvec.
Value* emit_turn(CodeContext& code, Op op, Value* x) { return emit_within_one(code, call_vector(code, row_of(op).name, {x})); }

// 1 - x^2 / 2 + x^4 P(x^2), for up to an eighth of a turn, where others divide what is left of 1 by x; coefficients of FDLIBM.
Value* emit_double_cosine(CodeContext& code, Value* x) {
  auto& b = code.builder;
  auto number = [&](double value) { return llvm::ConstantFP::get(x->getType(), value); };
  auto fma = [&](Value* p, Value* q, Value* r) { return b.CreateIntrinsic(llvm::Intrinsic::fma, {x->getType()}, {p, q, r}); };
  constexpr double kRest[] = {-1.13596475577881948265e-11, 2.08757232129817482790e-09,  -2.75573143513906633035e-07,
                              2.48015872894767294178e-05,  -1.38888888888741095749e-03, 4.16666666666666019037e-02};
  Value* square = b.CreateFMul(x, x);
  Value* rest = number(kRest[0]);
  for (const double coefficient : llvm::ArrayRef<double>(kRest).drop_front()) rest = fma(rest, square, number(coefficient));
  Value* half = b.CreateFMul(square, number(0.5));
  Value* near = b.CreateFSub(number(1), half);
  Value* lacks = b.CreateFSub(b.CreateFSub(number(1), near), half);
  Value* value = b.CreateFAdd(near, fma(b.CreateFMul(square, square), rest, lacks));
  Value* is_near = b.CreateFCmpOLT(b.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x), number(M_PI_4));
  return b.CreateSelect(is_near, value, emit_turn(code, Op::k_cos, x));
}

// Where some lane is beyond what `value` is right for, which is seldom, all are asked of libmvec.
Value* emit_unless_huge(CodeContext& code, Op op, Value* x, Value* value) {
  auto& b = code.builder;
  auto number = [&](double bound) { return llvm::ConstantFP::get(x->getType(), bound); };
  Value* size = b.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x);
  Value* is_huge = b.CreateAnd(b.CreateFCmpOGT(size, number(kMostTurned)), b.CreateFCmpOLT(size, number(HUGE_VAL)));
  auto* before = b.GetInsertBlock();
  auto* rare = llvm::BasicBlock::Create(b.getContext(), "", before->getParent());
  auto* after = llvm::BasicBlock::Create(b.getContext(), "", before->getParent());
  b.CreateCondBr(b.CreateOrReduce(is_huge), rare, after);
  b.SetInsertPoint(rare);
  Value* other = b.CreateSelect(is_huge, emit_turn(code, op, x), value);
  b.CreateBr(after);
  b.SetInsertPoint(after);
  auto* either = b.CreatePHI(x->getType(), 2);
  either->addIncoming(value, before);
  either->addIncoming(other, rare);
  return either;
}

std::vector<MathSymbol> find_symbols() {
  std::vector<MathSymbol> symbols;
  void* library = dlopen("libmvec.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) return symbols;
  auto add = [&](const char* function, int arity) {
    for (int variant = 0; variant < 4; ++variant) {
      std::string name = vector_name(function, variant & 1, variant & 2, arity);
      if (void* address = dlsym(library, name.c_str())) symbols.push_back({name, address});
    }
  };
  for (const char* function : kVectorUnary) add(function, 1);
  for (const char* function : kVectorBinary) add(function, 2);
  symbols.push_back({"fmodf", reinterpret_cast<void*>(static_cast<float (*)(float, float)>(&fmodf))});
  symbols.push_back({"fmod", reinterpret_cast<void*>(static_cast<double (*)(double, double)>(&fmod))});
  symbols.push_back({"memcpy", reinterpret_cast<void*>(&memcpy)});
  symbols.push_back({"memset", reinterpret_cast<void*>(&memset)});
  return symbols;
}

}  // namespace

Value* emit_math_unary(CodeContext& code, Op op, Value* x) {
  if (op == Op::k_sigmoid) return emit_sigmoid(code, x);
  const bool turns = op == Op::k_sin || op == Op::k_cos;
  if (Value* value = try_emit_inline(code, op, x)) return turns ? emit_unless_huge(code, op, x, value) : value;
  if (op == Op::k_normal_cdf) return emit_normal_cdf(code, x);
  if (op == Op::k_cos) return emit_double_cosine(code, x);
  if (op == Op::k_sin) return emit_turn(code, op, x);
  return call_vector(code, op == Op::k_exp_nonpositive ? "exp" : row_of(op).name, {x});
}

Value* emit_math_binary(CodeContext& code, Op op, Value* x, Value* y) {
  if (op == Op::k_fmod) return call_scalar(code, "fmod", {x, y});
  if (op == Op::k_remainder) return emit_remainder(code, x, y);
  return call_vector(code, row_of(op).name, {x, y});
}

const std::vector<MathSymbol>& math_symbols() {
  static const std::vector<MathSymbol> symbols = find_symbols();
  return symbols;
}

}  // namespace lockstep::dynamic::jit
