// Passes along columns: lanes are columns, rows are added one by one into accumulators that lie in the first-level
// cache. And pointwise passes, which are the same without accumulators.
#include <llvm/IR/IRBuilder.h>

#include "dynamic/jit/kernel_emitter.h"
#include "dynamic/jit/op_code.h"

namespace lockstep::dynamic::jit {

using llvm::FixedVectorType;
using llvm::Value;

// Evaluates some rows at [from, to) of the vector dim, vector by vector. `after` gets the points of all rows when their
// stores are done.
void KernelEmitter::emit_vector_loop(const Needed& needed, const std::vector<ValueId>& stores, std::vector<Row> rows,
                                     Value* from, Value* to, Value* slot_origin,
                                     const std::function<void(std::vector<Point>&)>& after) {
  Frame outside = frame_;
  for (Row& row : rows) {
    frame_ = row.frame;
    evaluate(needed.invariant, row.point);
  }
  auto emit_body = [&](Value* at, const Tail* tail) {
    std::vector<Point> points;
    for (const Row& row : rows) {
      frame_ = row.frame;
      points.push_back(row.point);
      Point& here = points.back();
      here.at = at;
      here.tail = tail;
      if (slot_origin) here.slot_lane = builder_.CreateSub(at, slot_origin);
      evaluate(needed.varying, here);
      if (!tail && row.prefetch_rows) prefetch(here, layout_.dim_count - 2, constant(row.prefetch_rows));
      for (ValueId store : stores) emit_store(store, here);
    }
    if (after) after(points);
  };
  Value* count = builder_.CreateSub(to, from);
  Value* whole = builder_.CreateAdd(from, builder_.CreateAnd(count, constant(-kLanes)));
  emit_loop(from, whole, kLanes, [&](Value* at) { emit_body(at, nullptr); });
  if (!has_no_tail(kLanes)) {
    emit_if(
        builder_.CreateICmpSLT(whole, to),
        [&] {
          Tail tail = make_tail(code_, builder_.CreateSub(to, whole));
          emit_body(whole, &tail);
        },
        nullptr);
  }
  frame_ = outside;
}

void KernelEmitter::emit_pointwise_pass(int pass) {
  Value* chunk_count = word(kChunkCount);
  Value* item = argument(1);
  decode_item(builder_.CreateUDiv(item, chunk_count));
  Value* from = builder_.CreateMul(builder_.CreateURem(item, chunk_count), word(kChunkSize));
  Value* to = minimum(builder_.CreateAdd(from, word(kChunkSize)), size(layout_.dim_count - 1));
  Needed needed = find_needed(roots_of(pass), pass, false);
  Point point;
  point.pass = pass;
  emit_vector_loop(needed, plan_.passes[pass].stores, {{frame_, point}}, from, to, nullptr, nullptr);
}

void KernelEmitter::emit_column_pass(int pass) {
  Value* chunk_count = word(kChunkCount);
  Value* item = argument(1);
  decode_item(builder_.CreateUDiv(item, chunk_count));
  int first = static_cast<int>(plan_.kept.size());
  int last = layout_.dim_count - 1;
  Value* from = builder_.CreateMul(builder_.CreateURem(item, chunk_count), word(kChunkSize));
  Value* to = minimum(builder_.CreateAdd(from, word(kChunkSize)), size(last));
  Value* rows = constant(1);
  for (int dim = first; dim < last; ++dim) rows = builder_.CreateMul(rows, size(dim));
  Value* begin = builder_.CreateMul(argument(2), word(kBlockSize));
  Value* end = minimum(builder_.CreateAdd(begin, word(kBlockSize)), rows);
  const auto& reductions = plan_.passes[pass].reductions;
  Needed needed = find_needed(roots_of(pass), pass, false);
  Point point;
  point.pass = pass;
  point.slots = argument(4);
  auto array = [&](Value* arrays, size_t index) {
    return add_bytes(arrays, builder_.CreateMul(word(kSlotBytes), constant(static_cast<int64_t>(index))));
  };
  auto fold_points = [&](std::vector<Point>& points) {
    for (size_t i = 0; i < reductions.size(); ++i) {
      llvm::Type* lane = narrow_lane(reductions[i]);
      llvm::Type* lanes = FixedVectorType::get(lane, kLanes);
      Value* address = builder_.CreateGEP(lane, array(argument(5), i), points[0].slot_lane);
      Value* total = builder_.CreateAlignedLoad(lanes, address, llvm::Align(8));
      for (Point& point : points) {
        Value* value = point.values.at(spec_.body[reductions[i]].operands[0]);
        if (spec_.type_of(reductions[i]) == DType::kBool) value = cast_lanes(code_, value, DType::kBool, DType::kUInt8);
        total = fold_reductions(pass, i, total, value);
      }
      builder_.CreateAlignedStore(total, address, llvm::Align(8));
    }
  };
  // Short bodies take several rows at once, in order: the accumulators are loaded and stored once for all of them.
  constexpr int64_t kTogether = 4;
  constexpr int64_t kWide = 512;
  bool is_wide = plan_.vector.size == kSymbolic || plan_.vector.size >= kWide;
  bool is_short = !reductions.empty() && needed.varying.size() <= 8 && is_wide;
  auto emit_rows_by = [&](Value* row_begin, Value* row_end, int64_t count) {
    emit_loop(row_begin, row_end, count, [&](Value* row) {
      Frame outside = frame_;
      std::vector<Row> together;
      for (int64_t i = 0; i < count; ++i) {
        frame_ = outside;
        decode(builder_.CreateAdd(row, constant(i)), first, last);
        together.push_back({frame_, point, plan_.reduced.size() == 1 && is_wide ? kTogether : 0});
      }
      frame_ = outside;
      emit_vector_loop(needed, plan_.passes[pass].stores, together, from, to, from, fold_points);
    });
  };
  auto emit_rows = [&](Value* row_begin, Value* row_end) {
    if (!is_short) return emit_rows_by(row_begin, row_end, 1);
    Value* count = builder_.CreateAnd(builder_.CreateSub(row_end, row_begin), constant(-kTogether));
    Value* whole = builder_.CreateAdd(row_begin, count);
    emit_rows_by(row_begin, whole, kTogether);
    emit_rows_by(whole, row_end, 1);
  };
  if (reductions.empty()) return emit_rows(begin, end);
  emit_clear_totals(pass, argument(3));
  emit_loop(begin, end, kSegmentVectors, [&](Value* row) {
    for_each_column([&](Value* lane_index) {
      for (size_t i = 0; i < reductions.size(); ++i) {
        llvm::Type* lane = narrow_lane(reductions[i]);
        Value* address = builder_.CreateGEP(lane, array(argument(5), i), lane_index);
        builder_.CreateAlignedStore(identity(reductions[i], lane), address, llvm::Align(8));
      }
    });
    emit_rows(row, minimum(builder_.CreateAdd(row, constant(kSegmentVectors)), end));
    for_each_column([&](Value* lane_index) {
      for (size_t i = 0; i < reductions.size(); ++i) {
        llvm::Type* lane = narrow_lane(reductions[i]);
        llvm::Type* wide = wide_lane(reductions[i]);
        Value* address = builder_.CreateGEP(lane, array(argument(5), i), lane_index);
        Value* sum = builder_.CreateAlignedLoad(FixedVectorType::get(lane, kLanes), address, llvm::Align(8));
        Value* target = builder_.CreateGEP(wide, array(argument(3), i), lane_index);
        Value* total = builder_.CreateAlignedLoad(FixedVectorType::get(wide, kLanes), target, llvm::Align(8));
        total = fold_reductions(pass, i, total, widen(reductions[i], sum));
        builder_.CreateAlignedStore(total, target, llvm::Align(8));
      }
    });
  });
}

}  // namespace lockstep::dynamic::jit
