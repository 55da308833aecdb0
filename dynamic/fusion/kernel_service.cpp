#include "dynamic/fusion/kernel_service.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

namespace lockstep::dynamic {

namespace {

constexpr int kNiceness = 10;  // the run has the cores first

}  // namespace

// Never destroyed: the thread may compile while the process exits.
KernelService& KernelService::instance() {
  static auto* service = new KernelService;
  return *service;
}

KernelService::KernelService() {
  // A lock that another thread held while the process forked would stay locked in the child.
  pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                 [] { instance().mutex_.unlock(); });
}

std::shared_ptr<KernelSlot> KernelService::request(const jit::KernelSpec& spec) {
  auto slot = std::make_shared<KernelSlot>();
  if (auto known = cache_.find(spec)) {
    if (*known) {
      slot->set(std::move(known->kernel));
    } else {
      slot->fail();
    }
    return slot;
  }
  std::lock_guard lock(mutex_);
  jobs_.push_back({spec, slot});
  start_thread_locked();
  work_.notify_one();
  return slot;
}

void KernelService::start_thread_locked() {
  if (process_ == getpid()) return;
  process_ = getpid();
  std::thread([this] { loop(); }).detach();
}

void KernelService::loop() {
  pthread_setname_np(pthread_self(), "lockstep-jit");
  setpriority(PRIO_PROCESS, 0, kNiceness);  // of this thread alone, on Linux
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [this] { return !jobs_.empty(); });
    auto job = std::move(jobs_.front());
    jobs_.pop_front();
    is_busy_ = true;
    lock.unlock();
    auto result = cache_.get(job.spec);
    lock.lock();
    if (result) {
      job.slot->set(std::move(result.kernel));
    } else {
      job.slot->fail();
      if (failures_.size() < kKeptFailures) failures_.push_back(std::move(result.reason));
    }
    is_busy_ = false;
    if (jobs_.empty()) idle_.notify_all();
  }
}

std::vector<std::string> KernelService::failures() {
  std::lock_guard lock(mutex_);
  return failures_;
}

void KernelService::wait() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return jobs_.empty() && !is_busy_; });
}

}  // namespace lockstep::dynamic
