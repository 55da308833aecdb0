// Compiles kernels beside the run: a group asks for its kernel, runs op by op until it is there, and never waits. Those come
// first for want of which most time was spent so far.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "dynamic/jit/compiler.h"

namespace lockstep::dynamic {

// The place where a kernel will be. Written once.
class KernelSlot {
 public:
  const jit::Kernel* find() const { return kernel_.load(std::memory_order_acquire); }
  bool has_failed() const { return has_failed_.load(std::memory_order_acquire); }
  void fail() { has_failed_.store(true, std::memory_order_release); }
  void set(std::shared_ptr<const jit::Kernel> kernel) {
    kept_ = std::move(kernel);
    kernel_.store(kept_.get(), std::memory_order_release);
  }
  // A group ran so long, op by op, for want of it.
  void miss(uint64_t ticks) { missed_.fetch_add(ticks, std::memory_order_relaxed); }
  uint64_t missed() const { return missed_.load(std::memory_order_relaxed); }

 private:
  std::atomic<const jit::Kernel*> kernel_{nullptr};
  std::atomic<bool> has_failed_{false};
  std::atomic<uint64_t> missed_{0};
  std::shared_ptr<const jit::Kernel> kept_;
};

class KernelService {
 public:
  static KernelService& instance();

  // At once where this process or the cache on disk has the kernel already, else some time later; never, where it cannot be
  // compiled, or where the process has asked for too many others (a program that makes ever new chains of ops).
  std::shared_ptr<KernelSlot> request(const jit::KernelSpec& spec);
  // Until this one is there, or is known to fail.
  void wait_for(const KernelSlot& slot);
  // Until everything that was requested is there. For tests and measurements.
  void wait();
  // Nothing is compiled from then on, and no thread begins. To be called before the process exits: the compiler's globals go
  // then.
  static void stop();
  jit::CacheStatistics statistics() const { return cache_.statistics(); }
  std::vector<std::string> failures();  // why kernels could not be compiled, the first ones
  static constexpr size_t kMostKernels = 1 << 14;  // of a process: 20 KB each, and 8 on disk
  void set_most_kernels(size_t count);             // for tests

 private:
  struct Job {
    jit::KernelSpec spec;
    std::shared_ptr<KernelSlot> slot;
  };
  KernelService();
  bool try_start_thread_locked();
  void note_failure_locked(std::string reason);
  Job take_job_locked();
  void compile_one(std::unique_lock<std::mutex>& lock);
  void loop();
  template <class Over>
  void wait_until(std::unique_lock<std::mutex>& lock, const Over& is_over);
  void rest();  // until the thread does nothing; it begins with nothing more until it is released
  void hold();  // until nobody compiles or looks into the cache; the mutex stays locked
  void release();
  void release_in_child();

  struct SpecHash {
    size_t operator()(const jit::KernelSpec& spec) const;
  };
  jit::KernelCache cache_;
  std::mutex mutex_;
  std::unordered_map<jit::KernelSpec, std::shared_ptr<KernelSlot>, SpecHash> slots_;  // all that were asked for
  std::condition_variable work_, idle_;
  std::vector<Job> jobs_;
  size_t most_kernels_ = kMostKernels;
  static constexpr size_t kKeptFailures = 64;
  std::vector<std::string> failures_;
  bool is_busy_ = false;
  int looking_ = 0;  // how many look into the cache for what they asked for: it is no job yet
  bool is_stopped_;
  int held_ = 0;     // by how many the thread is kept from the next job
  int process_ = 0;  // whose thread it is: a forked child has none
};

}  // namespace lockstep::dynamic
