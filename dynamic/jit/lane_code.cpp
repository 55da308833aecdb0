#include "dynamic/jit/lane_code.h"

#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Intrinsics.h>
#include <llvm/IR/Module.h>

#include <algorithm>
#include <bit>

#include "dynamic/jit/loop_plan.h"

namespace lockstep::dynamic::jit {
namespace {

using llvm::FixedVectorType;
using llvm::Type;
using llvm::Value;

Type* memory_lane_type(CodeContext& code, DType type) {
  llvm::LLVMContext& context = code.builder.getContext();
  switch (type) {
    case DType::kFloat16: return Type::getHalfTy(context);
    case DType::kFloat32: return Type::getFloatTy(context);
    case DType::kFloat64: return Type::getDoubleTy(context);
    default: return code.builder.getIntNTy(bytes_of(type) * 8);
  }
}

Type* like(Type* lane, Type* shape) {
  return shape->isVectorTy() ? static_cast<Type*>(FixedVectorType::get(lane, kLanes)) : lane;
}

// Both work on one lane as well.
Value* from_memory(CodeContext& code, DType type, Value* value) {
  auto& b = code.builder;
  switch (type) {
    case DType::kBool: return b.CreateICmpNE(value, llvm::Constant::getNullValue(value->getType()));
    case DType::kFloat16: return b.CreateFPExt(value, like(b.getFloatTy(), value->getType()));
    case DType::kBFloat16: {
      Type* wide = like(b.getInt32Ty(), value->getType());
      Value* bits = b.CreateShl(b.CreateZExt(value, wide), llvm::ConstantInt::get(wide, 16));
      return b.CreateBitCast(bits, like(b.getFloatTy(), value->getType()));
    }
    default: return value;
  }
}

Value* to_memory(CodeContext& code, DType type, Value* value) {
  auto& b = code.builder;
  switch (type) {
    case DType::kBool: return b.CreateZExt(value, like(b.getInt8Ty(), value->getType()));
    case DType::kFloat16: return b.CreateFPTrunc(value, like(b.getHalfTy(), value->getType()));
    case DType::kBFloat16: {
      Type* wide = like(b.getInt32Ty(), value->getType());
      Value* bits = b.CreateLShr(b.CreateBitCast(value, wide), llvm::ConstantInt::get(wide, 16));
      return b.CreateTrunc(bits, like(b.getInt16Ty(), value->getType()));
    }
    default: return value;
  }
}

bool uses_copies(CodeContext& code, DType type) {
  return code.target.has_copied_tails || (!code.target.is_wide && bytes_of(type) < 4);
}

Value* make_slot(CodeContext& code, Type* type) {
  llvm::Function* function = code.builder.GetInsertBlock()->getParent();
  llvm::IRBuilder<> entry(&function->getEntryBlock(), function->getEntryBlock().begin());
  auto* slot = entry.CreateAlloca(type);
  slot->setAlignment(llvm::Align(64));
  return slot;
}

Value* lane_addresses(CodeContext& code, DType type, Value* address, Value* stride) {
  auto& b = code.builder;
  Value* step = b.CreateMul(stride, b.getInt64(bytes_of(type)));
  Value* offsets = b.CreateMul(lane_numbers(code), splat(code, step));
  return b.CreateGEP(b.getInt8Ty(), address, offsets);
}

Value* all_lanes(CodeContext& code) {
  return llvm::Constant::getAllOnesValue(FixedVectorType::get(code.builder.getInt1Ty(), kLanes));
}

Value* cast_to_integer(CodeContext& code, Value* value, DType to) {
  auto& b = code.builder;
  // As x86 does it in C++: narrow types go by way of int32, uint8 of int64 (c10/util/TypeCast.h), which float64 alone
  // shows. Values out of range are the hardware's affair, not undefined.
  const bool is_long_way = to == DType::kUInt8 && value->getType()->getScalarType()->isDoubleTy();
  DType by_way_of = is_long_way ? DType::kInt64 : bytes_of(to) < 4 ? DType::kInt32 : to;
  Value* whole = b.CreateFreeze(b.CreateFPToSI(value, vector_type(code, by_way_of)));
  return bytes_of(to) < 4 ? b.CreateTrunc(whole, vector_type(code, to)) : whole;
}

}  // namespace

Type* lane_type(CodeContext& code, DType type) {
  if (type == DType::kBool) return code.builder.getInt1Ty();
  if (type == DType::kFloat16 || type == DType::kBFloat16) return code.builder.getFloatTy();
  return memory_lane_type(code, type);
}

Type* vector_type(CodeContext& code, DType type) { return FixedVectorType::get(lane_type(code, type), kLanes); }

Type* accumulator_lane_type(CodeContext& code, DType type) {
  return type == DType::kBool ? code.builder.getInt8Ty() : lane_type(code, type);
}

Value* splat(CodeContext& code, Value* lane) { return code.builder.CreateVectorSplat(kLanes, lane); }

Value* constant_lanes(CodeContext& code, DType type, int64_t immediate) {
  if (!is_floating(type)) {
    return splat(code, llvm::ConstantInt::get(lane_type(code, type), static_cast<uint64_t>(immediate), true));
  }
  double number = std::bit_cast<double>(immediate);
  if (type != DType::kFloat64) number = static_cast<float>(number);
  return round_lanes(code, splat(code, llvm::ConstantFP::get(lane_type(code, type), number)), type);
}

Value* lane_numbers(CodeContext& code) {
  llvm::SmallVector<llvm::Constant*, kLanes> lanes;
  for (int i = 0; i < kLanes; ++i) lanes.push_back(code.builder.getInt64(i));
  return llvm::ConstantVector::get(lanes);
}

Tail make_tail(CodeContext& code, Value* count) {
  auto& b = code.builder;
  Value* all = b.getInt64(kLanes);
  Value* capped = b.CreateSelect(b.CreateICmpSLT(count, all), count, all);
  llvm::SmallVector<uint32_t, kLanes> numbers;  // 32 bits: one register of them
  for (uint32_t i = 0; i < kLanes; ++i) numbers.push_back(i);
  Value* lanes = llvm::ConstantDataVector::get(b.getContext(), numbers);
  return {b.CreateICmpULT(lanes, splat(code, b.CreateTrunc(capped, b.getInt32Ty()))), capped};
}

Value* load_lanes(CodeContext& code, DType type, Value* address, Value* stride, const Tail* tail) {
  auto& b = code.builder;
  Type* lane = memory_lane_type(code, type);
  Type* memory = FixedVectorType::get(lane, kLanes);
  llvm::Align align(bytes_of(type));
  Value* zero = llvm::Constant::getNullValue(memory);
  Value* value;
  if (stride) {
    Value* mask = tail ? tail->mask : all_lanes(code);
    value = b.CreateMaskedGather(memory, lane_addresses(code, type, address, stride), align, mask, zero);
  } else if (!tail) {
    value = b.CreateAlignedLoad(memory, address, align);
  } else if (uses_copies(code, type)) {
    Value* slot = make_slot(code, memory);
    b.CreateAlignedStore(zero, slot, llvm::Align(16));
    b.CreateMemCpy(slot, llvm::Align(16), address, align, b.CreateMul(tail->count, b.getInt64(bytes_of(type))));
    value = b.CreateAlignedLoad(memory, slot, llvm::Align(16));
  } else {
    value = b.CreateMaskedLoad(memory, address, align, tail->mask, zero);
  }
  return from_memory(code, type, value);
}

Value* load_splat(CodeContext& code, DType type, Value* address) {
  Value* lane = code.builder.CreateAlignedLoad(memory_lane_type(code, type), address, llvm::Align(bytes_of(type)));
  return from_memory(code, type, splat(code, lane));
}

namespace {

struct Bits {
  Value* byte;   // where they begin
  Value* first;  // the bit of it, i64
};

// Addresses of one lane or of many.
Bits find_bits(CodeContext& code, Value* address) {
  auto& b = code.builder;
  Type* numbers = like(b.getInt64Ty(), address->getType());
  Value* number = b.CreatePtrToInt(address, numbers);
  Value* byte = b.CreateIntToPtr(b.CreateLShr(number, llvm::ConstantInt::get(numbers, 3)), address->getType());
  return {byte, b.CreateAnd(number, llvm::ConstantInt::get(numbers, 7))};
}

}  // namespace

Value* load_packed_lanes(CodeContext& code, Value* address, Value* stride, const Tail* tail) {
  auto& b = code.builder;
  static_assert(kLanes == 16, "with the bits before the first they lie in 32");
  if (!stride) {
    const Bits bits = find_bits(code, address);
    Value* word = b.CreateAlignedLoad(b.getInt32Ty(), bits.byte, llvm::Align(1));
    Value* lanes = b.CreateTrunc(b.CreateLShr(word, b.CreateTrunc(bits.first, b.getInt32Ty())), b.getIntNTy(kLanes));
    return b.CreateBitCast(lanes, FixedVectorType::get(b.getInt1Ty(), kLanes));
  }
  const Bits bits = find_bits(code, lane_addresses(code, DType::kBool, address, stride));
  Type* bytes = FixedVectorType::get(b.getInt8Ty(), kLanes);
  Value* zero = llvm::Constant::getNullValue(bytes);
  Value* loaded = b.CreateMaskedGather(bytes, bits.byte, llvm::Align(1), tail ? tail->mask : all_lanes(code), zero);
  Value* shifted = b.CreateLShr(loaded, b.CreateTrunc(bits.first, bytes));
  return b.CreateTrunc(shifted, FixedVectorType::get(b.getInt1Ty(), kLanes));
}

Value* load_packed_splat(CodeContext& code, Value* address) {
  auto& b = code.builder;
  const Bits bits = find_bits(code, address);
  Value* byte = b.CreateAlignedLoad(b.getInt8Ty(), bits.byte, llvm::Align(1));
  return splat(code, b.CreateTrunc(b.CreateLShr(byte, b.CreateTrunc(bits.first, b.getInt8Ty())), b.getInt1Ty()));
}

uint64_t line_alignment(DType type) { return std::min<uint64_t>(kLanes * bytes_of(type), 64); }

void store_lanes(CodeContext& code, DType type, Value* value, Value* address, Value* stride, const Tail* tail,
                 bool streams) {
  auto& b = code.builder;
  llvm::Align align(bytes_of(type));
  value = to_memory(code, type, value);
  if (stride) {
    b.CreateMaskedScatter(value, lane_addresses(code, type, address, stride), align,
                          tail ? tail->mask : all_lanes(code));
  } else if (!tail) {
    auto* store = b.CreateAlignedStore(value, address, streams ? llvm::Align(line_alignment(type)) : align);
    if (streams) {
      auto* one = llvm::ConstantAsMetadata::get(b.getInt32(1));
      store->setMetadata(llvm::LLVMContext::MD_nontemporal, llvm::MDNode::get(b.getContext(), {one}));
    }
  } else if (uses_copies(code, type)) {
    Value* slot = make_slot(code, value->getType());
    b.CreateAlignedStore(value, slot, llvm::Align(16));
    b.CreateMemCpy(address, align, slot, llvm::Align(16), b.CreateMul(tail->count, b.getInt64(bytes_of(type))));
  } else {
    b.CreateMaskedStore(value, address, align, tail->mask);
  }
}

void store_first_lane(CodeContext& code, DType type, Value* value, Value* address) {
  Value* lane = code.builder.CreateExtractElement(value, uint64_t{0});
  code.builder.CreateAlignedStore(to_memory(code, type, lane), address, llvm::Align(bytes_of(type)));
}

Value* cast_lanes(CodeContext& code, Value* value, DType from, DType to) {
  auto& b = code.builder;
  Type* type = vector_type(code, to);
  if (from == to) return value;
  if (to == DType::kBool) {
    Value* zero = llvm::Constant::getNullValue(value->getType());
    return is_floating(from) ? b.CreateFCmpUNE(value, zero) : b.CreateICmpNE(value, zero);
  }
  if (is_floating(from) && is_floating(to)) return round_lanes(code, b.CreateFPCast(value, type), to);
  if (is_floating(from)) return cast_to_integer(code, value, to);
  bool is_unsigned = from == DType::kBool || from == DType::kUInt8;
  if (is_floating(to)) {
    return round_lanes(code, is_unsigned ? b.CreateUIToFP(value, type) : b.CreateSIToFP(value, type), to);
  }
  return is_unsigned ? b.CreateZExtOrTrunc(value, type) : b.CreateSExtOrTrunc(value, type);
}

Value* round_lanes(CodeContext& code, Value* value, DType type) {
  auto& b = code.builder;
  if (type == DType::kFloat16) {
    return b.CreateFPExt(b.CreateFPTrunc(value, FixedVectorType::get(b.getHalfTy(), kLanes)), value->getType());
  }
  if (type != DType::kBFloat16) return value;
  // Not vcvtneps2bf16: it takes denormals for zero.
  Type* whole = FixedVectorType::get(b.getInt32Ty(), kLanes);
  auto word = [&](uint32_t bits) { return llvm::ConstantInt::get(whole, bits); };
  Value* bits = b.CreateBitCast(value, whole);
  Value* odd = b.CreateAnd(b.CreateLShr(bits, word(16)), word(1));
  Value* rounded = b.CreateAnd(b.CreateAdd(bits, b.CreateAdd(odd, word(0x7fff))), word(0xffff0000u));
  rounded = b.CreateSelect(b.CreateFCmpUNO(value, value), word(0x7fc00000u), rounded);
  return b.CreateBitCast(rounded, value->getType());
}

}  // namespace lockstep::dynamic::jit
