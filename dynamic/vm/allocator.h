// The runner's caching allocator. It keeps its pages, so that a steady state has no page faults. Threads inside a
// PoolScope allocate from it; memory is given back from any thread. Blocks are aligned to 64 bytes, as PyTorch's are.
//
// Installed as PyTorch's CPU allocator once; outside of a PoolScope it passes everything on to PyTorch's own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::dynamic {

struct PoolStatistics {
  size_t used_bytes = 0;       // that somebody asked for and holds; of small blocks, all they have
  size_t peak_used_bytes = 0;  // since the last reset
  size_t reserved_bytes = 0;   // address space that was ever handed out
};

class Pool {
 public:
  static Pool& instance();
  void* allocate(size_t bytes);  // null where the system has not so much, or addresses are used up
  void deallocate(void* data);
  bool owns(const void* data) const;
  PoolStatistics statistics();
  void reset_peak();
  // What is used now, and the most that was used since, on all threads; for one that asks at a time.
  size_t begin_span();
  size_t span_peak();
  void note_rest();            // what is in use now is so at rest
  void release_free_pages();  // gives the pages of free blocks back to the system

 private:
  Pool();
  struct State;
  State* state_;
};

constexpr size_t kAskedOfSystem = size_t{1} << 30;  // what is smaller will be there
bool system_has(size_t bytes);                    // whether it would give so much at once

// Whether something was asked for meanwhile that is not done: it may hold memory that would be free by now.
enum class PoolUse { kAhead, kAtRest };

class PoolScope {
 public:
  explicit PoolScope(PoolUse use = PoolUse::kAhead);
  ~PoolScope();
  PoolScope(const PoolScope&) = delete;
  // When this thread asked for something since, far more was in use than ever at rest: what is ahead holds the difference.
  bool is_far_ahead() const;

 private:
  bool was_in_pool_, was_at_rest_;
};

// From now on c10's CPU allocator looks here first. Idempotent.
void install_pool();
void enable_pool(bool on);

}  // namespace lockstep::dynamic
