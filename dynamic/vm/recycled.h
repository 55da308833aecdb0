// Objects that are made on one thread and often die on another: their memory finds its way back to the threads that make
// them. malloc would have both ends meet in one arena for each.
#pragma once

#include <atomic>
#include <cstddef>
#include <new>

#include "dynamic/vm/cache_line.h"

namespace lockstep::dynamic {

// Memory of one size, in cache lines of its own, never given back to the system: as much as was ever in use at once.
template <size_t kBytes>
class Recycler {
 public:
  static void* allocate() {
    auto& mine = here();
    mine.takes_back = true;
    if (!mine.free) mine.free = returned_.exchange(nullptr, std::memory_order_acquire);
    if (!mine.free) return ::operator new(kSize, std::align_val_t(kCacheLine));
    Block* block = mine.free;
    mine.free = block->next;
    for (size_t at = 0; mine.free && at < kSize; at += kCacheLine)  // it comes next, perhaps from the other thread
      prefetch_to_write(reinterpret_cast<const char*>(mine.free) + at);
    return block;
  }

  static void deallocate(void* data) {
    auto* block = static_cast<Block*>(data);
    auto& mine = here();
    if (mine.takes_back) {
      block->next = mine.free;
      mine.free = block;
    } else {
      give_back(block, block);
    }
  }

 private:
  struct Block {
    Block* next;
  };
  static constexpr size_t kSize = (kBytes + kCacheLine - 1) / kCacheLine * kCacheLine;

  struct Local {
    Block* free = nullptr;
    bool takes_back = false;  // the thread makes such objects itself
    ~Local() {
      takes_back = false;  // whatever dies on this thread from now on
      if (!free) return;
      Block* last = free;
      while (last->next) last = last->next;
      give_back(free, last);
      free = nullptr;
    }
  };

  static Local& here() {
    thread_local Local local;
    return local;
  }

  // All of a chain. Only pushed one way and taken whole, so that no address can come back in between.
  static void give_back(Block* first, Block* last) {
    last->next = returned_.load(std::memory_order_relaxed);
    while (!returned_.compare_exchange_weak(last->next, first, std::memory_order_release, std::memory_order_relaxed)) {
    }
  }

  static inline std::atomic<Block*> returned_{nullptr};
};

// Base of a class T whose objects come from a Recycler.
template <class T>
struct Recycled {
#if !defined(__SANITIZE_ADDRESS__)  // there a dead object stays dead
  static void* operator new(size_t bytes) {
    return bytes == sizeof(T) ? Recycler<sizeof(T)>::allocate() : ::operator new(bytes);
  }
  static void operator delete(void* data, size_t bytes) {
    if (bytes == sizeof(T)) return Recycler<sizeof(T)>::deallocate(data);
    ::operator delete(data);
  }
#endif
};

}  // namespace lockstep::dynamic
