// How the values of a body are evaluated at a point of the loops.
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Module.h>

#include <algorithm>

#include "dynamic/jit/kernel_emitter.h"
#include "dynamic/jit/op_code.h"

namespace lockstep::dynamic::jit {

using llvm::FixedVectorType;
using llvm::Value;

bool KernelEmitter::is_slot(ValueId value, int pass) const {
  return plan_.slots[value] >= 0 && plan_.facts[value].level <= pass;
}

std::vector<ValueId> KernelEmitter::roots_of(int pass) const {
  std::vector<ValueId> roots;
  for (ValueId reduction : plan_.passes[pass].reductions) roots.push_back(spec_.body[reduction].operands[0]);
  for (ValueId store : plan_.passes[pass].stores) roots.push_back(spec_.body[store].operands[0]);
  for (ValueId total : plan_.passes[pass].totals) roots.push_back(spec_.body[total].operands[0]);
  return roots;
}

KernelEmitter::Needed KernelEmitter::find_needed(const std::vector<ValueId>& roots, int pass, bool is_finish) const {
  std::vector<char> is_needed(spec_.body.size());
  for (ValueId root : roots) is_needed[root] = 1;
  for (ValueId i = static_cast<ValueId>(spec_.body.size()) - 1; i >= 0; --i) {
    bool is_leaf = is_slot(i, pass) || spec_.body[i].op == Op::k_reduce ||
                   (!is_finish && plan_.stashes[i] >= 0 && plan_.stash_passes[i] < pass);
    if (!is_needed[i] || is_leaf) continue;
    for (int k = 0; k < row_of(spec_.body[i].op).arity; ++k) is_needed[spec_.body[i].operands[k]] = 1;
  }
  Needed needed;
  for (ValueId i = 0; i < static_cast<ValueId>(spec_.body.size()); ++i) {
    if (!is_needed[i]) continue;
    (plan_.varies(i, plan_.vector) ? needed.varying : needed.invariant).push_back(i);
  }
  return needed;
}

void KernelEmitter::evaluate(const std::vector<ValueId>& order, Point& point) {
  for (ValueId value : order) {
    if (!point.values.count(value)) point.values[value] = evaluate_one(value, point);
  }
}

Value* KernelEmitter::evaluate_one(ValueId value, Point& point) {
  const Instruction& instruction = spec_.body[value];
  if (is_slot(value, point.pass)) return load_slot(value, point);
  if (!point.is_finish && plan_.stashes[value] >= 0 && plan_.stash_passes[value] < point.pass) {
    return builder_.CreateAlignedLoad(vector_type(code_, instruction.type), stash_address(value, point),
                                      llvm::Align(8));
  }
  int last_dim = layout_.dim_count - 1;
  switch (instruction.op) {
    case Op::k_reduce: return load_total(value, point);
    case Op::k_constant: return constant_lanes(code_, instruction.type, instruction.immediate);
    case Op::k_scalar: {
      bool is_float = is_floating(instruction.type);
      llvm::Type* type = is_float ? builder_.getDoubleTy() : builder_.getInt64Ty();
      Value* address = add_bytes(frame_.words, constant(8 * layout_.scalar(static_cast<int>(instruction.immediate))));
      Value* lanes = splat(code_, builder_.CreateAlignedLoad(type, address, llvm::Align(8)));
      return cast_lanes(code_, lanes, is_float ? DType::kFloat64 : DType::kInt64, instruction.type);
    }
    case Op::k_index: {
      int dim = static_cast<int>(instruction.immediate);
      for (int i = 0; i < layout_.dim_count; ++i) {
        const auto& sources = dims_[i]->sources;
        if (std::find(sources.begin(), sources.end(), dim) == sources.end()) continue;
        if (i < last_dim) return splat(code_, frame_.index[i]);
        return builder_.CreateAdd(splat(code_, point.at), lane_numbers(code_));
      }
      return llvm::Constant::getNullValue(vector_type(code_, DType::kInt64));  // a dim of size 1
    }
    case Op::k_load: {
      int buffer = static_cast<int>(instruction.immediate);
      Value* base = frame_.buffers[buffer];
      int64_t step = point.at ? plan_.stride(spec_, buffer, plan_.vector) : 0;
      const bool is_packed = spec_.buffers[buffer].packed;
      if (step == 0) return is_packed ? load_packed_splat(code_, base) : load_splat(code_, instruction.type, base);
      Value* lane_stride = stride(buffer, last_dim);
      Value* offset =
          builder_.CreateMul(builder_.CreateMul(point.at, lane_stride), constant(bytes_of(instruction.type)));
      Value* address = add_bytes(base, offset);
      Value* step_between = step == 1 ? nullptr : lane_stride;
      return is_packed ? load_packed_lanes(code_, address, step_between, point.tail)
                       : load_lanes(code_, instruction.type, address, step_between, point.tail);
    }
    default: break;
  }
  Value* operands[3] = {};
  for (int k = 0; k < row_of(instruction.op).arity; ++k) operands[k] = point.values.at(instruction.operands[k]);
  Value* lanes = emit_op(code_, instruction, spec_.type_of(instruction.operands[0]), operands);
  if (!point.is_finish && plan_.stashes[value] >= 0 && plan_.stash_passes[value] == point.pass) {
    builder_.CreateAlignedStore(lanes, stash_address(value, point), llvm::Align(8));  // also beyond the tail
  }
  return lanes;
}

Value* KernelEmitter::stash_address(ValueId value, const Point& point) {
  Value* row = builder_.CreateMul(word(kStashBytes), constant(plan_.stashes[value]));
  Value* offset = builder_.CreateMul(point.stash_at, constant(bytes_of(spec_.type_of(value)) < 8 ? 4 : 8));
  return add_bytes(add_bytes(point.stashes, row), offset);
}

// The columns of the point, or one lane that is spread.
Value* KernelEmitter::load_columns(llvm::Type* lane, Value* address, const Point& point) {
  if (!point.slot_lane) return splat(code_, builder_.CreateLoad(lane, address));
  address = builder_.CreateGEP(lane, address, point.slot_lane);
  return builder_.CreateAlignedLoad(FixedVectorType::get(lane, kLanes), address, llvm::Align(1));
}

// Slots hold accumulators' lane types: bool as i8.
Value* KernelEmitter::load_slot(ValueId value, const Point& point) {
  DType type = spec_.type_of(value);
  llvm::Type* lane = accumulator_lane_type(code_, type);
  Value* address = add_bytes(point.slots, builder_.CreateMul(word(kSlotBytes), constant(plan_.slots[value])));
  Value* lanes = load_columns(lane, address, point);
  return type == DType::kBool ? cast_lanes(code_, lanes, DType::kUInt8, DType::kBool) : lanes;
}

void KernelEmitter::save_slot(ValueId value, Value* lanes, const Point& point) {
  DType type = spec_.type_of(value);
  llvm::Type* lane = accumulator_lane_type(code_, type);
  Value* address = add_bytes(point.slots, builder_.CreateMul(word(kSlotBytes), constant(plan_.slots[value])));
  if (type == DType::kBool) lanes = cast_lanes(code_, lanes, DType::kBool, DType::kUInt8);
  if (point.slot_lane) {
    address = builder_.CreateGEP(lane, address, point.slot_lane);
    builder_.CreateAlignedStore(lanes, address, llvm::Align(1));
  } else {
    builder_.CreateStore(builder_.CreateExtractElement(lanes, uint64_t{0}), address);
  }
}

int KernelEmitter::pass_of_total(ValueId reduction) const {
  const auto& reductions = plan_.passes[plan_.facts[reduction].level - 1].reductions;
  return static_cast<int>(std::find(reductions.begin(), reductions.end(), reduction) - reductions.begin());
}

Value* KernelEmitter::load_total(ValueId value, const Point& point) {
  DType type = spec_.type_of(value);
  llvm::Type* wide = wide_lane(value);
  Value* address = add_bytes(point.totals, builder_.CreateMul(word(kSlotBytes), constant(pass_of_total(value))));
  Value* lanes = load_columns(wide, address, point);
  if (type == DType::kBool) return cast_lanes(code_, lanes, DType::kUInt8, DType::kBool);
  if (!is_floating(type)) return lanes;
  return round_lanes(code_, builder_.CreateFPCast(lanes, vector_type(code_, type)), type);
}

void KernelEmitter::emit_store(ValueId store, Point& point) {
  const Instruction& instruction = spec_.body[store];
  int buffer = static_cast<int>(instruction.immediate);
  Value* lanes = point.values.at(instruction.operands[0]);
  int64_t step = point.at ? plan_.stride(spec_, buffer, plan_.vector) : 0;
  Value* base = frame_.buffers[buffer];
  if (step == 0) return store_first_lane(code_, instruction.type, lanes, base);
  Value* lane_stride = stride(buffer, layout_.dim_count - 1);
  Value* offset = builder_.CreateMul(builder_.CreateMul(point.at, lane_stride), constant(bytes_of(instruction.type)));
  Value* address = add_bytes(base, offset);
  auto store_as = [&](bool streams) {
    Value* step_between = step == 1 ? nullptr : lane_stride;
    store_lanes(code_, instruction.type, lanes, address, step_between, point.tail, streams);
  };
  if (!spec_.buffers[buffer].streaming || step != 1 || point.tail) return store_as(false);
  emit_if(builder_.CreateICmpNE(word(kStreams), constant(0)), [&] { store_as(true); }, [&] { store_as(false); });
}

// Into the line of the row's block, which is padded to whole vectors.
void KernelEmitter::emit_total(ValueId store, Point& point) {
  const Instruction& instruction = spec_.body[store];
  const int buffer = static_cast<int>(instruction.immediate);
  const int64_t bytes = bytes_of(instruction.type);
  Value* lanes = point.values.at(instruction.operands[0]);
  if (point.tail) lanes = builder_.CreateSelect(point.tail->mask, lanes, llvm::Constant::getNullValue(lanes->getType()));
  Value* address = add_bytes(frame_.buffers[buffer], builder_.CreateMul(point.at, constant(bytes)));
  const llvm::Align align(line_alignment(instruction.type));
  Value* sum = builder_.CreateAlignedLoad(lanes->getType(), address, align);
  builder_.CreateAlignedStore(builder_.CreateFAdd(sum, lanes), address, align);
}

// The vector dim is a whole number of `width` lanes at every call.
bool KernelEmitter::has_no_tail(int64_t width) const {
  return plan_.vector.size != kSymbolic && plan_.vector.size % width == 0;
}

llvm::Type* KernelEmitter::narrow_lane(ValueId reduction) {
  return accumulator_lane_type(code_, spec_.type_of(reduction));
}

llvm::Type* KernelEmitter::wide_lane(ValueId reduction) {
  const Instruction& instruction = spec_.body[reduction];
  bool adds = instruction.kind == ReduceKind::kSum || instruction.kind == ReduceKind::kProd;
  return adds && is_floating(instruction.type) ? builder_.getDoubleTy() : narrow_lane(reduction);
}

Value* KernelEmitter::widen(ValueId reduction, Value* narrow) {
  llvm::Type* wide = wide_lane(reduction);
  if (narrow->getType()->getScalarType() == wide) return narrow;
  return builder_.CreateFPExt(narrow, FixedVectorType::get(wide, kLanes));
}

Value* KernelEmitter::identity(ValueId reduction, llvm::Type* lane) {
  return splat(code_, fold_identity(code_, spec_.body[reduction].kind, spec_.type_of(reduction), lane));
}

}  // namespace lockstep::dynamic::jit
