// How a call of given sizes is cut: blocks of the reduced space, chunks of the vector dim, items. Block sizes follow
// from the sizes of the space alone, since the order of additions does.
#pragma once

#include "dynamic/jit/loop_plan.h"

namespace lockstep::dynamic::jit {

struct CallShape {
  int64_t vector_size = 1;
  int64_t reduced_rows = 1;  // points of the reduced dims other than the vector dim
  int64_t kept_points = 1;   // points of the kept dims other than the vector dim
  int64_t block_size = 1;
  int64_t block_count = 1;
  int64_t chunk_size = 1;
  int64_t chunk_count = 1;
  int64_t item_count = 1;
  int64_t rows_together = 1;  // of one block each
  int64_t rows_ahead = 1;     // a short row is done before its successor would be there
  bool is_split = false;  // few items and many blocks: blocks are shared out to threads, pass by pass
};

// `sizes`: of plan.dims(), all known.
CallShape find_call_shape(const LoopPlan& plan, const std::vector<int64_t>& sizes);

// Which ways of running a kernel may be called: one of them where all sizes are static.
struct CallModes {
  bool may_run_items = true;
  bool may_split = true;
};
CallModes find_call_modes(const LoopPlan& plan);

// True if block size and count are the same at every call.
bool has_static_blocks(const LoopPlan& plan);

// True if several rows may go through a pass before the next begins: what a short one waits for, others need not wait for.
bool may_go_together(const LoopPlan& plan);

}  // namespace lockstep::dynamic::jit
