// The channel between the two runners: a ring of events, one producer, one consumer, numbered from 1. The producer
// waits in a full channel; what it waits for is the consumer's progress, like every other wait.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "dynamic/vm/cache_line.h"

namespace lockstep::coexec {

template <class Event>
class Channel {
 public:
  explicit Channel(size_t capacity_power_of_two) : ring_(capacity_power_of_two) {}

  // ---- the leading side
  Event& slot_to_fill() { return ring_[asked_ & (ring_.size() - 1)]; }
  bool is_full() {  // looks at the other side's count only where the one that was seen last is not enough
    if (asked_ - seen_done_ < ring_.size()) return false;
    seen_done_ = done_.load(std::memory_order_acquire);
    return asked_ - seen_done_ >= ring_.size();
  }
  uint64_t push() {
    ++asked_;
    head_.store(asked_, std::memory_order_release);
    if (unattended_.load(std::memory_order_relaxed)) return asked_;
    offered_.store(asked_, std::memory_order_seq_cst);
    if (consumer_sleeps_.load(std::memory_order_seq_cst)) nudge();
    return asked_;
  }
  // While set, whoever waits executes, and the consumer's thread leaves the events alone. Changed while empty.
  void set_unattended(bool unattended) { unattended_.store(unattended, std::memory_order_relaxed); }
  uint64_t asked() const { return head_.load(std::memory_order_relaxed); }  // on any thread
  bool is_done(uint64_t number) const { return done_.load(std::memory_order_acquire) >= number; }
  uint64_t done() const { return done_.load(std::memory_order_acquire); }
  // Returns whether event `number` is done; blocks for `timeout` at most, and until `is_called` at a wake-up.
  template <class Called>
  bool wait_done(uint64_t number, std::chrono::microseconds timeout, Called is_called) {
    if (is_done(number)) return true;
    std::unique_lock lock(mutex_);
    progress_.wait_for(lock, timeout, [&] {
      // several threads may wait: the smallest number wakes all, and who is not served says his again
      if (awaited_.load(std::memory_order_relaxed) > number) awaited_.store(number, std::memory_order_seq_cst);
      return done_.load(std::memory_order_seq_cst) >= number || is_called();
    });
    return is_done(number);
  }
  bool wait_done(uint64_t number, std::chrono::microseconds timeout) {
    return wait_done(number, timeout, [] { return false; });
  }

  // ---- the executing side
  // For the consumer's thread, which may look while that changes: so it asks for what it was offered, and nothing else.
  bool has_work() const { return offered_.load(std::memory_order_acquire) > done_.load(std::memory_order_relaxed); }
  // The event `ahead` places behind the first that is not done; of those that were asked.
  Event& front(size_t ahead = 0) { return ring_[(done_.load(std::memory_order_relaxed) + ahead) & (ring_.size() - 1)]; }
  size_t pending() const { return head_.load(std::memory_order_acquire) - done_.load(std::memory_order_relaxed); }
  // Whether somebody waits for one of the next `count` events.
  bool is_awaited(size_t count) const {
    return awaited_.load(std::memory_order_relaxed) <= done_.load(std::memory_order_relaxed) + count;
  }
  void finish_front(size_t count = 1) {
    const uint64_t done = done_.load(std::memory_order_relaxed) + count;
    done_.store(done, std::memory_order_seq_cst);
    if (awaited_.load(std::memory_order_seq_cst) <= done) {
      {
        std::lock_guard lock(mutex_);
        awaited_.store(~0ull, std::memory_order_seq_cst);
      }
      progress_.notify_all();
    }
  }
  // In a forked child: what is pending will never be done, and nobody is to wait for it.
  void abandon() { done_.store(~uint64_t{0} >> 1); }
  // Who waits for an event looks whether something else is to be done.
  void call_waiting() {
    { std::lock_guard lock(mutex_); }
    progress_.notify_all();
  }
  void wait_for_work(std::chrono::microseconds timeout) {
    std::unique_lock lock(mutex_);
    consumer_sleeps_.store(true, std::memory_order_seq_cst);
    if (!has_work() && !stopped_) work_.wait_for(lock, timeout);
    consumer_sleeps_.store(false, std::memory_order_seq_cst);
  }
  // The consumer looks around, whether there is work or not.
  void nudge() {
    { std::lock_guard lock(mutex_); }
    work_.notify_one();
  }
  void stop() {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    work_.notify_all();
  }
  // A consumer that has ended may begin again.
  void restart() {
    std::lock_guard lock(mutex_);
    stopped_ = false;
  }
  bool is_stopped() {
    std::lock_guard lock(mutex_);
    return stopped_;
  }

 private:
  // What one side writes at every event shares no cache line with what the other side reads at every event.
  std::vector<Event> ring_;
  alignas(dynamic::kCacheLine) uint64_t asked_ = 0;  // the leading thread's own count
  uint64_t seen_done_ = 0;             // and what it has seen of the other's
  std::atomic<bool> unattended_{false};
  alignas(dynamic::kCacheLine) std::atomic<uint64_t> head_{0};
  std::atomic<uint64_t> offered_{0};   // the last one that is for the consumer's thread
  alignas(dynamic::kCacheLine) std::atomic<uint64_t> done_{0};
  alignas(dynamic::kCacheLine) std::atomic<uint64_t> awaited_{~0ull};
  std::atomic<bool> consumer_sleeps_{false};
  alignas(dynamic::kCacheLine) std::mutex mutex_;
  std::condition_variable progress_, work_;
  bool stopped_ = false;
};

}  // namespace lockstep::coexec
