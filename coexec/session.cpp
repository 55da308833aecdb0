// Calls, doors and waits. The other halves of Session: leading.cpp (asking), recording.cpp (tracing).
#include "coexec/session.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <xmmintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <thread>

#include "coexec/call_recorder.h"
#include "coexec/clock.h"
#include "coexec/event_log.h"
#include "dynamic/kernels/kernel_choice.h"
#include "dynamic/shapes/shape_memo.h"
#include "dynamic/threads/fork_guard.h"
#include "dynamic/threads/thread_team.h"
#include "dynamic/vm/allocator.h"
#include "dynamic/vm/executor.h"
#include "dynamic/vm/skeleton_clock.h"
#include "dynamic/vm/timeline.h"

namespace lockstep::coexec {

namespace {

constexpr size_t kWindow = 1 << 11;          // events in the channel
constexpr size_t kInPlaceWindow = 40;        // events that the leader leaves to itself at most
constexpr size_t kInPlaceRest = 8;           // of them, those that stay: what it asked for last, it still holds
constexpr size_t kMaxSignatures = 1 << 18;   // remembered by the process
constexpr double kNotablePart = 0.03;        // of a time, of what will not come again
constexpr int64_t kRestingRunners = 2;       // threads that stay for whoever borrows a session next
const AdaptiveSpin kBrief(5e-6, 5e-6);
constexpr uint64_t kEventsOfALook = 1 << 12;  // in a call that goes on: so often WorkerHabit hears of it

std::atomic<uint32_t> next_serial{1};
std::atomic<uint64_t> next_call{1};
Host* the_host = nullptr;

struct Sessions {
  std::mutex mutex;
  std::vector<Session*> all;
  std::vector<Session*> free;
};
Sessions& sessions() {
  static auto* instance = [] {
    auto* made = new Sessions;
    dynamic::hold_across_fork(dynamic::ForkRank::kSessions, made->mutex);
    dynamic::hold_across_fork(dynamic::ForkRank::kLinks, links_lock);
    dynamic::hold_across_fork(dynamic::ForkRank::kOps, graph::op_registry_mutex());
    dynamic::hold_across_fork(dynamic::ForkRank::kNodes, graph::TraceGraph::nodes_mutex());
    return made;
  }();
  return *instance;
}

// A thread borrows a session and gives it back when it ends.
struct Borrowed {
  Session* session = nullptr;
  ~Borrowed() {
    if (!session || session->is_active()) return;  // what nobody has closed is nobody else's
    auto& known = sessions();
    std::unique_lock lock(known.mutex);
    const auto resting = std::count_if(known.free.begin(), known.free.end(), [](Session* other) {
      return other->runner().is_running();
    });
    if (resting < kRestingRunners) {
      known.free.push_back(session);
      return;
    }
    lock.unlock();
    session->runner().stop();
    lock.lock();
    known.free.insert(known.free.begin(), session);  // the others are borrowed first
  }
};
thread_local Borrowed t_session;

// Whether so much of a time, in ticks, went into what will not come again that the rest says little.
bool is_notable(uint64_t preparation, uint64_t time) {
  return static_cast<double>(preparation) > kNotablePart * static_cast<double>(time);
}

uint64_t preparation_so_far() { return dynamic::preparation_ticks.load(std::memory_order_relaxed); }

}  // namespace

Function::Function() : serial(next_serial.fetch_add(1)) {}

bool Function::is_pointless(const Counters& before, uint64_t call_ticks) {
  constexpr double kWorthwhile = 0.05;
  if (2 * (counters.eager_ops - before.eager_ops) < counters.ops - before.ops || counters.ops == before.ops) return false;
  double ticks = 0;
  for (const auto& node : graph.nodes()) ticks += node->counts.kernel_ticks + node->counts.native_ticks;
  const double spent = ticks - std::exchange(graph_ticks_before, ticks);
  return spent < kWorthwhile * static_cast<double>(call_ticks);
}

void Function::forget_stale_signatures() {
  const uint64_t epoch = dynamic::ShapeMemo::instance().epoch();
  if (epoch == memo_epoch) return;
  for (const auto& node : graph.nodes()) node->forget_signatures();
  known.clear();
  memo_epoch = epoch;
}

void Session::set_host(Host& host) { the_host = &host; }
Host& Session::host() { return *the_host; }

Session& Session::of_this_thread() {
  if (!t_session.session) {
    auto& known = sessions();
    std::lock_guard lock(known.mutex);
    if (!known.free.empty()) {
      t_session.session = known.free.back();
      known.free.pop_back();
      t_session.session->has_workers_ = false;  // they were another thread's
      t_session.session->backward_.reset();     // so were the numbers of autograd's nodes
    } else {
      t_session.session = new Session(*the_host);
      known.all.push_back(t_session.session);
      has_several = known.all.size() > 1;
    }
  }
  return *t_session.session;
}

Session* Session::active_on_this_thread() {
  return t_session.session && t_session.session->is_active() ? t_session.session : nullptr;
}

std::vector<Session*> Session::all() {
  std::lock_guard lock(sessions().mutex);
  return sessions().all;
}

void Session::stay_in_place() {
  wait_done(runner_.channel().asked(), /*interruptible=*/false);
  runner_.stop();
  runner_.set_in_place(in_place_ = true);
}

namespace {

thread_local bool t_forks = false;  // its own hooks may ask meanwhile
bool forks_beside_threads = false;
// In a child, for ever. What another thread held at the fork stays locked there, a lock of the BLAS among them that each
// thread takes as it ends: so no thread begins that would have to end.
std::atomic<bool> has_locks_of_others{false};

// What each thread of the process did before comes before what this one does next, and the other way round.
void order_all_threads() {
  syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0);
  syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
}

}  // namespace

// Nothing is pending in the child, and its only thread knows no workers that do not exist there.
void Session::prepare_fork(bool beside_threads) {
  forks_beside_threads = beside_threads;
  t_forks = true;
  forks++;
  order_all_threads();
  for (Session* session : all()) {
    if (!session->is_active()) continue;
    if (session != t_session.session) {
      forks_beside_threads = true;
      session->wait_until_asked();
    }
    session->drain_from_other_thread();
  }
  dynamic::release_thread_team();  // also of a thread that never made a call: its eager ops had one
  if (t_session.session) t_session.session->has_workers_ = false;
}

void Session::end_fork() {
  t_forks = false;
  forks--;
}

// By another thread: until the leading one has asked for what it is about to, and does not begin with more.
void Session::wait_until_asked() {
  constexpr double kMostSeconds = 1;  // an error on the way may have left it so
  struct Wait {
    const std::atomic<bool>& is_asking;
    double end;
  } wait{is_asking_, now_seconds() + kMostSeconds};
  host_.wait_released_uninterrupted(
      [](void* argument) {
        const auto& w = *static_cast<Wait*>(argument);
        std::this_thread::yield();
        return !w.is_asking.load(std::memory_order_acquire) || now_seconds() > w.end;
      },
      &wait);
}

// The leading thread's side.
void Session::wait_for_fork() {
  if (t_forks) return;
  end_asking();
  host_.wait_released_uninterrupted(
      [](void*) {
        std::this_thread::yield();
        return forks.load(std::memory_order_acquire) == 0;
      },
      nullptr);
  begin_asking();
}

// The child goes on eagerly: its session, drained before the fork, is forgotten with its runner.
void Session::abandon_all() {
  if (forks_beside_threads) has_locks_of_others = true;
  t_forks = false;
  forks = 0;
  tracer::listen(nullptr);
  listening_ = nullptr;
  auto& known = sessions();
  for (Session* session : known.all) {
    session->phase_ = Phase::kIdle;
    session->depth_ = 0;
    session->runner_.channel().abandon();
  }
  dynamic::renew_hidden_storage_lock();
  known.all.clear();
  known.free.clear();
  has_several = false;
  t_session.session = nullptr;
}

Session::Session(Host& host) : host_(host), counter_(host.create_program_counter()), runner_(kWindow) {
  backward_.reset();
}

// ---- calls

void Session::begin(Function& function, Way way) {
  if (depth_++ > 0) return;
  runner_.note_access();
  call_begin_ = __rdtsc();
  in_place_ = way == Way::kInPlace || has_locks_of_others.load(std::memory_order_relaxed);
  yields_ = way == Way::kYielding && !in_place_;
  runner_.set_in_place(in_place_);
  at_once_ = in_place_ && function.is_strict && !function.next_recorder &&
             !dynamic::skip_kernels.load(std::memory_order_relaxed);
  function_ = &function;
  waits_for_errors_ = function.waits_for_errors;
  kept_ = function.weak_from_this().lock();
  function.counters.calls++;
  call_ = next_call.fetch_add(1, std::memory_order_relaxed);
  nodes_before_ = static_cast<uint32_t>(function.graph.op_node_count());
  cursor_ = function.graph.entry();
  cursor_->counts.asked++;
  decided_.reset();
  known_streak_ = 0;
  rejoin_streak_ = function.is_session || !cursor_->next.empty() ? kMinRejoinStreak : kFirstRejoinStreak;
  rejoined_at_.reset();
  unknown_ = 0;
  traced_in_this_call_ = false;
  preparation_before_ = preparation_so_far();
  {
    const std::lock_guard lock(sessions().mutex);  // signatures are forgotten under it, while nobody else is active
    function.forget_stale_signatures();
    phase_ = cursor_->next.empty() ? Phase::kTracing : Phase::kCoExecuting;
  }
  if (phase_ == Phase::kTracing) {
    traced_in_this_call_ = true;
    function.counters.traced_calls++;
    runner_.rest();
  } else {
    hand_over_cores();
  }
  if (is_logged(LogKind::k_call))
    write_log(LogKind::k_call, function.name,
              "call " + std::to_string(function.counters.calls) +
                  (phase_ == Phase::kTracing ? " is recorded" : " runs in lockstep"));
  recorder_ = std::exchange(function.next_recorder, nullptr);
  if (recorder_) recorder_->begin();
  host_.call_begins();
  listen(true);
}

void Session::listen(bool on) {
  listening_ = on ? this : nullptr;
  tracer::listen(listening_);
}

bool Session::was_prepared() const { return is_notable(preparation_so_far() - preparation_before_, __rdtsc() - call_begin_); }

// Kernels run on one thread from now on, and only that one has workers.
void Session::hand_over_cores() {
  if (!in_place_ && !runner_.try_start()) go_in_place();
  if (in_place_) return runner_.rest();
  share_loops();
  if (yields_) {
    keep_workers();
  } else {
    may_have_workers_ = true;  // from what ran here before
    give_up_workers();
  }
  begin_stretch();
}

// The system has no thread for the runner: so this one executes, for the rest of the call.
void Session::go_in_place() {
  yields_ = false;
  runner_.set_in_place(in_place_ = true);
  if (is_logged(LogKind::k_call))
    write_log(LogKind::k_call, function_->name, "the system refuses another thread: kernels run in place");
}

// Where kernels have a thread for each of the two that a session has, the one that waits is the other's worker.
void Session::share_loops() { runner_.set_helped(yields_ && at::get_num_threads() == dynamic::WorkBoard::kThreads); }

// Ambient state: what kernels read when they run. Most of it changes behind a door that drains (python/lockstep/doors.py);
// what belongs to the thread is handed on.
void Session::adopt_ambient_state() {
  float_mode_ = _mm_getcsr() & dynamic::kFloatModeBits;
  const int threads = at::get_num_threads();
  if (threads == threads_) return;
  wait_done(runner_.channel().asked(), /*interruptible=*/false);
  threads_ = threads;
  runner_.set_thread_count(threads);
  share_loops();
}

// As long as this thread has workers, too, the runner's yield their core (dynamic/threads/thread_team.h).
void Session::keep_workers() {
  if (!has_workers_) dynamic::make_thread_team();
  has_workers_ = true;
}

// Before the graph runner goes on: a kernel that ran here meanwhile may have made a team again.
void Session::give_up_workers() {
  if (!may_have_workers_ || in_place_ || yields_) return;
  dynamic::release_thread_team();
  may_have_workers_ = has_workers_ = false;
}

void Session::begin_stretch() {
  if (function_->adapts_workers)
    stretch_ = {now_seconds(), function_->counters.wait_seconds, runner_.channel().asked(), __rdtsc(), preparation_so_far()};
}

// At the end of a call, and now and then in a long one.
void Session::adapt_workers() {
  if (!function_->adapts_workers || in_place_ || phase_ != Phase::kCoExecuting) return;
  auto& habit = function_->worker_habit;
  const Stretch ended = stretch_;
  begin_stretch();
  const bool is_typical =
      !is_notable(stretch_.preparation_before - ended.preparation_before, stretch_.begin_ticks - ended.begin_ticks);
  if (!is_typical || !habit.note(stretch_.begin - ended.begin, stretch_.waited_before - ended.waited_before,
                                 stretch_.asked_before - ended.asked_before))
    return;
  yields_ = habit.sleeps();
  hand_over_cores();
  if (!habit.is_trying() && is_logged(LogKind::k_auto)) {
    char text[160];
    std::snprintf(text, sizeof text, "workers %s between parallel loops: sleeping gives %.2f times as many ops",
                  yields_ ? "sleep" : "stay awake", habit.gain());
    write_log(LogKind::k_auto, function_->name, text);
  }
}

// Not while somebody else's call may know one: it cannot begin meanwhile.
void Session::forget_signatures(size_t most, const Session* leader) {
  const std::lock_guard lock(sessions().mutex);
  const auto is_other = [leader](const Session* session) { return session != leader && session->is_active(); };
  if (std::ranges::none_of(sessions().all, is_other)) dynamic::ShapeMemo::instance().forget_if_large(most);
}

// Between calls signatures are forgotten; a session is one that goes on.
void Session::bound_signatures() {
  if (recorder_ || dynamic::ShapeMemo::instance().count() <= kMaxSignatures) return;
  drain();
  forget_signatures(kMaxSignatures, this);
  function_->forget_stale_signatures();
}

void Session::end_quietly() {
  try {
    end();
  } catch (...) {
  }
}

void Session::end() {
  if (depth_ == 0) return;  // it began before a fork, of which this is the child
  if (--depth_ > 0) return;
  listen(false);
  wait_done(runner_.channel().asked(), /*interruptible=*/false);
  adapt_workers();
  publish_all();
  if (auto* exit = function_->graph.exit(); !function_->graph.find_edge(cursor_, exit))
    function_->graph.add_edge(cursor_, exit);
  if (traced_in_this_call_ && is_logged(LogKind::k_trace)) {
    const size_t nodes = function_->graph.op_node_count();
    write_log(LogKind::k_trace, function_->name,
              "call " + std::to_string(function_->counters.calls) + " was recorded: " +
                  std::to_string(nodes > nodes_before_ ? nodes - nodes_before_ : 0) + " new nodes, " +
                  std::to_string(nodes) + " in all");
  }
  const auto recorder = std::exchange(recorder_, nullptr);
  const uint64_t foreign = foreign_ops_.exchange(0);
  function_->counters.reasons[static_cast<int>(graph::Reason::foreign_thread)] += foreign;
  function_->counters.ops += foreign;
  function_->counters.eager_ops += foreign;
  phase_ = Phase::kIdle;
  if (dynamic::timeline_is_on.load(std::memory_order_relaxed))
    dynamic::add_span({dynamic::SpanKind::kCall, call_begin_, __rdtsc(), function_->graph.entry(), nullptr});
  const auto& graph = std::exchange(function_, nullptr)->graph;
  const auto kept = std::move(kept_);  // until the end of this
  if (recorder) recorder->finish(graph);
  forget_signatures(kMaxSignatures, this);
  raise_failure();
}

void Session::raise_failure() {
  if (!runner_.has_failed()) return;
  wait_done(runner_.channel().asked(), /*interruptible=*/false);  // until then the failure poisons what is pending
  publish_all();
  const auto failure = runner_.take_failure();
  if (!waits_for_errors_) std::rethrow_exception(failure);  // the message is eager's
  try {
    std::rethrow_exception(failure);
  } catch (c10::Error& error) {
    error.add_context("computed by Lockstep after Python had gone on: " + runner_.failed_event());
    throw;
  }
}

// ---- doors

void Session::drain() {
  const uint64_t asked = runner_.channel().asked();
  wait_done(asked, /*interruptible=*/true);
  publish_all();
  raise_failure();
}

void Session::wait_for(Link& link) {
  const auto wait_until = [&link](const uint64_t& number) {
    if (link.session && !link.session->runner_.channel().is_done(number))
      link.session->wait_done(number, /*interruptible=*/true);
  };
  wait_until(link.written);
  if (link.is_perhaps_hidden()) wait_until(link.read);
  publish(&link);
  raise_failure();
}

void Session::wait_for_readers(Link& link) {
  if (link.session && !link.session->runner_.channel().is_done(link.read))
    link.session->wait_done(link.read, /*interruptible=*/true);
  wait_for(link);
}

void Session::note_fetch() {
  function_->counters.fetches++;
  cursor_->counts.fetched++;
}

void Session::on_raw_access(Link* link) {
  Session* leader = active_on_this_thread();
  if (link->session) link->session->wait_done(link->read, /*interruptible=*/false);
  publish(link);
  if (leader && leader == link->session && !leader->is_in_native()) ReadingScope::note(expose(*link));
}

// From a foreign thread: only what was asked when it looked.
void Session::drain_from_other_thread() {
  const uint64_t asked = runner_.channel().asked();
  wait_done(asked, /*interruptible=*/false);
  std::lock_guard lock(links_lock);
  std::vector<Link*> ready;
  for (Link* link : unpublished_)
    if (link->written <= asked) ready.push_back(link);
  for (Link* link : ready) publish(link);
}

std::vector<Session*> Session::drain_others() {
  auto sessions = all();
  std::erase_if(sessions, [](const Session* session) { return !session->is_active() || session == t_session.session; });
  for (Session* session : sessions) session->drain_from_other_thread();
  return sessions;
}

void Session::forget_locked(Link* link) {
  if (link->list_index >= unpublished_.size() || unpublished_[link->list_index] != link) return;
  unpublished_[link->list_index] = unpublished_.back();
  unpublished_[link->list_index]->list_index = link->list_index;
  unpublished_.pop_back();
}

void Session::track_unpublished(Link* link) {
  std::lock_guard lock(links_lock);
  link->list_index = unpublished_.size();
  unpublished_.push_back(link);
}

void Session::publish_all() {
  std::lock_guard lock(links_lock);
  for (size_t i = unpublished_.size(); i > 0; --i) publish(unpublished_[i - 1]);
}

Session::LeadingAllocation::~LeadingAllocation() {
  if (!pool_.is_far_ahead()) return;
  session_.wait_done(session_.runner_.channel().asked(), /*interruptible=*/false);
  dynamic::Pool::instance().note_rest();
}

// ---- waiting

// In place: whoever waits executes. The leader mostly; a foreign thread where it needs a value that is not there yet.
void Session::consume_until(uint64_t number) {
  std::lock_guard lock(consumer_mutex_);
  auto& channel = runner_.channel();
  if (channel.is_done(number)) return;
  std::optional<NativeScope> native;
  if (active_on_this_thread() == this) native.emplace(*this);  // others' accesses are looked at by themselves
  const GraphRunner::KernelScope kernels;
  while (!channel.is_done(number)) runner_.run_front();
}

// Whoever waits may go on to write.
void Session::wait_done(uint64_t number, bool interruptible) {
  wait_for_events(number, interruptible);
  runner_.note_access();
}

void Session::wait_for_events(uint64_t number, bool interruptible) {
  auto& channel = runner_.channel();
  number = std::min(number, channel.asked());  // a tensor shared by threads may bring another session's number
  if (channel.is_done(number)) return;
  if (runner_.is_this_thread())  // a kernel was given memory of the user's in place of the runner's: no wait would end
    throw std::logic_error("lockstep: the graph runner would wait for itself; please report this program");
  const dynamic::ExcludedScope waiting;
  const bool leads = t_session.session == this && function_;
  const dynamic::SpanScope span(dynamic::SpanKind::kWait, leads ? cursor_ : nullptr);
  struct Wait {
    Session& session;
    uint64_t number;
  } wait{*this, number};
  if (in_place_) {
    host_.wait_released_uninterrupted(
        [](void* argument) {
          auto* w = static_cast<Wait*>(argument);
          w->session.consume_until(w->number);
          return true;
        },
        &wait);
    return;
  }
  if (leads) give_up_workers();
  const double begin = now_seconds();
  AdaptiveSpin others = kBrief;
  auto& awake = leads ? waits_ : others;
  if (!awake.wait([&] { return channel.is_done(number); })) {
    auto poll = [](void* argument) {
      auto* w = static_cast<Wait*>(argument);
      auto& runner = w->session.runner_;
      if (runner.has_stopped()) w->session.consume_until(w->number);  // the process is about to exit
      return runner.wait_done(w->number);
    };
    if (interruptible) {
      host_.wait_released(poll, &wait);
    } else {
      host_.wait_released_uninterrupted(poll, &wait);
    }
    awake.woke();
  }
  if (leads) {  // counters belong to the leading thread
    function_->counters.waits++;
    const double waited = now_seconds() - begin;
    function_->counters.wait_seconds += waited;
    if (cursor_) cursor_->counts.wait_seconds += waited;
    if (is_logged(LogKind::k_wait)) log_wait(waited);
  }
}

void Session::log_wait(double seconds) {
  char text[64];
  std::snprintf(text, sizeof text, "waited %.3f ms after ", 1e3 * seconds);
  const bool has_place = cursor_ && cursor_->op;
  write_log(LogKind::k_wait, function_->name,
            text + (has_place ? cursor_->op->name + " at " + cursor_->where : std::string("the start of the call")));
}

void Session::wait_for_room() {
  give_up_workers();
  auto& channel = runner_.channel();
  if (channel.asked() % kEventsOfALook == 0) adapt_workers();
  if (in_place_) {
    if (channel.asked() - channel.done() >= kInPlaceWindow)
      wait_for_events(channel.asked() - kInPlaceRest, /*interruptible=*/false);
  } else if (channel.is_full()) {
    wait_for_events(channel.asked() - kWindow / 2, /*interruptible=*/true);
  }
}

// ---- other threads

namespace {

class ForeignListener final : public tracer::OpSink {
 public:
  void on_op(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) override {
    c10::impl::ExcludeDispatchKeyGuard no_hook(tracer::kHookKey);
    const auto sessions = Session::drain_others();
    for (Session* session : sessions) session->note_foreign_op();
    op.redispatchBoxed(keys.remove(tracer::kHookKey), stack);  // below the hook, as everywhere
  }
};

}  // namespace

void install_foreign_listener() {
  static auto* listener = new ForeignListener;
  tracer::set_foreign_listener(listener);
}

}  // namespace lockstep::coexec
