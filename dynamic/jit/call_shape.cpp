#include "dynamic/jit/call_shape.h"

#include <algorithm>

namespace lockstep::dynamic::jit {
namespace {

constexpr int64_t kMaxBlocks = 64;
constexpr int64_t kRowBlock = 16384;   // elements of a row that one block holds at least
constexpr int64_t kColumnBlock = 256;  // rows that one block holds at least
constexpr int64_t kSplitItems = 16;    // with fewer items than this, blocks are what threads share
constexpr int64_t kPointwiseChunk = 8192;
constexpr int64_t kColumnChunk = 1024;
constexpr int64_t kTogether = 1024;  // elements of the rows that go through a pass together, which are
constexpr int64_t kMaxTogether = 8;  // so many rows at most
constexpr int64_t kAhead = 1536;     // elements from a row to the one that is fetched meanwhile
constexpr int64_t kTileElements = 131072;  // of a column chunk that several passes read: half of a second-level cache

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t b) { return divide_up(a, b) * b; }

void cut_blocks(const LoopPlan& plan, CallShape& shape) {
  int64_t units = shape.reduced_rows;
  if (plan.has_totals) {
    shape.block_size = units = std::max<int64_t>(shape.vector_size, 1);
  } else if (plan.kind == NestKind::kRow && plan.reduced.empty()) {
    units = shape.vector_size;
    shape.block_size = std::max(kRowBlock, round_up(divide_up(units, kMaxBlocks), kSegmentVectors * 2 * kLanes));
  } else if (plan.kind == NestKind::kRow) {
    int64_t fitting = kRowBlock / std::max<int64_t>(shape.vector_size, 1);
    shape.block_size = std::max({int64_t{1}, fitting, divide_up(units, kMaxBlocks)});
  } else if (plan.kind == NestKind::kColumn) {
    shape.block_size = std::max(kColumnBlock, round_up(divide_up(units, kMaxBlocks), kSegmentVectors));
  }
  shape.block_count = divide_up(units, shape.block_size);
}

}  // namespace

CallShape find_call_shape(const LoopPlan& plan, const std::vector<int64_t>& sizes) {
  CallShape shape;
  size_t at = 0;
  for (; at < plan.kept.size(); ++at) shape.kept_points *= sizes[at];
  for (; at + 1 < sizes.size(); ++at) shape.reduced_rows *= sizes[at];
  shape.vector_size = sizes.back();
  cut_blocks(plan, shape);
  if (plan.kind == NestKind::kRow) {
    shape.item_count = shape.kept_points;
    const int64_t columns = std::max<int64_t>(shape.vector_size, 1);
    shape.rows_ahead = std::max<int64_t>(1, kAhead / columns);
    if (may_go_together(plan) && shape.block_count == 1)
      shape.rows_together = std::clamp(kTogether / columns, int64_t{1}, kMaxTogether);
  } else if (plan.kind == NestKind::kPointwise) {
    shape.chunk_size = kPointwiseChunk;
  } else {
    shape.chunk_size = std::min(kColumnChunk, round_up(shape.vector_size, kLanes));
    int64_t items = shape.kept_points * divide_up(shape.vector_size, std::max<int64_t>(shape.chunk_size, 1));
    shape.is_split = shape.block_count > 1 && items < kSplitItems;
    if (!shape.is_split && plan.passes.size() > 1) {
      int64_t fitting = kTileElements / std::max<int64_t>(shape.reduced_rows, 1) / kLanes * kLanes;
      shape.chunk_size = std::min(shape.chunk_size, std::max<int64_t>(fitting, 4 * kLanes));
    }
    shape.chunk_size = std::max<int64_t>(shape.chunk_size, kLanes);
  }
  if (plan.kind != NestKind::kRow) {
    shape.chunk_count = divide_up(shape.vector_size, shape.chunk_size);
    shape.item_count = shape.kept_points * shape.chunk_count;
  } else {
    shape.is_split = shape.block_count > 1 && shape.item_count < kSplitItems;  // never with totals
  }
  return shape;
}

CallModes find_call_modes(const LoopPlan& plan) {
  if (plan.kind == NestKind::kPointwise || plan.has_totals) return {true, false};
  std::vector<int64_t> sizes;
  for (const LoopDim* dim : plan.dims()) {
    if (dim->size == kSymbolic) return {};
    sizes.push_back(dim->size);
  }
  bool splits = find_call_shape(plan, sizes).is_split;
  return {!splits, splits};
}

bool has_static_blocks(const LoopPlan& plan) {
  for (const LoopDim& dim : plan.reduced) {
    if (dim.size == kSymbolic) return false;
  }
  return plan.kind == NestKind::kPointwise || plan.kind == NestKind::kColumn || plan.vector.size != kSymbolic;
}

bool may_go_together(const LoopPlan& plan) {
  return plan.kind == NestKind::kRow && plan.reduced.empty() && plan.passes.size() > 1;
}

}  // namespace lockstep::dynamic::jit
