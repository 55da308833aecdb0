#include "coexec/graph_runner.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <pthread.h>
#include <xmmintrin.h>

#include <optional>
#include <system_error>

#include "coexec/clock.h"
#include "dynamic/threads/thread_team.h"
#include "dynamic/vm/allocator.h"
#include "dynamic/vm/executor.h"
#include "dynamic/vm/hidden_layout.h"
#include "dynamic/vm/kernel_work.h"
#include "dynamic/vm/skeleton_clock.h"
#include "graph/value_text.h"

namespace lockstep::coexec {

namespace {

constexpr double kHelperIdle = 100e-6;  // seconds until who waits sleeps; most kernels between two loops are shorter
constexpr std::chrono::microseconds kWaiting{20000};  // how often a wait looks for signals
constexpr std::chrono::microseconds kUntilRest{5000};
constexpr std::chrono::microseconds kIdle{100000};
constexpr size_t kMaxPassed = 8;  // events that run before a group that was asked earlier

void set_float_mode(unsigned mode) {
  if (const unsigned now = _mm_getcsr(); (now & dynamic::kFloatModeBits) != mode)
    _mm_setcsr((now & ~dynamic::kFloatModeBits) | mode);
}

std::atomic<bool> are_refused{false};  // threads

}  // namespace

GraphRunner::KernelScope::KernelScope()
    : float_mode_(_mm_getcsr() & dynamic::kFloatModeBits),
      keys_(c10::default_included_set, c10::default_excluded_set | c10::autograd_dispatch_keyset_with_ADInplaceOrView) {}

GraphRunner::KernelScope::~KernelScope() { set_float_mode(float_mode_); }

GraphRunner::~GraphRunner() { stop(); }

void GraphRunner::refuse_threads() { are_refused = true; }

bool GraphRunner::try_start() {
  const std::lock_guard lock(thread_mutex_);
  if (thread_.joinable()) return true;
  if (are_refused) return false;
  channel_.restart();
  applied_threads_ = 0;
  has_spread_team_ = false;
  const bool had_stopped = has_stopped_.exchange(false);
  try {
    thread_ = std::thread([this] { loop(); });
  } catch (const std::system_error&) {
    has_stopped_.store(had_stopped);
    return false;
  }
  return true;
}

void GraphRunner::stop() {
  const std::lock_guard lock(thread_mutex_);
  if (!thread_.joinable()) return;
  last_.store(channel_.asked());
  channel_.stop();
  thread_.join();
  last_.store(kNone);
  has_stopped_.store(true, std::memory_order_release);
}

std::exception_ptr GraphRunner::take_failure() {
  has_failed_.store(false, std::memory_order_release);
  return std::exchange(failure_, nullptr);
}

// An event was not executed, nor will be those after it.
void GraphRunner::note_failure(dynamic::Event& event) {
  if (event.capture) {
    event.capture->error = std::current_exception();
    return;
  }
  failure_ = std::current_exception();
  failed_event_ = event.op().name + " at " + event.node->where;
  for (const auto& input : event.signature->inputs) failed_event_ += ' ' + graph::print_layout(input);
  has_failed_.store(true, std::memory_order_release);
}

namespace {

bool try_add(dynamic::Fuser& fuser, dynamic::Event& event) {
  const dynamic::HiddenStorageReader reader;  // it may restore some
  try {
    return fuser.try_add(event);
  } catch (...) {  // for want of memory: will happen again where it is said whose it was
    return false;
  }
}

// Autocast is on within a kernel, as it was where it was asked for.
class AutocastScope {
 public:
  explicit AutocastScope(std::optional<c10::ScalarType> type) : is_on_(type.has_value()) {
    if (!is_on_) return;
    before_ = at::autocast::get_autocast_dtype(at::kCPU);
    at::autocast::set_autocast_dtype(at::kCPU, *type);
    at::autocast::set_autocast_enabled(at::kCPU, true);
  }
  ~AutocastScope() {
    if (!is_on_) return;
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::set_autocast_dtype(at::kCPU, before_);
  }
  AutocastScope(const AutocastScope&) = delete;

 private:
  const bool is_on_;
  c10::ScalarType before_{};
};

class CapturingHandler final : public c10::WarningHandler {
 public:
  explicit CapturingHandler(dynamic::Capture& capture) : capture_(capture) {}
  void process(const c10::Warning& warning) override { capture_.warnings.push_back(warning); }

 private:
  dynamic::Capture& capture_;
};

}  // namespace

void GraphRunner::run_single(dynamic::Event& event) {
  if (has_failed()) return;
  const dynamic::HiddenStorageReader reader;
  try {
    set_float_mode(event.float_mode);
    std::optional<CapturingHandler> handler;
    std::optional<c10::WarningUtils::WarningHandlerGuard> warnings;
    if (event.capture) warnings.emplace(&handler.emplace(*event.capture));
    const at::AutoGradMode grad_mode(event.grad_mode);  // some kernels return a workspace under it
    const AutocastScope autocast(event.autocast);
    dynamic::execute(event, reader.some_are_hidden() && dynamic::has_pointwise_body(event.op()));
  } catch (...) {
    note_failure(event);
  }
}

// What is left of it may join what comes next.
void GraphRunner::split(dynamic::Event& event) {
  if (!dynamic::Splitter::may_split(event)) return;
  if (has_failed() || channel_.pending() < 2 || channel_.is_awaited(1)) return;
  const dynamic::HiddenStorageReader reader;
  try {
    set_float_mode(event.float_mode);
    splitter_.try_split(event, channel_.front(1));
  } catch (...) {
    note_failure(event);
  }
}

// Whether the event so far ahead ran together with a sum that was asked later. It may have failed.
bool GraphRunner::accumulate(size_t ahead) {
  auto& made = channel_.front(ahead);
  if (has_failed() || !dynamic::may_accumulate(made)) return false;
  c10::SmallVector<dynamic::Event*, dynamic::kLookAhead> after;
  for (size_t i = ahead + 1; i < channel_.pending() && after.size() < dynamic::kLookAhead; ++i)
    after.push_back(&channel_.front(i));
  auto* sum = dynamic::find_sum(made, after);
  if (!sum || (ahead > 0 && !fuser_.is_independent(*sum))) return false;
  totals_.renew(accesses_.load(std::memory_order_acquire));
  const dynamic::HiddenStorageReader reader;
  try {
    set_float_mode(made.float_mode);
    return dynamic::try_accumulate(made, *sum, totals_);
  } catch (...) {
    note_failure(made);
    return true;
  }
}

void GraphRunner::run_group(dynamic::Fuser& fuser) {
  dynamic::Event* failed = nullptr;
  const dynamic::HiddenStorageReader reader;
  try {
    set_float_mode(fuser.first()->float_mode);
    fuser.run(failed, /*lets_go=*/true);
  } catch (...) {
    note_failure(*failed);
    fuser.clear();
  }
}

// Before a group that waits. Its kernel is the one that it would have had in a group: which events wait is chance.
void GraphRunner::run_passing(dynamic::Event& event) {
  if (try_add(passing_, event)) {
    run_group(passing_);
  } else {
    run_single(event);
  }
}

// Ops join the group as long as they come and nobody waits for one of them; others may run meanwhile, if they have
// nothing to do with the group. Returns how many events are done.
size_t GraphRunner::run_fused() {
  size_t count = 1, passed = 0;
  while (count < channel_.pending() && !channel_.is_awaited(count)) {
    auto& event = channel_.front(count);
    if (!event.is_done) totals_.forget_touched(event);
    if (!event.is_done && !try_add(fuser_, event)) {
      const bool may_pass = event.passes.has(dynamic::Pass::k_reorder) && passed < kMaxPassed && !event.capture;
      if (!may_pass || !fuser_.is_independent(event)) break;
      if (!accumulate(count)) run_passing(event);
      event.release_values();
      ++passed;
      if (has_failed()) {  // what was asked before it still happens
        const auto failure = take_failure();
        run_group(fuser_);
        if (!has_failed()) failure_ = failure;
        has_failed_.store(true, std::memory_order_release);
        return count + 1;
      }
    }
    ++count;
  }
  run_group(fuser_);
  return count;
}

void GraphRunner::run_front() {
  const dynamic::TimedScope timed(dynamic::skeleton::runner);
  size_t count = 1;
  auto& event = channel_.front();
  if (!event.is_done) totals_.forget_touched(event);
  split(event);
  if (event.is_done || accumulate(0)) {
    // nothing is left to do
  } else if (!has_failed() && try_add(fuser_, event)) {
    count = run_fused();
  } else {
    run_single(event);
  }
  for (size_t i = 0; i < count; ++i) channel_.front(i).clear();  // drops the last references to values nobody needs
  channel_.finish_front(count);
}

bool GraphRunner::wait_done(uint64_t number) {
  const double end = now_seconds() + std::chrono::duration<double>(kWaiting).count();
  for (double idle_since = now_seconds(); is_helped() && now_seconds() - idle_since < kHelperIdle;) {
    if (channel_.is_done(number)) return true;
    if (!board_.help()) {
      _mm_pause();
      continue;
    }
    idle_since = now_seconds();
    if (idle_since > end) return false;
  }
  const dynamic::WorkBoard::SleepScope asleep(board_);
  return channel_.wait_done(number, kWaiting, [&] { return board_.has_work(); });
}

void GraphRunner::rest() {
  if (!has_team_.load(std::memory_order_relaxed)) return;
  channel_.nudge();
}

void GraphRunner::loop() {
  pthread_setname_np(pthread_self(), "lockstep-runner");
  KernelScope kernels;
  const dynamic::BoardScope shared(&board_);
  for (;;) {
    if (!idle_.wait([this] { return channel_.has_work(); })) {
      if (channel_.is_stopped()) break;
      const bool has_team = has_team_.load(std::memory_order_relaxed);
      channel_.wait_for_work(has_team ? kUntilRest : kIdle);
      if (has_team && !channel_.has_work()) {  // nothing for so long, or other threads want the cores
        dynamic::release_thread_team();
        has_team_.store(false, std::memory_order_relaxed);
        has_spread_team_ = false;
      }
      if (channel_.has_work()) idle_.woke();
      continue;
    }
    has_team_.store(true, std::memory_order_relaxed);
    if (const int threads = wanted_threads_.load(std::memory_order_relaxed); threads != applied_threads_) {
      dynamic::set_threads_of_this_thread(threads);
      applied_threads_ = threads;
    }
    if (!has_spread_team_ && !dynamic::is_light(channel_.front())) {
      dynamic::spread_thread_team();
      has_spread_team_ = true;
    }
    board_.set_on(is_helped());
    run_front();
    if (channel_.is_done(last_.load(std::memory_order_relaxed))) break;  // another thread may go on asking
  }
  if (has_team_.exchange(false)) dynamic::release_thread_team();
}

}  // namespace lockstep::coexec
