#include "dynamic/jit/op_code.h"

#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Intrinsics.h>
#include <llvm/IR/Module.h>

#include "dynamic/jit/loop_plan.h"
#include "dynamic/jit/math_code.h"

namespace lockstep::dynamic::jit {
namespace {

using llvm::Value;
using llvm::Intrinsic::ID;

bool is_maximum(ReduceKind kind) { return kind == ReduceKind::kMax || kind == ReduceKind::kMaxNumber; }

Value* emit_select_nan(CodeContext& code, Value* is_left, Value* left, Value* right) {
  auto& b = code.builder;
  Value* chosen = b.CreateSelect(is_left, left, right);
  // A nan on either side wins; the left one if both are.
  Value* with_right = b.CreateSelect(b.CreateFCmpUNO(right, right), right, chosen);
  return b.CreateSelect(b.CreateFCmpUNO(left, left), left, with_right);
}

Value* emit_float_unary(CodeContext& code, Op op, Value* x) {
  auto& b = code.builder;
  auto intrinsic = [&](ID id) { return b.CreateUnaryIntrinsic(id, x); };
  Value* zero = llvm::Constant::getNullValue(x->getType());
  Value* one = llvm::ConstantFP::get(x->getType(), 1.0);
  switch (op) {
    case Op::k_neg: return b.CreateFNeg(x);
    case Op::k_abs: return intrinsic(llvm::Intrinsic::fabs);
    case Op::k_relu: return b.CreateSelect(b.CreateFCmpOGT(zero, x), zero, x);
    case Op::k_sign: {
      Value* positive = b.CreateUIToFP(b.CreateFCmpOGT(x, zero), x->getType());
      return b.CreateFSub(positive, b.CreateUIToFP(b.CreateFCmpOLT(x, zero), x->getType()));
    }
    case Op::k_sqrt: return intrinsic(llvm::Intrinsic::sqrt);
    case Op::k_rsqrt: return b.CreateFDiv(one, intrinsic(llvm::Intrinsic::sqrt));
    case Op::k_reciprocal: return b.CreateFDiv(one, x);
    case Op::k_floor: return intrinsic(llvm::Intrinsic::floor);
    case Op::k_ceil: return intrinsic(llvm::Intrinsic::ceil);
    case Op::k_round: return intrinsic(llvm::Intrinsic::roundeven);
    case Op::k_trunc: return intrinsic(llvm::Intrinsic::trunc);
    case Op::k_isnan: return b.CreateFCmpUNO(x, x);
    case Op::k_logical_not: return b.CreateFCmpOEQ(x, zero);
    default: return emit_math_unary(code, op, x);
  }
}

Value* emit_integer_unary(CodeContext& code, Op op, DType type, Value* x) {
  auto& b = code.builder;
  Value* zero = llvm::Constant::getNullValue(x->getType());
  bool is_unsigned = type == DType::kUInt8;
  switch (op) {
    case Op::k_neg: return b.CreateNeg(x);
    case Op::k_abs: return is_unsigned ? x : b.CreateSelect(b.CreateICmpSLT(x, zero), b.CreateNeg(x), x);
    case Op::k_relu: return is_unsigned ? x : b.CreateSelect(b.CreateICmpSLT(x, zero), zero, x);
    case Op::k_sign: {
      Value* positive = is_unsigned ? b.CreateICmpNE(x, zero) : b.CreateICmpSGT(x, zero);
      Value* sign = b.CreateZExt(positive, x->getType());
      return is_unsigned ? sign : b.CreateAdd(sign, b.CreateSExt(b.CreateICmpSLT(x, zero), x->getType()));
    }
    case Op::k_logical_not: return b.CreateICmpEQ(x, zero);
    default: return b.CreateNot(x);  // bitwise_not
  }
}

Value* emit_float_binary(CodeContext& code, Op op, Value* x, Value* y) {
  auto& b = code.builder;
  switch (op) {
    case Op::k_add: return b.CreateFAdd(x, y);
    case Op::k_sub: return b.CreateFSub(x, y);
    case Op::k_mul: return b.CreateFMul(x, y);
    case Op::k_div: return b.CreateFDiv(x, y);
    case Op::k_minimum: return emit_select_nan(code, b.CreateFCmpOLT(x, y), x, y);
    case Op::k_maximum: return emit_select_nan(code, b.CreateFCmpOGT(x, y), x, y);
    case Op::k_eq: return b.CreateFCmpOEQ(x, y);
    case Op::k_ne: return b.CreateFCmpUNE(x, y);
    case Op::k_lt: return b.CreateFCmpOLT(x, y);
    case Op::k_le: return b.CreateFCmpOLE(x, y);
    case Op::k_gt: return b.CreateFCmpOGT(x, y);
    case Op::k_ge: return b.CreateFCmpOGE(x, y);
    default: return emit_math_binary(code, op, x, y);
  }
}

Value* emit_integer_binary(CodeContext& code, Op op, DType type, Value* x, Value* y) {
  auto& b = code.builder;
  bool is_unsigned = type == DType::kUInt8 || type == DType::kBool;
  auto compare = [&](llvm::CmpInst::Predicate for_signed, llvm::CmpInst::Predicate for_unsigned) {
    return b.CreateICmp(is_unsigned ? for_unsigned : for_signed, x, y);
  };
  using P = llvm::CmpInst;
  switch (op) {
    case Op::k_add: return b.CreateAdd(x, y);
    case Op::k_sub: return b.CreateSub(x, y);
    case Op::k_mul: return b.CreateMul(x, y);
    case Op::k_minimum: return b.CreateSelect(compare(P::ICMP_SLT, P::ICMP_ULT), x, y);
    case Op::k_maximum: return b.CreateSelect(compare(P::ICMP_SGT, P::ICMP_UGT), x, y);
    case Op::k_bit_and: return b.CreateAnd(x, y);
    case Op::k_bit_or: return b.CreateOr(x, y);
    case Op::k_bit_xor: return b.CreateXor(x, y);
    case Op::k_eq: return b.CreateICmpEQ(x, y);
    case Op::k_ne: return b.CreateICmpNE(x, y);
    case Op::k_lt: return compare(P::ICMP_SLT, P::ICMP_ULT);
    case Op::k_le: return compare(P::ICMP_SLE, P::ICMP_ULE);
    case Op::k_gt: return compare(P::ICMP_SGT, P::ICMP_UGT);
    default: return compare(P::ICMP_SGE, P::ICMP_UGE);
  }
}

}  // namespace

Value* emit_op(CodeContext& code, const Instruction& instruction, DType operand_type, Value* const* operands) {
  auto& b = code.builder;
  Op op = instruction.op;
  if (op == Op::k_cast) return cast_lanes(code, operands[0], operand_type, instruction.type);
  if (op == Op::k_where) return b.CreateSelect(operands[0], operands[1], operands[2]);
  Value* value;
  bool is_float = is_floating(operand_type);
  if (op == Op::k_fma) {
    llvm::Type* type = operands[0]->getType();
    value = b.CreateIntrinsic(llvm::Intrinsic::fma, {type}, {operands[0], operands[1], operands[2]});
  } else if (row_of(op).arity == 1) {
    value =
        is_float ? emit_float_unary(code, op, operands[0]) : emit_integer_unary(code, op, operand_type, operands[0]);
  } else {
    value = is_float ? emit_float_binary(code, op, operands[0], operands[1])
                     : emit_integer_binary(code, op, operand_type, operands[0], operands[1]);
  }
  return is_floating(instruction.type) ? round_lanes(code, value, instruction.type) : value;
}

Value* emit_fold(CodeContext& code, ReduceKind kind, DType type, Value* total, Value* value) {
  auto& b = code.builder;
  bool is_float = is_floating(type);
  switch (kind) {
    case ReduceKind::kSum: return is_float ? b.CreateFAdd(total, value) : b.CreateAdd(total, value);
    case ReduceKind::kProd: return is_float ? b.CreateFMul(total, value) : b.CreateMul(total, value);
    case ReduceKind::kAny: return b.CreateOr(total, value);
    case ReduceKind::kAll: return b.CreateAnd(total, value);
    default: break;
  }
  bool is_max = is_maximum(kind);
  if (!is_float) {
    return emit_integer_binary(code, is_max ? Op::k_maximum : Op::k_minimum, type, total, value);
  }
  // A nan in the total stays: it compares with nothing.
  Value* is_better = is_max ? b.CreateFCmpOGT(value, total) : b.CreateFCmpOLT(value, total);
  Value* chosen = b.CreateSelect(is_better, value, total);
  if (kind == ReduceKind::kMaxNumber) return chosen;
  return b.CreateSelect(b.CreateFCmpUNO(value, value), value, chosen);
}

Value* fold_identity(CodeContext& code, ReduceKind kind, DType type, llvm::Type* lane) {
  if (kind == ReduceKind::kSum || kind == ReduceKind::kAny) return llvm::Constant::getNullValue(lane);
  if (kind == ReduceKind::kProd) {
    return lane->isFloatingPointTy() ? llvm::ConstantFP::get(lane, 1.0) : llvm::ConstantInt::get(lane, 1);
  }
  if (kind == ReduceKind::kAll) return llvm::ConstantInt::get(lane, 1);
  bool is_max = is_maximum(kind);
  if (lane->isFloatingPointTy()) return llvm::ConstantFP::getInfinity(lane, is_max);
  unsigned bits = lane->getIntegerBitWidth();
  if (type == DType::kUInt8) return llvm::ConstantInt::get(lane, is_max ? 0 : 0xff);
  llvm::APInt edge = is_max ? llvm::APInt::getSignedMinValue(bits) : llvm::APInt::getSignedMaxValue(bits);
  return llvm::ConstantInt::get(lane, edge);
}

}  // namespace lockstep::dynamic::jit
