// A session ties the two runners of one leading thread together. It listens at the hook, keeps the cursor in the
// TraceGraph, asks the graph runner, waits, and falls back. Sessions belong to threads and live for ever.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "coexec/function.h"
#include "coexec/graph_runner.h"
#include "coexec/host.h"
#include "coexec/placeholder.h"
#include "coexec/shared_numbers.h"
#include "dynamic/vm/memory_log.h"
#include "dynamic/vm/skeleton_clock.h"
#include "dynamic/vm/timeline.h"
#include "tracer/hook.h"
#include "tracer/location.h"

namespace lockstep::coexec {

enum class Phase : uint8_t {
  kIdle,         // no function runs
  kTracing,      // ops run on the leading thread and are recorded
  kCoExecuting,  // ops are matched and asked
};

// A tensor argument of the op at the hook.
struct OperandView {
  const at::Tensor* tensor = nullptr;
  c10::StorageImpl* storage = nullptr;  // null: undefined tensor
  Link* link = nullptr;
  int argument = 0;
  bool is_written = false;
  bool is_copied = false;  // for the event: others may change the memory before it runs
};

class Session final : public tracer::OpSink {
 public:
  explicit Session(Host& host);

  // ---- calls
  void begin(Function& function, Way way = Way::kBehind);
  void end();            // at rest afterwards; throws the failure of an op that nobody waited for
  void end_quietly();    // after an exception of the user's
  bool was_recorded() const { return traced_in_this_call_; }  // some of the last call
  // A notable part of the last call's time went into choosing kernels and compiling them, or was longer for want of them.
  bool was_prepared() const;
  bool is_active() const { return phase_ != Phase::kIdle; }
  Phase phase() const { return phase_; }
  Function* function() const { return function_; }
  bool has_recorder() const { return recorder_ != nullptr; }  // this call is written down, for the replay

  // ---- doors
  void drain();                         // everything asked is done, everything alive has data
  void wait_for(Link& link);            // this storage has its data and no pending write
  void wait_for_readers(Link& link);    // ... and no pending reader
  static void on_raw_access(Link* link);
  void forget_locked(Link* link);       // links_lock held
  void drain_from_other_thread();
  // Those that are active, without the one of this thread.
  static std::vector<Session*> drain_others();
  // While set, nothing stays pending: C++ above the hook reads the memory of what it asks for.
  bool set_synchronous(bool on) { return std::exchange(synchronous_, on); }
  // While set, PyTorch's kernels run at once on this thread; nothing is pending when it begins. A recorder wants events.
  bool set_at_once(bool on) { return std::exchange(at_once_, on && !has_recorder()); }
  void note_fetch();  // a value was read through a wrapped entry point
  void note_foreign_op() { foreign_ops_.fetch_add(1); }

  void on_op(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) override;
  // The session of this thread in a call; it takes ops without boxes (unboxed.h) where nobody wants to see them.
  static Session* taking_unboxed() {
    Session* session = listening_;
    return session && !session->has_recorder() ? session : nullptr;
  }

  GraphRunner& runner() { return runner_; }
  bool is_in_native() const { return native_depth_ > 0; }

  static Session& of_this_thread();
  static Session* active_on_this_thread();
  static std::vector<Session*> all();
  // Where the process is about to exit: without the graph runner's thread, in what is left of the call.
  void stay_in_place();
  static void prepare_fork(bool beside_threads);  // of Python, besides the one that forks
  static void end_fork();  // in the parent
  // All that are known in the process, if there are more than so many, and no call but that of `leader` goes on.
  static void forget_signatures(size_t most, const Session* leader);
  static void abandon_all();  // in a forked child, where the runners' threads do not exist
  static void set_host(Host& host);
  static Host& host();

 private:
  template <class Op, class Schema>
  friend class Unboxed;

  struct Place {
    uint64_t key = 0;
    bool unrecorded = false;
    int64_t forward_node = -1;
    std::string (*autograd_name)() = nullptr;
  };
  Place locate();
  void adopt_ambient_state();
  void arrive(c10::DispatchKeySet keys);
  void go_on(const graph::OpInfo& op, torch::jit::Stack* stack);
  // For an op that came without boxes: the steps that are left, from go_on or from lead_compute.
  static void box_and_go_on(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  static void box_and_compute(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  static void box_and_trace(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  void listen(bool on);
  static inline thread_local Session* listening_ = nullptr;
  // Nobody asks while the process forks: a child would never see what is pending then. Who forks orders all threads, so that
  // leading threads need no fence for it.
  static inline std::atomic<int> forks{0};  // that have begun and not ended
  std::atomic<bool> is_asking_{false};
  void begin_asking() {
    is_asking_.store(true, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (forks.load(std::memory_order_relaxed) > 0) wait_for_fork();
  }
  void end_asking() { is_asking_.store(false, std::memory_order_release); }
  void wait_for_fork();
  void wait_until_asked();
  static inline std::atomic<bool> has_several{false};  // sessions; those of threads that have ended count, too

  // ---- looking at the arguments
  void collect_nested(const graph::OpInfo& op, at::ArrayRef<c10::IValue> args);
  std::optional<graph::Reason> collect_operands(const graph::OpInfo& op, at::ArrayRef<c10::IValue> args);
  std::optional<graph::Reason> collect_operand(const at::Tensor& tensor, int argument, bool is_written);
  void begin_words(const graph::OpInfo& op);
  void build_words(const graph::OpInfo& op, at::ArrayRef<c10::IValue> args);
  const graph::Signature* find_signature(const graph::OpInfo& op, graph::Node* node);
  const graph::Signature* remember(std::unique_ptr<graph::Signature> learned);
  const graph::Signature* infer_signature(const graph::OpInfo& op, const graph::Node& node,
                                          at::ArrayRef<c10::IValue> args);
  std::unique_ptr<graph::Signature> create_signature(const graph::OpInfo& op);
  void fill_outputs(graph::Signature& signature, const torch::jit::Stack& results);

  // ---- tracing
  void trace_op(const graph::OpInfo& op, torch::jit::Stack* stack, const Place& place,
                std::optional<graph::Reason> foreign);
  void begin_traced(graph::Node& node, graph::Reason reason);
  void end_traced(bool known);
  graph::Node* record(const graph::OpInfo& op, at::ArrayRef<c10::IValue> args, const Place& place, bool* known);
  void note_sources(graph::Node& node);
  graph::OperandSource source_of(const OperandView& view) const;
  void note_variation(graph::Node& node, at::ArrayRef<c10::IValue> args);
  void note_operand_variation(graph::Node& node);
  bool is_of_this_call(const OperandView& view) const;
  bool has_source(const OperandView& view, graph::OperandSource& source) const;
  const std::string& origin_of(const OperandView& view) const;
  void advance(graph::Node* node, graph::Edge* edge);
  void prefetch_next() const;

  // ---- co-execution
  void dispatch(const graph::OpInfo& op, torch::jit::Stack* stack, const Place& place,
                std::optional<graph::Reason> foreign);
  void show_recorder(const graph::OpInfo& op, torch::jit::Stack* stack, const Place& place,
                     std::optional<graph::Reason> foreign);
  void lead_op(const graph::OpInfo& op, torch::jit::Stack* stack, const Place& place,
               std::optional<graph::Reason> foreign);
  graph::Edge* match(const graph::OpInfo& op, uint64_t location);
  void diverge(const graph::OpInfo& op);
  void leave_lockstep();
  void lose_patience();
  void note_traced();
  void lead_compute(const graph::OpInfo& op, torch::jit::Stack* stack, graph::Node* node,
                    bool hides_warnings = false);
  bool has_dynamic_shape(const graph::OpInfo& op) const;
  bool runs_on_one_thread() const;
  bool resolve_masks(const graph::OpInfo& op, torch::jit::Stack* stack);
  bool can_run_on_host(const graph::OpInfo& op, const graph::Signature& signature);
  bool can_run_at_once(const graph::OpInfo& op, const graph::Signature& signature);
  void note_factor(const c10::IValue& alpha);
  bool rounds_as_eager(const graph::OpInfo& op, const graph::Signature& signature) const;
  bool is_pending(const OperandView& view);
  bool take_operands_at_rest();
  bool must_wait(const graph::OpInfo& op, at::ArrayRef<c10::IValue> args, bool is_resolved);
  bool meets_outside();
  bool must_meet_outside();
  bool can_copy(const OperandView& view);
  bool may_fail_by_value(const graph::OpInfo& op) const;
  bool may_lack_memory(const graph::Signature& signature);
  void ask(const graph::OpInfo& op, torch::jit::Stack* stack, graph::Node* node,
           const graph::Signature& signature);
  void ask_and_wait(const graph::OpInfo& op, torch::jit::Stack* stack, graph::Node* node,
                    const graph::Signature* known);
  dynamic::Event& open_event(graph::Node* node, const graph::Signature* signature);
  void fill_operands(dynamic::Event& event);
  void fill_event(dynamic::Event& event, const graph::OpInfo& op, at::ArrayRef<c10::IValue> args);
  using Placeholders = c10::SmallVector<at::Tensor, 4>;
  Placeholders push_event(dynamic::Event& event);
  void run_at_once(const graph::OpInfo& op, torch::jit::Stack* stack, graph::Node* node);
  dynamic::Operand operand_of(OperandView& view);
  void take_over(Link& link);
  void note_same_operands(dynamic::Event& event) const;
  bool note_event(uint64_t number);
  void bump_versions(const graph::Signature& signature);
  at::Tensor wrap_result(const at::Tensor& result, graph::Node* node, size_t index,
                         std::vector<std::pair<c10::StorageImpl*, c10::intrusive_ptr<c10::StorageImpl>>>& made,
                         bool* aliases);
  void run_natively(const graph::OpInfo& op, torch::jit::Stack* stack, bool in_graph = true);
  void run_small(const graph::OpInfo& op, torch::jit::Stack* stack, const graph::Signature& signature);
  bool run_watching_warnings(const graph::OpInfo& op, torch::jit::Stack* stack, bool hides_warnings);
  void note_resized_outputs(graph::Signature& signature, at::ArrayRef<c10::IValue> results) const;
  void lead_resizing(const graph::OpInfo& op, torch::jit::Stack* stack, graph::Node* node,
                     const graph::Signature& signature);
  bool run_and_learn(const graph::OpInfo& op, torch::jit::Stack* stack, graph::Node* node,
                     bool hides_warnings = false);
  void link_results(const graph::OpInfo& op, const torch::jit::Stack& results, const graph::Node& node);
  void link_result(const at::Tensor& result, const graph::Node& node, size_t output);
  void run_eagerly(const graph::OpInfo& op, torch::jit::Stack* stack, graph::Node* node, graph::Reason reason);
  void log_fallback(const graph::Node& node, graph::Reason reason);
  void settle_operands();
  void count_in_graph(graph::Node& node);
  void count_eager(graph::Node& node, graph::Reason reason);
  bool may_leave_blank(const graph::Node& node) const;
  void leave_blank(const at::Tensor& result);
  void claim(Link& link, const graph::Node& node, size_t output);

  // ---- waiting
  void hand_over_cores();
  void go_in_place();
  void give_up_workers();
  void share_loops();
  void keep_workers();
  void begin_stretch();
  void adapt_workers();
  void bound_signatures();
  void consume_until(uint64_t number);
  void wait_done(uint64_t number, bool interruptible);
  void wait_for_events(uint64_t number, bool interruptible);
  void wait_for_room();
  void log_wait(double seconds);
  void publish_all();
  void raise_failure();
  void track_unpublished(Link* link);

  Host& host_;
  std::unique_ptr<tracer::ProgramCounter> counter_;
  tracer::BackwardLocator backward_;
  GraphRunner runner_;
  AdaptiveSpin waits_{5e-6, 60e-6};  // of the leading thread, for values
  std::atomic<Phase> phase_{Phase::kIdle};  // written by the leading thread, read by any
  int depth_ = 0;
  std::atomic<int> native_depth_{0};
  // Kernels run on this thread while it lives: what they touch is no access of Python's.
  class NativeScope {
   public:
    explicit NativeScope(Session& session) : depth_(session.native_depth_) { set(depth() + 1); }
    ~NativeScope() { set(depth() - 1); }
    NativeScope(const NativeScope&) = delete;

   private:
    int depth() const { return depth_.load(std::memory_order_relaxed); }
    void set(int depth) { depth_.store(depth, std::memory_order_relaxed); }  // the leading thread's alone
    std::atomic<int>& depth_;
  };
  // From entry into the hook to its return, in the timeline.
  class AskScope {
   public:
    explicit AskScope(const Session& session, dynamic::SpanKind kind = dynamic::SpanKind::kAsk)
        : session_(session), span_(kind) {}
    ~AskScope() {
      span_.set_node(session_.cursor_);
      session_.prefetch_next();
    }
    AskScope(const AskScope&) = delete;

   private:
    const Session& session_;
    dynamic::SpanScope span_;
  };
  // Memory that the leading thread asks for itself. Where far more is in use than ever at rest, what was asked for is done
  // first, and lets go of what it holds: else the memory of all that is ahead would be there at once.
  class LeadingAllocation {
   public:
    explicit LeadingAllocation(Session& session) : session_(session) {}
    ~LeadingAllocation();
    LeadingAllocation(const LeadingAllocation&) = delete;

   private:
    Session& session_;
    const dynamic::PoolScope pool_;
  };
  // One op runs on this thread, in the middle of the hook.
  class NativeRun {
   public:
    NativeRun(Session& session, const graph::OpInfo& op, bool in_graph);
    NativeRun(const NativeRun&) = delete;

   private:
    const dynamic::ExcludedScope kernel_;
    const dynamic::SpanScope span_;
    const dynamic::AllocationScope allocations_;
    const NativeScope native_;
  };
  Function* function_ = nullptr;
  std::shared_ptr<Function> kept_;  // the same: a session may lose its last reference while it is open
  graph::Node* cursor_ = nullptr;
  bool yields_ = false;    // the runner's workers sleep between parallel loops
  struct Stretch {  // of Python in lockstep, of which WorkerHabit hears
    double begin = 0, waited_before = 0;
    uint64_t asked_before = 0, begin_ticks = 0, preparation_before = 0;
  };
  Stretch stretch_;
  bool scales_ = false;    // the op that the words are of multiplies by a number that may round
  bool in_place_ = false;  // events are executed by whoever waits, not behind
  bool at_once_ = false;   // in place, and nothing could be gained from looking at several: none ever waits
  std::mutex consumer_mutex_;
  bool synchronous_ = false;
  bool waits_for_errors_ = true;  // the function's, also when it has ended
  size_t large_pending_ = 0;   // bytes of large results asked for, until event large_asked_ is done
  uint64_t large_asked_ = 0;
  bool has_workers_ = false;       // this thread has made some on purpose
  bool may_have_workers_ = false;  // this thread has run kernels since it gave its workers up
  // A recorded call goes on in lockstep after so many known ops in a row. The first call of a function needs more: it may
  // end soon, and changing over costs more than the rest of it gains. A session is a call that goes on.
  static constexpr uint64_t kMinRejoinStreak = 32, kMaxRejoinStreak = 1 << 14, kFirstRejoinStreak = 1 << 14;
  uint64_t rejoin_streak_ = kMinRejoinStreak;
  uint64_t known_streak_ = 0;
  std::optional<uint64_t> rejoined_at_;  // by the function's count of ops; none: not in this call
  int unknown_ = 0;           // sizes that were waited for since
  std::shared_ptr<CallRecorder> recorder_;  // of this call; mostly none
  bool traced_in_this_call_ = false;
  uint64_t preparation_before_ = 0;  // ticks of the process before this call
  uint32_t nodes_before_ = 0;  // this call: the graph's op nodes
  uint64_t call_ = 0;
  uint64_t call_begin_ = 0;     // by the time stamp counter
  int threads_ = -1;            // kernels run with this many
  unsigned float_mode_ = 0;     // of the leading thread: whether denormals are flushed
  std::atomic<uint64_t> foreign_ops_{0};
  std::optional<bool> decided_;  // what the last plain bool(t) gave

  std::vector<OperandView> operands_;
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> nested_;  // of tensors inside of other arguments
  SharedNumbers numbers_;
  graph::SignatureWords words_;
  uint64_t hash_ = 0;
  c10::DispatchKeySet keys_;  // of the op at the hook: where it goes on
  Place place_;               // and where it stands
  std::vector<Link*> unpublished_;
};

// Whether two constants of a node are the same, bit for bit.
bool is_same_constant(const c10::IValue& a, const c10::IValue& b);

// Why a tensor cannot take part: nothing for a plain dense CPU tensor.
std::optional<graph::Reason> why_foreign(const at::Tensor& tensor);
// Why an op that is told to work on `device` cannot.
std::optional<graph::Reason> why_foreign(const graph::OpInfo& op, c10::Device device);

// Switches hooks of other threads: an op there waits for what was asked before.
void install_foreign_listener();

}  // namespace lockstep::coexec
