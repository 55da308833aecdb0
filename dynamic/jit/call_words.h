// What generated code is called with: an array of 64-bit words. First these, then one word for each buffer (its
// address; where it is packed, the number of its first bit in all of memory), one for each loop dim (its size), one for
// each buffer and loop dim (its stride), one for each scalar (a double or an int64). What the spec fixes is a constant in
// the code; its word is there all the same.
#pragma once

#include <cstddef>

#include "dynamic/jit/loop_plan.h"

namespace lockstep::dynamic::jit {

enum CallWord : int {
  kBlockSize,  // rows of a block; elements, if the row is all that is reduced
  kBlockCount,
  kChunkSize,  // columns, or elements of the vector dim, of an item
  kChunkCount,
  kSlotBytes,   // of one value for an item: 8, or 8 a column of the chunk
  kStashBytes,  // of one stashed value for an item
  kTogether,    // rows that go through a pass before the next begins
  kRowsAhead,   // which row the memory fetches while another is computed
  kRowBytes,    // of scratch of each of them
  kLineShift,   // totals: so many times twice is how many rows add up in a line
  kStreams,     // not 0 if streaming stores are aligned
  kShared,      // split calls: slots of all items
  kPartials,    // split calls: partial results of all items and blocks
  kStash,       // split calls: stashes of all items
  kFixedWordCount
};

struct CallLayout {
  int dim_count;
  int buffer_count;
  int scalar_count;
  CallLayout(const KernelSpec& spec, const LoopPlan& plan)
      : dim_count(static_cast<int>(plan.kept.size() + plan.reduced.size()) + 1),
        buffer_count(static_cast<int>(spec.buffers.size())),
        scalar_count(static_cast<int>(spec.scalars.size())) {}
  int buffer(int index) const { return kFixedWordCount + index; }
  int size(int dim) const { return buffer(buffer_count) + dim; }
  int stride(int buffer, int dim) const { return size(dim_count) + buffer * dim_count + dim; }
  int scalar(int index) const { return stride(buffer_count, 0) + index; }
  int word_count() const { return scalar(scalar_count); }
};

// The names of the functions in a kernel's object. All are void(const int64_t* words, int64_t begin, int64_t end,
// char* scratch).
//   run       items [begin, end), all passes of an item in turn
//   pass<p>   (item, block) pairs [begin, end), the block running fastest; finish<p>  items
inline constexpr const char* kRunName = "run";

// Scratch of a run call, in kSlotBytes: accumulators, partial, total (one each for a reduction), slots; then stashes.
struct ScratchLayout {
  int reduction_count = 0;
  int slot_count = 0;
  explicit ScratchLayout(const LoopPlan& plan) : slot_count(plan.slot_count) {
    for (const Pass& pass : plan.passes) {
      int count = static_cast<int>(pass.reductions.size());
      if (count > reduction_count) reduction_count = count;
    }
  }
  int accumulators() const { return 0; }
  int partial() const { return reduction_count; }
  int total() const { return 2 * reduction_count; }
  int slots() const { return 3 * reduction_count; }
  int end() const { return (slots() + slot_count + 7) / 8 * 8; }  // stashes start on a cache line
};

}  // namespace lockstep::dynamic::jit
