// The leading thread: every op that Python asks for is matched against the graph and handed to the graph runner, and
// Python goes on with a placeholder. What a pending event may not depend on or change is kept out by waiting here.
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/resize.h>
#include <c10/core/GradMode.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/Exception.h>
#include <ATen/Parallel.h>
#include <xmmintrin.h>

#include "coexec/call_recorder.h"
#include "coexec/event_log.h"
#include "coexec/session.h"
#include "dynamic/kernels/kernel_table.h"
#include "dynamic/kernels/map_order.h"
#include "dynamic/shapes/shape_inference.h"
#include "dynamic/shapes/shape_memo.h"
#include "dynamic/threads/thread_team.h"
#include "dynamic/vm/allocator.h"
#include "dynamic/vm/executor.h"
#include "dynamic/vm/packed_mask.h"

namespace lockstep::coexec {

using dynamic::Event;
using dynamic::Operand;
using graph::ArgKind;
using graph::Layout;
using graph::OpInfo;
using graph::OpKind;
using graph::Reason;
using graph::Signature;

namespace {

constexpr uint64_t kOpsOfALook = 1 << 14;  // of a session: at how many signatures there are
constexpr int kPatience = 8;          // sizes that nobody knows, each waited for; then the call is rather recorded
constexpr uint64_t kShortStay = 8;    // in lockstep, in streaks of known ops that led there

}  // namespace

void Session::on_op(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const OpInfo& info = graph::op_info(op);
  if (info.kind == OpKind::kComposite) return op.redispatchBoxed(keys.remove(tracer::kHookKey), stack);
  c10::impl::ExcludeDispatchKeyGuard no_hook(tracer::kHookKey);
  if (info.kind == OpKind::kPass) return op.redispatchBoxed(keys.remove(tracer::kHookKey), stack);
  const dynamic::TimedScope timed(dynamic::skeleton::hook);
  const AskScope asked(*this, info.kind == OpKind::kHost ? dynamic::SpanKind::kFetch : dynamic::SpanKind::kAsk);
  arrive(keys);
  go_on(info, stack);
}

void Session::box_and_go_on(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  listening_->go_on(graph::op_info(op), stack);
}

void Session::box_and_compute(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const OpInfo& info = graph::op_info(op);
  listening_->collect_operands(info, torch::jit::last(*stack, info.args.size()));
  listening_->lead_compute(info, stack, listening_->cursor_);
}

// An op that will not be left out: where it goes on, and where it stands in the program.
void Session::arrive(c10::DispatchKeySet keys) {
  keys_ = keys.remove(tracer::kHookKey);
  adopt_ambient_state();
  place_ = locate();
  if (++function_->counters.ops % kOpsOfALook == 0 && function_->is_session) bound_signatures();
}

void Session::go_on(const OpInfo& op, torch::jit::Stack* stack) {
  auto foreign = collect_operands(op, torch::jit::last(*stack, op.args.size()));
  if (op.draws) drain_others();  // they may draw from the same generator
  if (place_.unrecorded) {  // at a random place: not part of the program's way
    function_->counters.eager_ops++;
    function_->counters.reasons[static_cast<int>(Reason::interrupted)]++;
    drain();
    settle_operands();
    return run_natively(op, stack, /*in_graph=*/false);
  }
  if (!foreign && op.python_kernel) foreign = Reason::python_kernel;
  const Place place = place_;
  if (recorder_) {
    show_recorder(op, stack, place, foreign);
  } else {
    dispatch(op, stack, place, foreign);
  }
}

void Session::dispatch(const OpInfo& op, torch::jit::Stack* stack, const Place& place,
                       std::optional<Reason> foreign) {
  if (phase_ == Phase::kTracing) return trace_op(op, stack, place, foreign);
  lead_op(op, stack, place, foreign);
}

// A recorded call: nothing is pending when the recorder looks.
void Session::show_recorder(const OpInfo& op, torch::jit::Stack* stack, const Place& place,
                            std::optional<Reason> foreign) {
  drain();
  for (auto& view : operands_)
    if (view.link) wait_for(*view.link);
  recorder_->before(op, torch::jit::last(*stack, op.args.size()), foreign || op.is_foreign);
  try {
    dispatch(op, stack, place, foreign);
    drain();
  } catch (...) {
    recorder_->failed(*cursor_);
    throw;
  }
  recorder_->after(*cursor_, torch::jit::last(*stack, op.returns.size()));
}

Session::Place Session::locate() {
  const auto reading = counter_->read();
  Place place{reading.key, reading.unrecorded, -1, nullptr};
  if (reading.in_engine) {
    const auto backward = backward_.read(true, function_->serial);
    place.key = backward.in_backward ? backward.key : 0x2545f491;
    place.forward_node = backward.forward_node;
    place.autograd_name = backward.name;
  }
  return place;
}

// ---- looking at the arguments

namespace {

// What ops are cast to that a kernel asks for: autocast let its own pass as it is, and is still on.
std::optional<c10::ScalarType> autocast_within() {
  if (c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutocastCPU)) return std::nullopt;
  return at::autocast::get_autocast_dtype(at::kCPU);
}

}  // namespace

void Session::begin_words(const OpInfo& op) {
  words_.clear();
  scales_ = false;
  const auto& context = at::globalContext();
  const bool counts_versions = !c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::ADInplaceOrView);
  const auto autocast = autocast_within();
  const bool has_inference_tensors = std::any_of(operands_.begin(), operands_.end(),
                                                 [](const auto& view) { return view.tensor && view.tensor->is_inference(); });
  words_.push_back(static_cast<int64_t>(c10::get_default_dtype_as_scalartype()) | (counts_versions ? 256 : 0) |
                   (c10::GradMode::is_enabled() ? 512 : 0) | (has_inference_tensors ? 1024 : 0) |
                   (context.deterministicAlgorithms() ? 2048 : 0) | (context.deterministicAlgorithmsWarnOnly() ? 4096 : 0) |
                   (autocast ? 8192 : 0) | (autocast == at::kHalf ? 16384 : 0) |
                   (c10::WarningUtils::get_warnAlways() ? 64 : 0) | (c10::InferenceMode::is_enabled() ? 128 : 0));
  static_assert(static_cast<int>(c10::ScalarType::BFloat16) < 64);  // the default is a floating one
  static_assert(16384 < 1 << graph::kModeBits);
  if (op.asks_for_threads)
    words_.push_back(at::get_num_threads() * 2 + at::globalContext().userEnabledMkldnn());
}

void Session::build_words(const OpInfo& op, at::ArrayRef<c10::IValue> args) {
  begin_words(op);
  size_t next = 0;
  auto append_tensor = [&] {
    const auto& view = operands_[next++];
    static const at::Tensor undefined;
    graph::append_layout(words_, view.tensor ? *view.tensor : undefined);
  };
  for (size_t a = 0; a < args.size(); ++a) {
    const auto& arg = args[a];
    switch (op.args[a].kind) {
      case ArgKind::kTensor:
        append_tensor();
        break;
      case ArgKind::kTensorList:
      case ArgKind::kOptionalTensorList:
        if (arg.isNone()) {
          words_.push_back(-3);
          break;
        }
        words_.push_back(static_cast<int64_t>(arg.toListRef().size()));
        for (size_t n = arg.toListRef().size(); n > 0; --n) append_tensor();
        break;
      case ArgKind::kGenerator:
        words_.push_back(arg.isNone() ? 0 : 1);
        break;
      case ArgKind::kScalar:
        if (static_cast<int>(a) == op.alpha_argument) note_factor(arg);
        graph::append_scalar(words_, arg, op.layout_from_scalars);
        break;
      case ArgKind::kConstant:
        if (op.args[a].holds_numbers) {
          graph::append_scalars(words_, arg, op.layout_from_scalars);
        } else {
          graph::append_constant(words_, arg);
        }
        break;
      case ArgKind::kNestedTensors: break;  // runs eagerly
    }
  }
}

const Signature* Session::find_signature(const OpInfo& op, graph::Node* node) {
  if (node->signature && node->signature->words == words_) return node->signature;
  hash_ = graph::hash_words(words_);
  const auto* found = dynamic::ShapeMemo::instance().find(op, words_, hash_);
  return found && function_->may_know(*found) ? found : nullptr;
}

const Signature* Session::remember(std::unique_ptr<Signature> learned) {
  const auto* signature = dynamic::ShapeMemo::instance().insert(std::move(learned));
  function_->note_known(*signature);
  return signature;
}

// For sizes that are new to a node which ran with others.
const Signature* Session::infer_signature(const OpInfo& op, const graph::Node& node, at::ArrayRef<c10::IValue> args) {
  if (!node.signature) return nullptr;
  auto learned = create_signature(op);
  if (!dynamic::infer_results(*learned, *node.signature_like(*learned), args, node.varies)) return nullptr;
  return remember(std::move(learned));
}

std::unique_ptr<Signature> Session::create_signature(const OpInfo& op) {
  auto signature = std::make_unique<Signature>();
  signature->op = &op;
  signature->words = words_;
  signature->hash = hash_;  // of the search that did not find it
  signature->inputs.reserve(operands_.size());
  for (const auto& view : operands_)
    signature->inputs.push_back(view.tensor ? graph::layout_of(*view.tensor) : Layout{});
  signature->is_vacuous = std::any_of(signature->inputs.begin(), signature->inputs.end(), [](const Layout& input) {
    return input.is_defined() && input.numel() == 0;
  });
  return signature;
}

// ---- running on the leading thread

Session::NativeRun::NativeRun(Session& session, const OpInfo& op, bool in_graph)
    : kernel_(in_graph && session.phase_ != Phase::kTracing ? &session.cursor_->counts.native_ticks
                                                            : &session.cursor_->counts.eager_ticks),
      span_(dynamic::SpanKind::kNative, session.cursor_),
      allocations_(session.cursor_),
      native_(session) {
  const bool is_kernel = op.kind == OpKind::kHost || op.kind == OpKind::kEager || op.kind == OpKind::kCompute;
  session.may_have_workers_ |= is_kernel && at::get_num_threads() > 1;
  if (op.writes) session.runner_.note_access();
}

void Session::run_natively(const OpInfo& op, torch::jit::Stack* stack, bool in_graph) {
  const NativeRun run(*this, op, in_graph);
  if (function_->joins_steps && !has_recorder() && dynamic::try_run_joined(op, *stack)) return;
  op.handle.redispatchBoxed(keys_, stack);  // goes on below the hook: what is above has been done
}

namespace {

class WatchingHandler final : public c10::WarningHandler {
 public:
  explicit WatchingHandler(c10::WarningHandler* next) : next_(next) {}  // null: they go nowhere
  void process(const c10::Warning& warning) override {
    warned = true;
    if (next_) next_->process(warning);
  }
  bool warned = false;

 private:
  c10::WarningHandler* next_;
};

}  // namespace

bool Session::run_watching_warnings(const OpInfo& op, torch::jit::Stack* stack, bool hides_warnings) {
  WatchingHandler handler(hides_warnings ? nullptr : c10::WarningUtils::get_warning_handler());
  c10::WarningUtils::WarningHandlerGuard guard(&handler);
  run_natively(op, stack);
  return handler.warned;
}

void Session::count_in_graph(graph::Node& node) {
  function_->counters.graph_ops++;
  node.counts.in_graph++;
}

void Session::count_eager(graph::Node& node, Reason reason) {
  function_->counters.eager_ops++;
  function_->counters.reasons[static_cast<int>(reason)]++;
  node.counts.eager++;
  node.counts.reasons[static_cast<int>(reason)]++;
}

void Session::log_fallback(const graph::Node& node, Reason reason) {
  write_log(LogKind::k_fallback, function_->name,
            node.op->name + " at " + node.where + " ran eagerly: " + graph::reason_name(reason));
}

void Session::run_eagerly(const OpInfo& op, torch::jit::Stack* stack, graph::Node* node, Reason reason) {
  if (is_logged(LogKind::k_fallback)) log_fallback(*node, reason);
  count_eager(*node, reason);
  drain();
  settle_operands();
  run_natively(op, stack, /*in_graph=*/false);
}

// ---- matching

graph::Edge* Session::match(const OpInfo& op, uint64_t location) {
  auto& next = cursor_->next;
  for (size_t i = 0; i < next.size() && i < 8; ++i)
    if (next[i].to->location == location && next[i].to->op == &op) return &next[i];
  if (next.size() <= 8) return nullptr;
  graph::Node* node = function_->graph.find_node(location, &op);
  return node ? function_->graph.find_edge(cursor_, node) : nullptr;
}

void Session::note_traced() {
  if (!traced_in_this_call_) function_->counters.traced_calls++;
  traced_in_this_call_ = true;
}

void Session::diverge(const OpInfo& op) {
  auto& counters = function_->counters;
  counters.divergences++;
  note_traced();
  graph::Divergence divergence;
  divergence.where = cursor_->where.empty() ? "the start of the call" : cursor_->where;
  if (!cursor_->next.empty()) {
    const auto* expected = cursor_->next.front().to;
    divergence.expected = expected->op ? expected->op->name + " at " + expected->where : "the end of the call";
  }
  divergence.found = op.name + " at " + counter_->describe().where;
  divergence.call = counters.calls;
  if (is_logged(LogKind::k_diverge))
    write_log(LogKind::k_diverge, function_->name,
              "call " + std::to_string(divergence.call) + " took " + divergence.found + " where " +
                  (divergence.expected.empty() ? "nothing" : divergence.expected) + " was known, after " +
                  divergence.where);
  if (function_->divergences.size() >= Function::kKeptDivergences) function_->divergences.pop_front();
  function_->divergences.push_back(std::move(divergence));
  leave_lockstep();
}

// Until enough is known again.
void Session::leave_lockstep() {
  drain();
  runner_.rest();
  phase_ = Phase::kTracing;
  known_streak_ = 0;
}

// Changing to and fro costs: after a short stay it takes longer to come back.
void Session::lose_patience() {
  note_traced();
  leave_lockstep();
  if (!rejoined_at_) return;
  const bool was_short = function_->counters.ops - *rejoined_at_ < kShortStay * rejoin_streak_;
  rejoin_streak_ = was_short ? std::min(2 * rejoin_streak_, kMaxRejoinStreak) : kMinRejoinStreak;
}

namespace {

// resize_ to the size that the tensor has already.
bool is_idle_resize(const OpInfo& op, at::ArrayRef<c10::IValue> args) {
  if (op.name != "aten::resize_" || !args[0].isTensor() || !args[1].isIntList()) return false;
  const auto sizes = args[1].toIntVector();
  return args[0].toTensor().sizes() == at::IntArrayRef(sizes) && args[2].isNone();
}

}  // namespace

void Session::lead_op(const OpInfo& op, torch::jit::Stack* stack, const Place& place,
                      std::optional<Reason> foreign) {
  graph::Edge* edge = match(op, place.key);
  if (!edge) {
    diverge(op);
    return trace_op(op, stack, place, foreign);
  }
  graph::Node* node = edge->to;
  note_variation(*node, torch::jit::last(*stack, op.args.size()));
  advance(node, edge);
  backward_.note_forward(node, function_->serial);
  if (foreign) return run_eagerly(op, stack, node, *foreign);
  switch (op.kind) {
    case OpKind::kView:
    case OpKind::kMetadata:
    case OpKind::kHostMeta:
      count_in_graph(*node);
      return run_natively(op, stack);
    case OpKind::kAllocate: {
      count_in_graph(*node);
      const LeadingAllocation memory(*this);
      run_natively(op, stack);
      if (may_leave_blank(*node)) leave_blank(stack->back().toTensor());
      return;
    }
    case OpKind::kHost:
      count_in_graph(*node);
      note_fetch();
      if (op.writes || op.draws) {
        drain();
      }
      settle_operands();
      run_natively(op, stack);
      if (node->is_plain_bool && stack->back().isScalar()) decided_ = stack->back().toScalar().to<bool>();
      return;
    case OpKind::kEager:
      if (is_idle_resize(op, torch::jit::last(*stack, op.args.size()))) {
        count_in_graph(*node);
        return run_natively(op, stack);
      }
      return run_eagerly(op, stack, node, op.is_foreign ? Reason::custom_op : Reason::moves_storage);
    default:
      return lead_compute(op, stack, node);
  }
}

void Session::lead_compute(const OpInfo& op, torch::jit::Stack* stack, graph::Node* node, bool hides_warnings) {
  if (at_once_) return run_at_once(op, stack, node);
  const auto run_at_rest = [&] {
    settle_operands();
    const dynamic::PoolScope pool;
    run_and_learn(op, stack, node, hides_warnings);
  };
  const auto args = torch::jit::last(*stack, op.args.size());
  const bool depends_on_data = has_dynamic_shape(op);
  const bool is_resolved = (depends_on_data || op.puts_by_index) && resolve_masks(op, stack);
  const bool is_dynamic = depends_on_data && !is_resolved;
  if (is_dynamic && !op.writes && !op.draws && runs_on_one_thread()) {  // waits for what it reads, not for all that was asked
    count_in_graph(*node);
    const dynamic::OneThreadScope alone(op.moves_values);
    return run_at_rest();
  }
  build_words(op, args);
  const Signature* signature = is_dynamic ? nullptr : find_signature(op, node);
  if (!signature && !is_dynamic) signature = infer_signature(op, *node, args);
  // Versions of results, errors and warnings may be others than before: seen only at rest.
  const bool is_other_mode = !signature && !is_dynamic && node->signature && node->signature->words[0] != words_[0];
  const bool is_new_mode = is_other_mode && !node->knows_mode(words_[0]);  // once: no new sizes
  if (!signature && !depends_on_data && !is_resolved && !is_new_mode && ++unknown_ > kPatience) {
    lose_patience();
    if (is_logged(LogKind::k_fallback)) log_fallback(*node, Reason::new_sizes);
    count_eager(*node, Reason::new_sizes);
    return run_at_rest();
  }
  if (signature && signature->resizes && !signature->warns && op.returns_out)
    return lead_resizing(op, stack, node, *signature);
  if (signature && signature->special) return run_eagerly(op, stack, node, *signature->special);
  if (signature && (signature->warns || signature->resizes))
    return run_eagerly(op, stack, node, signature->warns ? Reason::warns : Reason::resizes_output);
  count_in_graph(*node);
  // So are sizes and versions of what is written.
  if (!signature && (op.writes || is_other_mode || (!is_dynamic && at::globalContext().deterministicAlgorithms()))) {
    drain();
    return run_at_rest();
  }
  if (signature) node->note_signature(signature);
  if (signature && signature->aliases_input) {
    settle_operands();
    return run_natively(op, stack);
  }
  if (signature && can_run_on_host(op, *signature)) return run_small(op, stack, *signature);
  if (!signature || synchronous_ || may_lack_memory(*signature) || must_wait(op, args, is_resolved)) {
    if (signature && !synchronous_ && can_run_at_once(op, *signature)) return run_small(op, stack, *signature);
    return ask_and_wait(op, stack, node, signature);
  }
  ask(op, stack, node, *signature);
}

// In place and strict: kernels one after the other as they were asked, and the leading thread waits for each anyway. So
// each runs from its node at once, on the arguments as they are: no event, no twin, nothing to promise.
void Session::run_at_once(const OpInfo& op, torch::jit::Stack* stack, graph::Node* node) {
  count_in_graph(*node);
  settle_operands();
  const dynamic::PoolScope pool;
  run_natively(op, stack);
}

namespace {

void set_layouts(at::ArrayRef<std::pair<at::Tensor, const Layout*>> tensors) {
  for (const auto& [tensor, layout] : tensors)
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(layout->sizes, layout->strides);
}

}  // namespace

// What the kernel would do first with an empty out= argument is done where the user's tensors are; then it fits.
void Session::lead_resizing(const OpInfo& op, torch::jit::Stack* stack, graph::Node* node, const Signature& signature) {
  const auto args = torch::jit::last(*stack, op.args.size());
  std::vector<std::pair<at::Tensor, const Layout*>> before, after;
  for (size_t i = 0; i < operands_.size(); ++i) {
    if (!signature.resized[i].is_defined()) continue;
    if (operands_[i].tensor->numel() > 0 || signature.resized[i].numel() == 0)
      return run_eagerly(op, stack, node, Reason::resizes_output);
    before.emplace_back(*operands_[i].tensor, &signature.inputs[i]);
    after.emplace_back(*operands_[i].tensor, &signature.resized[i]);
  }
  drain();  // what fails before this op leaves its arguments as they are
  settle_operands();
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    for (const auto& [tensor, layout] : after) tensor.resize_(layout->sizes);
  }
  set_layouts(after);
  collect_operands(op, args);
  build_words(op, args);
  const Signature* fitting = find_signature(op, node);
  if (fitting && (fitting->warns || fitting->resizes || fitting->special)) {  // the kernel goes another way about it
    set_layouts(before);
    return run_eagerly(op, stack, node, Reason::resizes_output);
  }
  if (fitting && op.value_check == graph::ValueCheck::kNone) return lead_compute(op, stack, node);
  try {
    lead_compute(op, stack, node, /*hides_warnings=*/true);  // of a size that eager would not have met
    drain();
  } catch (const c10::Error&) {  // perhaps the kernel looks at the values before it resizes: it is asked again
    set_layouts(before);
    run_natively(op, stack);
  }
}

// ---- asking

// A mask of dropout is to be drawn into it next, as far as the graph knows.
bool Session::may_leave_blank(const graph::Node& node) const {
  if (node.next.size() != 1 || !dynamic::draws_mask(*node.next[0].to->op)) return false;
  return function_->fuses && !function_->is_strict && function_->passes.has(dynamic::Pass::k_pack_masks) && !at_once_ &&
         !synchronous_ && !has_recorder() && !at::globalContext().deterministicAlgorithms();
}

// Not claimed: like all memory that was allocated here, it counts as a feed.
void Session::leave_blank(const at::Tensor& result) {
  if (why_foreign(result) || !dynamic::may_hold_mask(graph::layout_of(result))) return;
  auto* storage = result.storage().unsafeGetStorageImpl();
  if (link_of(storage) || !owns_plain_memory(storage)) return;
  Link* link = link_blank(storage);
  link->session = this;
  track_unpublished(link);
}

// A value of this call: made by an output of this node.
void Session::claim(Link& link, const graph::Node& node, size_t output) {
  link.session = this;
  link.producer = node.id;
  link.output = static_cast<uint16_t>(output);
  link.call = call_;
}

Operand Session::operand_of(OperandView& view) {
  Operand operand;
  if (!view.storage) return operand;
  const auto& tensor = *view.tensor;
  if (view.is_copied) {
    function_->counters.feeds++;
    if (view.link) publish(view.link);
    operand.storage = copy_storage(*view.storage);
    operand.offset = tensor.storage_offset();
    return operand;
  }
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number() && !view.is_written) {
    operand.direct = view.link ? tensor : numbers_.find(tensor);
    return operand;
  }
  if (!view.link) view.link = link_of(view.storage);  // an earlier operand may share the storage
  if (!view.link) {
    if (!owns_plain_memory(view.storage)) {  // the caller waits: nobody sees this reference
      operand.direct = at::Tensor(
          tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), true));
      return operand;
    }
    view.link = link_storage(view.storage);
  }
  auto& link = *view.link;
  if (link.session != this) take_over(link);
  if (link.call != call_) function_->counters.feeds++;
  arm(view.storage);
  operand.storage = link.twin;
  operand.offset = tensor.storage_offset();
  return operand;
}

// In the next place of the channel, which has room.
Event& Session::open_event(graph::Node* node, const Signature* signature) {
  begin_asking();
  wait_for_room();
  Event& event = runner_.channel().slot_to_fill();
  event.clear();
  event.node = node;
  event.signature = signature;
  event.is_strict = function_->is_strict || has_recorder();  // the replay has PyTorch's kernels only
  event.may_be_fused = function_->fuses && !has_recorder() && !at::globalContext().deterministicAlgorithms();
  event.passes = function_->passes;
  event.is_deterministic = function_->is_deterministic;
  event.rounds_products = function_->rounds_products;
  event.workers = event.is_strict || event.is_deterministic ? dynamic::Workers::kAsEager
                  : yields_                                 ? dynamic::Workers::kAsleep
                                                            : dynamic::Workers::kAwake;
  event.float_mode = float_mode_;
  event.grad_mode = c10::GradMode::is_enabled();
  event.autocast = autocast_within();
  return event;
}

void Session::fill_operands(Event& event) {
  for (auto& view : operands_) event.operands.push_back(operand_of(view));
  note_same_operands(event);
}

void Session::fill_event(Event& event, const OpInfo& op, at::ArrayRef<c10::IValue> args) {
  for (size_t a = 0; a < args.size(); ++a) {
    const auto kind = op.args[a].kind;
    if (kind == ArgKind::kTensor) {
      event.args.push_back(args[a].isNone() ? c10::IValue() : c10::IValue(true));
    } else if (kind == ArgKind::kTensorList || kind == ArgKind::kOptionalTensorList) {
      event.args.push_back(args[a].isNone() ? c10::IValue()
                                            : c10::IValue(static_cast<int64_t>(args[a].toListRef().size())));
    } else {
      event.args.push_back(args[a]);
    }
  }
  fill_operands(event);
}

// Kernels that ask whether two arguments are the same tensor (attention: one projection or three) take few.
void Session::note_same_operands(Event& event) const {
  constexpr size_t kCompared = 8;
  for (size_t i = 1; i < operands_.size() && i < kCompared; ++i)
    for (size_t j = 0; j < i; ++j) {
      const auto *here = operands_[i].tensor, *there = operands_[j].tensor;
      if (!operands_[i].storage || !there || !here->is_same(*there)) continue;
      event.operands[i].same_as = static_cast<int>(j);
      break;
    }
}

// Kernels that call other ops above the version counters (the foreach family) bump them; the runner's copies do not.
void Session::bump_versions(const Signature& signature) {
  for (size_t i = 0; i < signature.version_bumps.size(); ++i)
    for (int n = signature.version_bumps[i]; n > 0; --n)
      operands_[i].tensor->unsafeGetTensorImpl()->bump_version();
}

namespace {

void start_version(const at::Tensor& result, const Signature& signature, size_t output) {
  if (output >= signature.output_versions.size() || !result.defined()) return;
  for (int n = signature.output_versions[output]; n > 0; --n) result.unsafeGetTensorImpl()->bump_version();
}

// What comes back, in the place of the arguments: fresh tensors, and arguments that were written.
void return_results(const OpInfo& op, torch::jit::Stack* stack, at::ArrayRef<at::Tensor> fresh,
                    const std::vector<int>& list_sizes) {
  const auto args = torch::jit::last(*stack, op.args.size());
  c10::SmallVector<c10::IValue, 4> results;
  size_t next = 0, list = 0;
  for (const auto& slot : op.returns) {
    if (slot.alias_arg >= 0) {
      results.push_back(args[slot.alias_arg]);
    } else if (slot.is_list) {
      c10::List<at::Tensor> tensors;
      for (int n = list_sizes[list++]; n > 0; --n) tensors.push_back(fresh[next++]);
      results.emplace_back(std::move(tensors));
    } else {
      results.emplace_back(fresh[next++]);
    }
  }
  torch::jit::drop(*stack, op.args.size());
  for (auto& result : results) stack->push_back(std::move(result));
}

}  // namespace

void Session::ask(const OpInfo& op, torch::jit::Stack* stack, graph::Node* node, const Signature& signature) {
  Event& event = open_event(node, &signature);
  fill_event(event, op, torch::jit::last(*stack, op.args.size()));
  return_results(op, stack, push_event(event), signature.list_sizes);
}

// From here on the event is the runner's. What it will make is there at once, without data.
Session::Placeholders Session::push_event(Event& event) {
  auto& channel = runner_.channel();
  const Signature& signature = *event.signature;
  const uint64_t number = channel.asked() + 1;
  c10::SmallVector<c10::intrusive_ptr<c10::StorageImpl>, 4> storages;  // by group
  Placeholders placeholders;
  for (size_t i = 0; i < signature.outputs.size(); ++i) {
    const auto& layout = signature.outputs[i];
    if (!layout.is_defined()) {
      placeholders.emplace_back();
      continue;
    }
    if (static_cast<size_t>(layout.storage_group) == storages.size()) {
      auto twin = dynamic::create_empty_storage(layout.storage_bytes);
      event.outputs.push_back(twin);
      Link* link = nullptr;
      storages.push_back(create_pending_storage(layout.storage_bytes, std::move(twin), &link));
      claim(*link, *event.node, i);
      link->written = link->read = number;
      link->may_be_hidden = event.may_hide() && dynamic::is_map(layout);
      track_unpublished(link);
    }
    placeholders.push_back(create_placeholder(storages[layout.storage_group], layout));
    start_version(placeholders.back(), signature, i);
  }
  const bool is_noted = note_event(number);
  bump_versions(signature);
  channel.push();
  end_asking();
  if (!is_noted) wait_done(number, /*interruptible=*/false);  // nobody would know of it
  dynamic::prefetch_to_write(channel.slot_to_fill());
  return placeholders;
}

at::Tensor Session::wrap_result(
    const at::Tensor& result, graph::Node* node, size_t index,
    std::vector<std::pair<c10::StorageImpl*, c10::intrusive_ptr<c10::StorageImpl>>>& made, bool* aliases) {
  if (!result.defined()) return {};
  if (why_foreign(result)) return result;  // sparse, say: it has no storage to share
  auto* runner_storage = result.storage().unsafeGetStorageImpl();
  const auto layout = graph::layout_of(result);
  for (auto& [known, user] : made)
    if (known == runner_storage) return create_placeholder(user, layout);
  for (auto& view : operands_) {
    const bool same = view.storage && (view.storage == runner_storage ||
                                       (view.link && view.link->twin.get() == runner_storage));
    if (!same) continue;
    *aliases = true;
    return create_placeholder(
        c10::intrusive_ptr<c10::StorageImpl>::unsafe_reclaim_from_nonowning(view.storage), layout);
  }
  auto twin = c10::intrusive_ptr<c10::StorageImpl>::unsafe_reclaim_from_nonowning(runner_storage);
  Link* link = nullptr;
  auto user = create_pending_storage(layout.storage_bytes, std::move(twin), &link);
  claim(*link, *node, index);
  publish(link);
  made.emplace_back(runner_storage, user);
  return create_placeholder(std::move(user), layout);
}

void Session::ask_and_wait(const OpInfo& op, torch::jit::Stack* stack, graph::Node* node, const Signature* known) {
  std::unique_ptr<Signature> learned;
  if (!known) learned = create_signature(op);
  dynamic::Capture capture;
  Event& event = open_event(node, known ? known : learned.get());
  fill_event(event, op, torch::jit::last(*stack, op.args.size()));
  event.capture = &capture;
  event.is_strict |= !known;  // it shows what layouts eager gives
  const uint64_t number = runner_.channel().push();
  end_asking();
  note_event(number);
  wait_done(number, /*interruptible=*/false);
  for (const auto& warning : capture.warnings) c10::warn(warning);
  if (capture.error) std::rethrow_exception(capture.error);
  raise_failure();
  if (known) bump_versions(*known);

  if (learned) {
    fill_outputs(*learned, capture.results);
    learned->warns = !capture.warnings.empty();
    if (node->signature) learned->output_versions = node->signature->output_versions;  // seen with other sizes
  }
  const Signature& signature = known ? *known : *learned;
  std::vector<std::pair<c10::StorageImpl*, c10::intrusive_ptr<c10::StorageImpl>>> made;
  bool aliases = false;
  std::vector<int> list_sizes;
  auto fresh = dynamic::fresh_results(op, capture.results, &list_sizes);
  if (known) {
    const at::AutoDispatchBelowADInplaceOrView plain;
    const LeadingAllocation memory(*this);
    for (size_t i = 0; i < std::min(fresh.size(), known->outputs.size()); ++i) {
      fresh[i] = dynamic::as_promised(fresh[i], known->outputs[i]);
    }
  }
  for (size_t i = 0; i < fresh.size(); ++i) {
    fresh[i] = wrap_result(fresh[i], node, i, made, &aliases);
    start_version(fresh[i], signature, i);
  }
  if (learned && !has_dynamic_shape(op)) {
    learned->aliases_input = aliases;
    node->note_signature(remember(std::move(learned)));
  }
  return_results(op, stack, fresh, list_sizes);
}

}  // namespace lockstep::coexec
