// The graph runner: executes events in order behind the leading thread. Never takes the interpreter's lock.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <atomic>
#include <exception>
#include <mutex>
#include <string>
#include <thread>

#include "coexec/adaptive_spin.h"
#include "coexec/channel.h"
#include "dynamic/fusion/accumulator.h"
#include "dynamic/fusion/fuser.h"
#include "dynamic/fusion/splitter.h"
#include "dynamic/threads/shared_loop.h"
#include "dynamic/vm/allocator.h"
#include "dynamic/vm/event.h"

namespace lockstep::coexec {

class GraphRunner {
 public:
  explicit GraphRunner(size_t window) : channel_(window) {}
  ~GraphRunner();

  Channel<dynamic::Event>& channel() { return channel_; }
  // Waits for event `number`, and takes parts of the runner's loops meanwhile, for some time: returns whether it is done.
  bool wait_done(uint64_t number);
  bool try_start();  // the thread, once; false where the system refuses it, or the process is about to exit
  // Whether the leader executes instead; changed at rest only.
  void set_in_place(bool in_place) { channel_.set_unattended(in_place); }
  void stop();   // after the events that were asked by then; what is asked later is executed by whoever waits for it
  static void refuse_threads();  // from now on: the process is about to exit
  // Other threads run kernels for a while: the runner's workers end as soon as it has nothing to do.
  void rest();
  bool is_running() const { return thread_.joinable(); }
  // Memory may have been written otherwise than by events of this runner, which are done.
  void note_access() { accesses_.fetch_add(1, std::memory_order_release); }
  bool has_stopped() const { return has_stopped_.load(std::memory_order_acquire); }
  bool is_this_thread() const { return thread_.get_id() == std::this_thread::get_id(); }

  // The first failure nobody waited for; the events after it were not executed. Read at rest.
  std::exception_ptr take_failure();
  bool has_failed() const { return has_failed_.load(std::memory_order_acquire); }
  const std::string& failed_event() const { return failed_event_; }  // its op, line and inputs

  // Executes the next event on this thread, or some: pointwise ops wait for others that they are fused with. One consumer
  // at a time.
  void run_front();

  // What a thread must be like while it runs kernels: no autograd, no hook, no modes; memory from the pool.
  class KernelScope;

  // Who waits takes parts of loops; workers of teams should sleep then.
  void set_helped(bool is_helped) { is_helped_.store(is_helped, std::memory_order_relaxed); }
  void set_thread_count(int count) { wanted_threads_.store(count); }  // of the kernels, from the next event on

 private:
  void loop();
  bool is_helped() const { return is_helped_.load(std::memory_order_relaxed); }
  void run_single(dynamic::Event& event);
  void split(dynamic::Event& event);
  bool accumulate(size_t ahead);
  size_t run_fused();
  void run_group(dynamic::Fuser& fuser);
  void run_passing(dynamic::Event& event);
  void note_failure(dynamic::Event& event);

  Channel<dynamic::Event> channel_;
  dynamic::WorkBoard board_{[this] { channel_.call_waiting(); }};
  std::mutex thread_mutex_;  // who starts or stops it
  std::thread thread_;
  std::atomic<bool> has_stopped_{false};
  AdaptiveSpin idle_{20e-6, 300e-6};  // until there is work
  std::atomic<bool> has_failed_{false};
  std::exception_ptr failure_;
  std::string failed_event_;
  std::shared_ptr<dynamic::FusionMemo> fusion_memo_ = std::make_shared<dynamic::FusionMemo>();
  dynamic::Fuser fuser_{fusion_memo_};
  dynamic::Splitter splitter_;
  dynamic::TotalsWithoutMinusZero totals_;
  std::atomic<uint64_t> accesses_{0};
  dynamic::Fuser passing_{fusion_memo_};  // for what runs before the group that waits: the same kernels as in a group
  static constexpr uint64_t kNone = ~0ull;
  std::atomic<uint64_t> last_{kNone};  // the event with which the thread ends
  std::atomic<int> wanted_threads_{0};
  int applied_threads_ = 0;  // 0: those that a new thread has
  std::atomic<bool> is_helped_{false};
  std::atomic<bool> has_team_{false};   // workers of its own, perhaps
  bool has_spread_team_ = false;        // for sure, and on cores of their own when they began
};

class GraphRunner::KernelScope {
 public:
  KernelScope();
  ~KernelScope();
  KernelScope(const KernelScope&) = delete;

 private:
  const unsigned float_mode_;  // of the thread, which may be another one's; kernels run in that of who asked
  c10::impl::ForceDispatchKeyGuard keys_;
  dynamic::PoolScope pool_;
};

}  // namespace lockstep::coexec
