#include "coexec/graph_runner.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <pthread.h>
#include <xmmintrin.h>

#include "dynamic/vm/allocator.h"
#include "dynamic/vm/executor.h"
#include "dynamic/vm/skeleton_clock.h"
#include "dynamic/vm/thread_team.h"

namespace lockstep::coexec {

namespace {

constexpr int kSpins = 4000;  // some 20 us; then the thread sleeps
constexpr std::chrono::microseconds kUntilRest{5000};
constexpr std::chrono::microseconds kIdle{100000};

}  // namespace

GraphRunner::KernelScope::KernelScope()
    : keys_(c10::default_included_set, c10::default_excluded_set | c10::autograd_dispatch_keyset_with_ADInplaceOrView) {}

GraphRunner::~GraphRunner() { stop(); }

void GraphRunner::start() {
  if (thread_.joinable()) return;
  channel_.restart();
  thread_ = std::thread([this] { loop(); });
}

void GraphRunner::stop() {
  if (!thread_.joinable()) return;
  channel_.stop();
  thread_.join();
}

std::exception_ptr GraphRunner::take_failure() {
  has_failed_.store(false, std::memory_order_release);
  return std::exchange(failure_, nullptr);
}

void GraphRunner::run_front() {
  const dynamic::TimedScope timed(dynamic::skeleton::runner);
  auto& event = channel_.front();
  if (!has_failed()) {
    try {
      if (const unsigned mode = _mm_getcsr(); (mode & dynamic::kFloatModeBits) != event.float_mode)
        _mm_setcsr((mode & ~dynamic::kFloatModeBits) | event.float_mode);
      const at::AutoGradMode grad_mode(event.grad_mode);  // some kernels return a workspace under it
      dynamic::execute(event);
    } catch (...) {
      if (event.capture) {
        event.capture->error = std::current_exception();
      } else {
        failure_ = std::current_exception();
        failed_where_ = event.node->where;
        has_failed_.store(true, std::memory_order_release);
      }
    }
  }
  event.clear();  // drops the last references to values that nobody needs any more
  channel_.finish_front();
}

void GraphRunner::rest() {
  if (!has_team_.load(std::memory_order_relaxed)) return;
  channel_.nudge();
}

void GraphRunner::loop() {
  pthread_setname_np(pthread_self(), "lockstep-runner");
  KernelScope kernels;
  for (;;) {
    for (int spin = 0; spin < kSpins && !channel_.has_work(); ++spin) _mm_pause();
    if (!channel_.has_work()) {
      if (channel_.is_stopped()) return;
      const bool has_team = has_team_.load(std::memory_order_relaxed);
      channel_.wait_for_work(has_team ? kUntilRest : kIdle);
      if (has_team && !channel_.has_work()) {  // nothing for so long, or other threads want the cores
        dynamic::release_thread_team();
        has_team_.store(false, std::memory_order_relaxed);
      }
      continue;
    }
    has_team_.store(true, std::memory_order_relaxed);
    if (const int threads = wanted_threads_.load(std::memory_order_relaxed); threads != applied_threads_) {
      at::init_num_threads();
      applied_threads_ = threads;
    }
    run_front();
  }
}

}  // namespace lockstep::coexec
