#include "dynamic/fusion/kernel_service.h"

#include <malloc.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <system_error>

#include "dynamic/kernels/kernel_choice.h"
#include "dynamic/threads/fork_guard.h"
#include "dynamic/vm/timeline.h"
#include "graph/layout.h"

namespace lockstep::dynamic {

namespace {

constexpr int kNiceness = 10;  // the run has the cores first
std::atomic<bool> is_made{false};
std::atomic<bool> is_ending{false};  // the process

}  // namespace

// Never destroyed: a session may end after it.
KernelService& KernelService::instance() {
  static auto* service = new KernelService;
  return *service;
}

// The compiler has locks of its own: no fork in the middle of a compilation.
KernelService::KernelService() : is_stopped_(is_ending) {
  hold_across_fork(ForkRank::kCompiler, ForkLock{this, [](void* one) { static_cast<KernelService*>(one)->rest(); },
                                                 [](void*) {}});  // until it is released
  hold_across_fork(ForkRank::kKernels, ForkLock{this, [](void* one) { static_cast<KernelService*>(one)->hold(); },
                                                [](void* one) { static_cast<KernelService*>(one)->release(); },
                                                [](void* one) { static_cast<KernelService*>(one)->release_in_child(); }});
  is_made = true;
}

void KernelService::rest() {
  std::unique_lock lock(mutex_);
  ++held_;
  idle_.wait(lock, [this] { return !is_busy_; });
}

void KernelService::hold() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return !is_busy_ && looking_ == 0; });
  cache_.hold();
  lock.release();
}

void KernelService::release() {
  --held_;
  cache_.release();
  mutex_.unlock();
  work_.notify_one();
  idle_.notify_all();
}

// The child has no thread of ours; the condition variables still count those who waited in the parent.
void KernelService::release_in_child() {
  held_ = 0;
  cache_.release();
  new (&work_) std::condition_variable;
  new (&idle_) std::condition_variable;
  mutex_.unlock();
}

void KernelService::stop() {
  is_ending = true;
  if (!is_made) return;
  auto& service = instance();
  service.rest();
  service.hold();
  service.is_stopped_ = true;
  service.jobs_.clear();
  service.idle_.notify_all();
  service.cache_.release();
  service.mutex_.unlock();
}

size_t KernelService::SpecHash::operator()(const jit::KernelSpec& spec) const {
  graph::SignatureWords words = spec.sizes;
  for (const auto& buffer : spec.buffers) {
    words.push_back(static_cast<int64_t>(buffer.type) << 8 | static_cast<int64_t>(buffer.access));
    words.insert(words.end(), buffer.strides.begin(), buffer.strides.end());
  }
  for (const auto& one : spec.body) {
    words.push_back(static_cast<int64_t>(one.op) << 8 | static_cast<int64_t>(one.type));
    words.push_back(one.operands[0] * 4096 + one.operands[1]);
    words.push_back(one.immediate);
  }
  return graph::hash_words(words);
}

std::shared_ptr<KernelSlot> KernelService::request(const jit::KernelSpec& spec) {
  std::shared_ptr<KernelSlot> slot;
  {
    std::lock_guard lock(mutex_);
    if (auto known = slots_.find(spec); known != slots_.end()) return known->second;
    slot = std::make_shared<KernelSlot>();
    if (is_stopped_ || slots_.size() >= most_kernels_) {
      slot->fail();
      if (!is_stopped_) note_failure_locked("the process has asked for " + std::to_string(slots_.size()) + " kernels already");
      return slot;
    }
    slots_.emplace(spec, slot);
    ++looking_;
  }
  const auto known = [&]() -> std::optional<jit::CompileResult> {
    try {
      return cache_.find(spec);
    } catch (const std::exception&) {  // for want of memory
      return std::nullopt;
    }
  }();
  std::lock_guard lock(mutex_);
  --looking_;
  if (known && *known) {
    slot->set(known->kernel);
  } else if (known || is_stopped_) {
    slot->fail();
  } else {
    jobs_.push_back({spec, slot});
    try_start_thread_locked();  // the next request tries again
    work_.notify_one();
  }
  idle_.notify_all();
  return slot;
}

// False where the system refuses another thread.
bool KernelService::try_start_thread_locked() {
  if (process_ == getpid()) return true;
  if (is_ending) return false;
  try {
    std::thread([this] { loop(); }).detach();
  } catch (const std::system_error&) {
    return false;
  }
  process_ = getpid();
  return true;
}

// The first of those that were missed most.
KernelService::Job KernelService::take_job_locked() {
  const auto place = std::max_element(jobs_.begin(), jobs_.end(), [](const Job& one, const Job& other) {
    return one.slot->missed() < other.slot->missed();
  });
  Job job = std::move(*place);
  jobs_.erase(place);
  return job;
}

void KernelService::compile_one(std::unique_lock<std::mutex>& lock) {
  auto job = take_job_locked();
  is_busy_ = true;
  lock.unlock();
  const uint64_t begin = __rdtsc();
  auto result = [&]() -> jit::CompileResult {
    const SpanScope span(SpanKind::kCompile);
    try {
      return cache_.get(job.spec);
    } catch (const std::exception& error) {  // for want of memory
      return {nullptr, error.what()};
    }
  }();
  lock.lock();
  if (result) {
    job.slot->set(std::move(result.kernel));
  } else {
    job.slot->fail();
    note_failure_locked(std::move(result.reason));
  }
  add_preparation(static_cast<double>(__rdtsc() - begin));  // it took a core from what ran meanwhile
  is_busy_ = false;
  idle_.notify_all();
}

void KernelService::loop() {
  pthread_setname_np(pthread_self(), "lockstep-jit");
  setpriority(PRIO_PROCESS, 0, kNiceness);  // of this thread alone, on Linux
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [this] { return !jobs_.empty() && held_ == 0; });
    compile_one(lock);
    if (jobs_.empty()) {
      lock.unlock();
      malloc_trim(0);  // a compiler leaves much behind, and glibc keeps it
      lock.lock();
    }
  }
}

void KernelService::note_failure_locked(std::string reason) {
  if (failures_.size() < kKeptFailures) failures_.push_back(std::move(reason));
}

void KernelService::set_most_kernels(size_t count) {
  std::lock_guard lock(mutex_);
  most_kernels_ = count;
}

std::vector<std::string> KernelService::failures() {
  std::lock_guard lock(mutex_);
  return failures_;
}

void KernelService::wait() {
  std::unique_lock lock(mutex_);
  wait_until(lock, [this] { return is_stopped_; });
}

void KernelService::wait_for(const KernelSlot& slot) {
  if (slot.find() || slot.has_failed()) return;
  std::unique_lock lock(mutex_);
  wait_until(lock, [&] { return slot.find() || slot.has_failed() || is_stopped_; });
}

// Or until there is nothing to do. A forked child has the parent's jobs, but not its thread.
template <class Over>
void KernelService::wait_until(std::unique_lock<std::mutex>& lock, const Over& is_over) {
  const auto has_ended = [&] { return is_over() || (jobs_.empty() && !is_busy_ && looking_ == 0); };
  while (!has_ended() && !try_start_thread_locked()) {
    if (is_busy_ || held_ > 0 || jobs_.empty()) {  // another thread that waits compiles or looks, or a fork is near
      idle_.wait(lock);
    } else {
      compile_one(lock);
    }
  }
  idle_.wait(lock, has_ended);
}

}  // namespace lockstep::dynamic
