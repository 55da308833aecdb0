// What co-execution itself costs, for bench/hook.py: of the leading thread in the hook, of the runner for an event.
// Switched off it is one load for each.
#pragma once

#include <x86intrin.h>

#include <atomic>
#include <cstdint>

namespace lockstep::dynamic {

namespace skeleton {

struct Totals {
  std::atomic<uint64_t> count{0};
  std::atomic<uint64_t> ticks{0};  // of the time stamp counter
  void add(uint64_t more) {
    count.fetch_add(1, std::memory_order_relaxed);
    ticks.fetch_add(more, std::memory_order_relaxed);
  }
  void reset() { count = ticks = 0; }
};
inline std::atomic<bool> is_timed{false};
inline Totals hook;    // ops of the leading thread, from entry into the hook to its return
inline Totals runner;  // events of the graph runner
// What runs inside the hook or an event and is not its own: kernels, waiting. Of this thread.
inline thread_local uint64_t excluded_ticks = 0;

}  // namespace skeleton

// Adds the time of a scope to `totals`, less what was excluded meanwhile.
class TimedScope {
 public:
  explicit TimedScope(skeleton::Totals& totals) {
    if (!skeleton::is_timed.load(std::memory_order_relaxed)) return;
    totals_ = &totals;
    excluded_before_ = skeleton::excluded_ticks;
    begin_ = __rdtsc();
  }
  ~TimedScope() {
    if (totals_) totals_->add(__rdtsc() - begin_ - (skeleton::excluded_ticks - excluded_before_));
  }
  TimedScope(const TimedScope&) = delete;

 private:
  skeleton::Totals* totals_ = nullptr;
  uint64_t excluded_before_ = 0, begin_ = 0;
};

// The time of this scope is not the skeleton's, but that of what `ticks` counts, if given.
class ExcludedScope {
 public:
  explicit ExcludedScope(double* ticks = nullptr) : ticks_(ticks), before_(skeleton::excluded_ticks), begin_(__rdtsc()) {}
  ~ExcludedScope() {
    const uint64_t own = elapsed();
    skeleton::excluded_ticks = before_ + own;  // scopes inside count once
    if (ticks_) *ticks_ += static_cast<double>(own);
  }
  ExcludedScope(const ExcludedScope&) = delete;
  uint64_t begin() const { return begin_; }
  uint64_t elapsed() const { return __rdtsc() - begin_; }

 private:
  double* ticks_;
  uint64_t before_, begin_;
};

}  // namespace lockstep::dynamic
