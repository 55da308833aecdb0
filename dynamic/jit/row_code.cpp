// Passes over a row: lanes along it, two accumulators in turn. A segment of a row is added up in the type of the
// values, segments are added up in float64; so no float32 sum is longer than kSegmentVectors.
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Intrinsics.h>

#include <algorithm>

#include "dynamic/jit/kernel_emitter.h"
#include "dynamic/jit/op_code.h"

namespace lockstep::dynamic::jit {
namespace {

using llvm::FixedVectorType;
using llvm::Value;

// (0 + 8) + (4 + 12) + ...: a tree, the same for every length.
Value* fold_lanes(CodeContext& code, ReduceKind kind, DType type, Value* lanes) {
  for (int width = kLanes / 2; width >= 1; width /= 2) {
    llvm::SmallVector<int, kLanes> low, high;
    for (int i = 0; i < width; ++i) low.push_back(i), high.push_back(i + width);
    lanes = emit_fold(code, kind, type, code.builder.CreateShuffleVector(lanes, low),
                      code.builder.CreateShuffleVector(lanes, high));
  }
  return code.builder.CreateExtractElement(lanes, uint64_t{0});
}

}  // namespace

// Moves the addresses of totals to the line that the row adds to.
void KernelEmitter::find_lines(int pass, Value* item) {
  const auto& totals = plan_.passes[pass].totals;
  if (totals.empty()) return;
  Value* pitch = builder_.CreateAnd(builder_.CreateAdd(size(layout_.dim_count - 1), constant(kLanes - 1)), constant(-kLanes));
  Value* before = builder_.CreateMul(builder_.CreateLShr(item, word(kLineShift)), pitch);
  for (ValueId store : totals) {
    Value*& address = frame_.buffers[spec_.body[store].immediate];
    address = add_bytes(address, builder_.CreateMul(before, constant(bytes_of(spec_.body[store].type))));
  }
}

void KernelEmitter::emit_row_pass(int pass) {
  const Needed needed = find_needed(roots_of(pass), pass, false);
  std::vector<Value*> wide;
  for (ValueId reduction : plan_.passes[pass].reductions)
    wide.push_back(create_local(FixedVectorType::get(wide_lane(reduction), kLanes)));
  const std::vector<Value*> first = frame_.arguments;
  for_each_row(argument(7), [&](Value* row) {
    frame_.arguments[1] = builder_.CreateAdd(first[1], row);
    for (int place : {3, 4, 6}) frame_.arguments[place] = add_rows(first[place], row);
    emit_row_blocks(pass, needed, wide);
  });
}

void KernelEmitter::emit_row_blocks(int pass, const Needed& needed, const std::vector<Value*>& wide) {
  Value* partial = argument(3);
  decode_item(argument(1));
  find_lines(pass, argument(1));
  const auto& reductions = plan_.passes[pass].reductions;
  for (size_t i = 0; i < wide.size(); ++i)
    builder_.CreateStore(identity(reductions[i], wide_lane(reductions[i])), wide[i]);
  int first = static_cast<int>(plan_.kept.size());
  int last = layout_.dim_count - 1;
  Value* begin = builder_.CreateMul(argument(2), word(kBlockSize));
  Value* end = builder_.CreateAdd(begin, word(kBlockSize));
  if (plan_.reduced.empty()) {
    emit_row(pass, needed, begin, minimum(end, size(last)), constant(0), wide);
  } else {
    Value* rows = constant(1);
    for (int dim = first; dim < last; ++dim) rows = builder_.CreateMul(rows, size(dim));
    // A row of a stash is padded to whole vectors.
    Value* pitch = builder_.CreateAnd(builder_.CreateAdd(size(last), constant(kLanes - 1)), constant(-kLanes));
    emit_loop(begin, minimum(end, rows), 1, [&](Value* row) {
      Frame outside = frame_;
      decode(row, first, last);
      emit_row(pass, needed, constant(0), size(last), builder_.CreateMul(row, pitch), wide);
      frame_ = outside;
    });
  }
  for (size_t i = 0; i < wide.size(); ++i) {
    ValueId reduction = reductions[i];
    const Instruction& instruction = spec_.body[reduction];
    llvm::Type* lane = wide_lane(reduction);
    Value* lanes = builder_.CreateLoad(FixedVectorType::get(lane, kLanes), wide[i]);
    Value* folded = fold_lanes(code_, instruction.kind, instruction.type, lanes);
    builder_.CreateStore(folded, add_bytes(partial, constant(8 * static_cast<int64_t>(i))));
  }
}

void KernelEmitter::emit_row(int pass, const Needed& needed, Value* from, Value* to, Value* stash_row,
                             const std::vector<Value*>& wide) {
  Point row;
  row.pass = pass;
  row.slots = argument(4);
  row.stashes = argument(6);
  evaluate(needed.invariant, row);
  if (wide.empty()) {
    Value* count = builder_.CreateSub(to, from);
    Value* whole = builder_.CreateAdd(from, builder_.CreateAnd(count, constant(-kLanes)));
    emit_loop(from, whole, kLanes, [&](Value* at) { emit_row_body(pass, needed, row, at, nullptr, stash_row, {}); });
    if (has_no_tail(kLanes)) return;
    emit_if(
        builder_.CreateICmpSLT(whole, to),
        [&] {
          Tail tail = make_tail(code_, builder_.CreateSub(to, whole));
          emit_row_body(pass, needed, row, whole, &tail, stash_row, {});
        },
        nullptr);
    return;
  }
  constexpr int64_t kSegment = kSegmentVectors * 2 * kLanes;
  if (plan_.vector.size != kSymbolic && plan_.vector.size <= kSegment) {
    return emit_segment(pass, needed, row, from, to, stash_row, wide);
  }
  emit_loop(from, to, kSegment, [&](Value* begin) {
    emit_segment(pass, needed, row, begin, minimum(builder_.CreateAdd(begin, constant(kSegment)), to), stash_row, wide);
  });
}

void KernelEmitter::emit_segment(int pass, const Needed& needed, const Point& row, Value* from, Value* to,
                                 Value* stash_row, const std::vector<Value*>& wide) {
  std::vector<Value*> first, second;
  const auto& reductions = plan_.passes[pass].reductions;
  for (ValueId reduction : reductions) {
    llvm::Type* lane = narrow_lane(reduction);
    for (auto* side : {&first, &second}) {
      side->push_back(create_local(FixedVectorType::get(lane, kLanes)));
      builder_.CreateStore(identity(reduction, lane), side->back());
    }
  }
  Value* count = builder_.CreateSub(to, from);
  Value* whole = builder_.CreateAdd(from, builder_.CreateAnd(count, constant(-2 * kLanes)));
  emit_loop(from, whole, 2 * kLanes, [&](Value* at) {
    emit_row_body(pass, needed, row, at, nullptr, stash_row, first);
    emit_row_body(pass, needed, row, builder_.CreateAdd(at, constant(kLanes)), nullptr, stash_row, second);
  });
  // At most two vectors are left; the accumulators change places after each.
  if (!has_no_tail(2 * kLanes))
    emit_loop(whole, to, kLanes, [&](Value* at) {
      Tail tail = make_tail(code_, builder_.CreateSub(to, at));
      emit_row_body(pass, needed, row, at, &tail, stash_row, first);
      for (size_t i = 0; i < first.size(); ++i) {
        llvm::Type* type = FixedVectorType::get(narrow_lane(reductions[i]), kLanes);
        Value* a = builder_.CreateLoad(type, first[i]);
        builder_.CreateStore(builder_.CreateLoad(type, second[i]), first[i]);
        builder_.CreateStore(a, second[i]);
      }
    });
  for (size_t i = 0; i < first.size(); ++i) {
    llvm::Type* type = FixedVectorType::get(narrow_lane(reductions[i]), kLanes);
    llvm::Type* wide_type = FixedVectorType::get(wide_lane(reductions[i]), kLanes);
    Value* both = fold_reductions(pass, i, builder_.CreateLoad(type, first[i]), builder_.CreateLoad(type, second[i]));
    Value* total = builder_.CreateLoad(wide_type, wide[i]);
    builder_.CreateStore(fold_reductions(pass, i, total, widen(reductions[i], both)), wide[i]);
  }
}

// Asks for what the point's loads will read `steps` further along a loop dim; the hardware does not look past a page.
void KernelEmitter::prefetch(const Point& point, int dim, Value* steps) {
  for (int buffer = 0; buffer < layout_.buffer_count; ++buffer) {
    const Buffer& from = spec_.buffers[buffer];
    int64_t step = plan_.stride(spec_, buffer, *dims_[dim]);
    if (from.access == Access::kOut || from.packed || plan_.stride(spec_, buffer, plan_.vector) != 1 || step == 0) continue;
    Value* ahead = builder_.CreateAdd(point.at, builder_.CreateMul(stride(buffer, dim), steps));
    Value* address = add_bytes(frame_.buffers[buffer], builder_.CreateMul(ahead, constant(bytes_of(from.type))));
    builder_.CreateIntrinsic(llvm::Intrinsic::prefetch, {builder_.getPtrTy()},
                             {address, builder_.getInt32(0), builder_.getInt32(2), builder_.getInt32(1)});
  }
}

void KernelEmitter::emit_row_body(int pass, const Needed& needed, const Point& row, Value* at, const Tail* tail,
                                  Value* stash_row, const std::vector<Value*>& accumulators) {
  Point point = row;
  point.at = at;
  point.tail = tail;
  point.stash_at = builder_.CreateAdd(stash_row, at);
  evaluate(needed.varying, point);
  if (!tail && pass > 0 && pass == plan_.prefetch_pass && plan_.reduced.empty() && !plan_.kept.empty()) {
    prefetch(point, static_cast<int>(plan_.kept.size()) - 1, word(kRowsAhead));
  }
  for (ValueId store : plan_.passes[pass].stores) emit_store(store, point);
  for (ValueId store : plan_.passes[pass].totals) emit_total(store, point);
  for (size_t i = 0; i < accumulators.size(); ++i) {
    ValueId reduction = plan_.passes[pass].reductions[i];
    llvm::Type* lane = narrow_lane(reduction);
    Value* value = point.values.at(spec_.body[reduction].operands[0]);
    if (spec_.type_of(reduction) == DType::kBool) value = cast_lanes(code_, value, DType::kBool, DType::kUInt8);
    if (tail) value = builder_.CreateSelect(tail->mask, value, identity(reduction, lane));
    Value* total = builder_.CreateLoad(FixedVectorType::get(lane, kLanes), accumulators[i]);
    builder_.CreateStore(fold_reductions(pass, i, total, value), accumulators[i]);
  }
}

}  // namespace lockstep::dynamic::jit
