// From a spec to a loop nest. Three kinds, by the innermost dim that is not 1:
//
//   pointwise  no reductions; items are (outer point, chunk of the vector dim)
//   row        innermost is reduced: an item is a kept point; lanes along the row, two accumulators, then a tree
//   column     innermost is kept: an item is (outer kept point, chunk of columns); rows are added one by one
//
// A spec with reductions is a list of passes over the reduced dims. Pass p folds the reductions of level p; then
// "finish p" makes of their totals what later passes need of it (slots) and stores reduced results. Expensive values
// of a row that several passes need are kept in a stash. The reduced space is cut into blocks whose size follows from
// the sizes alone; partial results of blocks are added in order, by one thread or by several, which gives the same
// bits.
//
// A kernel with totals is a row nest, whose rows may be folded or not: a few rows, as many as their number says, add up
// in a line of their own, lane by lane; when all rows are done, the lines are added as a tree.
#pragma once

#include <vector>

#include "dynamic/jit/kernel_spec.h"
#include "dynamic/jit/value_facts.h"

namespace lockstep::dynamic::jit {

inline constexpr int kLanes = 16;               // of a vector, whatever the host's registers hold
inline constexpr int64_t kSegmentVectors = 64;  // additions in a row before a float32 sum moves on to float64

enum class NestKind : uint8_t { kPointwise, kRow, kColumn };

struct LoopDim {
  std::vector<int> sources;  // dims of the spec that became this one
  int64_t size = 1;          // kSymbolic if one of them is
};

struct Pass {
  std::vector<ValueId> reductions;
  std::vector<ValueId> stores;  // one element a point
  std::vector<ValueId> totals;  // stores that add up
  bool streams = false;         // has a store that may go past the cache
};

struct LoopPlan {
  NestKind kind = NestKind::kPointwise;
  std::vector<LoopDim> kept;     // outermost first, without the vector dim
  std::vector<LoopDim> reduced;  // the same
  LoopDim vector;
  std::vector<Pass> passes;
  int level_count = 0;                  // passes below this one fold something
  std::vector<ValueId> reduced_stores;  // written by the last finish
  std::vector<int> slots;               // of values that finish hands on; -1 without
  int slot_count = 0;
  std::vector<int> stashes;  // of values that a pass keeps for later ones; -1 without
  std::vector<int> stash_passes;
  int stash_count = 0;
  int prefetch_pass = 0;  // of a row, the one that computes most: meanwhile the memory fetches a row to come; 0 for none
  std::vector<ValueFacts> facts;
  int64_t reduced_mask = 0;
  bool has_totals = false;

  std::vector<const LoopDim*> dims() const;  // kept, reduced, vector: the order of the call's words
  int64_t stride(const KernelSpec& spec, int buffer, const LoopDim& dim) const;
  bool varies(ValueId value, const LoopDim& dim) const;
  bool is_uniform(ValueId value) const { return (facts[value].varies & reduced_mask) == 0; }
};

LoopPlan make_plan(const KernelSpec& spec);

}  // namespace lockstep::dynamic::jit
