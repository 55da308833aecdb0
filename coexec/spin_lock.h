// A lock for a few loads and stores at a time, that a thread may take again while it holds it. Taken by one thread almost
// always, a pthread mutex costs several times as much.
#pragma once

#include <xmmintrin.h>

#include <atomic>
#include <thread>

namespace lockstep::coexec {

class RecursiveSpinLock {
 public:
  constexpr RecursiveSpinLock() = default;
  void lock() {
    const void* self = this_thread();
    if (owner_.load(std::memory_order_relaxed) == self) {  // nobody else stores this value
      ++depth_;
      return;
    }
    for (int spin = 0;; ++spin) {
      const void* nobody = nullptr;
      if (owner_.compare_exchange_weak(nobody, self, std::memory_order_acquire, std::memory_order_relaxed)) return;
      if (spin < kSpins) {
        _mm_pause();
      } else {
        std::this_thread::yield();
      }
    }
  }
  void unlock() {
    if (depth_ > 0) {
      --depth_;
    } else {
      owner_.store(nullptr, std::memory_order_release);
    }
  }

 private:
  static constexpr int kSpins = 100;
  static const void* this_thread() {
    static thread_local char marker;
    return &marker;
  }
  std::atomic<const void*> owner_{nullptr};
  int depth_ = 0;  // beyond the first time; of the owner
};

}  // namespace lockstep::coexec
