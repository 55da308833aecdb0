// What is known of one decorated function: its graph, its counters, its options.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "coexec/call_gaps.h"
#include "coexec/policy.h"
#include "coexec/worker_habit.h"
#include "dynamic/kernels/kernel_choice.h"
#include "dynamic/passes/passes.h"
#include "dynamic/threads/cores.h"
#include "graph/reasons.h"
#include "graph/trace_graph.h"

namespace lockstep::coexec {

struct Counters {
  uint64_t calls = 0;
  uint64_t traced_calls = 0;
  uint64_t ops = 0;
  uint64_t graph_ops = 0;
  uint64_t eager_ops = 0;
  uint64_t feeds = 0;
  uint64_t fetches = 0;
  uint64_t waits = 0;
  double wait_seconds = 0;
  uint64_t divergences = 0;
  std::array<uint64_t, graph::kReasonCount> reasons{};
};

class CallRecorder;

struct Function : std::enable_shared_from_this<Function> {
  uint32_t serial = 0;  // unique in the process
  std::string name;
  graph::TraceGraph graph;
  Counters counters;
  std::deque<graph::Divergence> divergences;  // the latest ones
  std::unordered_map<const void*, std::string> origins;  // storage -> name of the parameter, argument, ...
  std::pair<size_t, size_t> last_size;  // blocks and nodes, as long as a call of another thread may change them
  uint64_t calls_without_ops = 0;  // until there were some: tensors are named then
  std::atomic<bool> is_busy{false};
  std::atomic<std::thread::id> busy_thread{};  // whose call it is, while it is busy
  uint64_t memo_epoch = 0;       // of the signatures that the nodes point to
  std::unordered_set<const graph::Signature*> known;  // that it has met, where it is deterministic
  Policy policy{!dynamic::has_one_core()};  // of when="auto"
  CallGaps gaps;
  dynamic::Problem way_problem;  // under which the policy's choice is remembered; empty until the function is known
  bool is_session = false;       // one call that goes on, not one of many
  bool is_auto = false;
  Way forced_way = Way::kBehind; // where it is not auto
  bool adapts_workers = false;   // and WorkerHabit says whether workers sleep
  WorkerHabit worker_habit;
  bool is_strict = true;         // PyTorch's own kernels only
  bool fuses = false;            // chains of pointwise ops become one kernel
  dynamic::PassSet passes;       // where it is not strict
  bool is_deterministic = false; // which kernels run depends on nothing but the program
  bool rounds_products = false;  // factors of products may be bfloat16
  bool joins_steps = false;      // steps of optimizers are one op for all parameters
  bool waits_for_errors = true;  // errors by value are raised where eager raises them
  std::shared_ptr<CallRecorder> next_recorder;  // records the next call
  static constexpr size_t kKeptDivergences = 64;
  size_t max_nodes = 1 << 16;    // of the graph; above it the least recently used go
  uint64_t clock = 0;            // events asked for
  double graph_ticks_before = 0;  // of kernels that the graph ran, on either thread, when is_pointless() was asked last

  Function();
  // For a call of this thread; false while there is another one.
  bool try_claim() {
    if (is_busy.exchange(true)) return false;
    busy_thread.store(std::this_thread::get_id());
    return true;
  }
  // Its graph may change at any time.
  bool runs_elsewhere() const { return is_busy.load() && busy_thread.load() != std::this_thread::get_id(); }
  void forget_stale_signatures();  // of its nodes, where the memo has forgotten them
  // Whether it may use what the process knows. An op of known layout runs by other kernels than one that is met first: where
  // bits depend on nothing but the program, that is what this function has met.
  bool may_know(const graph::Signature& signature) const { return !is_deterministic || known.contains(&signature); }
  void note_known(const graph::Signature& signature) {
    if (is_deterministic) known.insert(&signature);
  }
  // Whether most ops of the last call ran eagerly by themselves, and kernels that the graph ran took next to nothing of its
  // time.
  bool is_pointless(const Counters& before, uint64_t call_ticks);
  Way unmeasured_way() const { return adapts_workers && worker_habit.sleeps() ? Way::kYielding : forced_way; }
};

}  // namespace lockstep::coexec
