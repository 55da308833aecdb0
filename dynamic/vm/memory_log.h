// What live tensors ask of the allocator, on all threads, in the pool and outside of it: how much, and the life of each
// block, for lockstep.memory. For measurements: while it is on, each allocation takes a lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "graph/trace_graph.h"

namespace lockstep::dynamic {

// Counts from nothing. Goes on where it is on already.
void count_memory(bool on);
struct MemoryCount {
  size_t live_bytes = 0;
  size_t peak_bytes = 0;
};
MemoryCount memory_count();

struct BlockLife {
  const void* data = nullptr;
  size_t bytes = 0;                   // 0: it is older than the log
  uint64_t begin = 0, end = 0;        // of the time stamp counter; end 0: it still lives
  const graph::Node* node = nullptr;  // whose op asked for it; to be compared only
  bool is_workspace = false;          // given back before that op returned
};

struct MemoryLog {
  std::vector<BlockLife> blocks;  // in the order in which they were asked for
  uint64_t begin = 0, end = 0;    // when it was switched on and off
  uint64_t dropped = 0;           // blocks that found no room
};
void start_memory_log();  // the peak is counted anew
MemoryLog stop_memory_log();

// For the allocator.
namespace memory_log {
inline std::atomic<bool> is_on{false};   // blocks are to be counted
inline std::atomic<bool> was_on{false};  // some blocks may be known
void note_allocated(const void* data, size_t bytes);
void note_freed(const void* data);
}  // namespace memory_log

// The op for which this thread allocates.
class AllocationScope {
 public:
  explicit AllocationScope(const graph::Node* node) {
    if (memory_log::is_on.load(std::memory_order_relaxed)) enter(node);
  }
  // Another thread's op: this one runs a part of it.
  struct Asker {
    const graph::Node* node = nullptr;
    uint64_t op = 0;  // 0: none
  };
  static Asker asker();  // of this thread
  explicit AllocationScope(const Asker& asker) {
    if (asker.op > 0) enter(asker);
  }
  ~AllocationScope() {
    if (op_ > 0) leave();
  }
  AllocationScope(const AllocationScope&) = delete;

 private:
  void enter(const graph::Node* node);
  void enter(const Asker& asker);
  void leave();
  const graph::Node* node_before_ = nullptr;
  uint64_t op_ = 0, op_before_ = 0;
};

}  // namespace lockstep::dynamic
