// Tracing: ops run on the leading thread, as eager would run them, and what they are is written into the graph.
#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <bit>

#include "coexec/event_log.h"
#include "coexec/session.h"
#include "dynamic/kernels/kernel_table.h"
#include "dynamic/shapes/shape_memo.h"
#include "dynamic/vm/allocator.h"
#include "dynamic/vm/cache_line.h"
#include "dynamic/vm/executor.h"

namespace lockstep::coexec {

using graph::OpInfo;
using graph::OpKind;
using graph::Reason;

bool is_same_constant(const c10::IValue& a, const c10::IValue& b) {
  if (a.isInt()) return b.isInt() && a.toInt() == b.toInt();
  if (a.isDouble()) return b.isDouble() && std::bit_cast<int64_t>(a.toDouble()) == std::bit_cast<int64_t>(b.toDouble());
  if (a.isBool()) return b.isBool() && a.toBool() == b.toBool();
  if (a.isNone()) return b.isNone();
  if (!a.isList()) return a == b;
  if (!b.isList()) return false;
  const auto x = a.toListRef(), y = b.toListRef();
  return std::equal(x.begin(), x.end(), y.begin(), y.end(), is_same_constant);
}

namespace {

// A storage, packed weights, a group of processes: they do not live as long as the graph.
bool holds_objects(const c10::IValue& value) {
  if (value.isList()) return std::ranges::any_of(value.toListRef(), holds_objects);
  return value.isStorage() || value.isObject() || value.isCapsule() || value.isPyObject() || value.isStream();
}

}  // namespace

void Session::fill_outputs(graph::Signature& signature, const torch::jit::Stack& results) {
  const auto fresh = dynamic::fresh_results(*signature.op, results, &signature.list_sizes);
  std::vector<const c10::StorageImpl*> groups;
  for (const auto& tensor : fresh) {
    graph::Layout layout;
    if (auto reason = tensor.defined() ? why_foreign(tensor) : std::nullopt) {
      signature.special = reason;
    } else if (tensor.defined() && tensor.has_storage()) {
      layout = graph::layout_of(tensor);
      const auto* storage = tensor.storage().unsafeGetStorageImpl();
      size_t group = 0;
      while (group < groups.size() && groups[group] != storage) ++group;
      if (group == groups.size()) groups.push_back(storage);
      layout.storage_group = static_cast<int>(group);
      for (const auto& view : operands_) signature.aliases_input |= view.storage == storage;
    }
    signature.outputs.push_back(std::move(layout));
  }
}

graph::Node* Session::record(const OpInfo& op, at::ArrayRef<c10::IValue> args, const Place& place, bool* known) {
  auto& graph = function_->graph;
  graph::Edge* edge = match(op, place.key);
  graph::Node* node = edge ? edge->to : graph.find_node(place.key, &op);
  *known = node != nullptr;
  if (!node) {
    if (graph.op_node_count() >= function_->max_nodes) {
      wait_done(runner_.channel().asked(), /*interruptible=*/false);  // pending events name their nodes
      graph.forget_oldest(cursor_);
    }
    node = graph.add_node(place.key, &op);
    const auto details = counter_->describe();
    node->where = details.where;
    node->api_call = details.api_call;
    node->is_plain_bool = details.is_plain_bool && op.kind == OpKind::kHost;
    node->forward_node = place.forward_node;
    if (place.autograd_name) node->autograd_node = place.autograd_name();
    node->constants.resize(args.size());
    node->varies.assign(args.size(), false);
    for (size_t a = 0; a < args.size(); ++a) {
      if (!is_constant(op.args[a].kind)) continue;
      node->varies[a] = holds_objects(args[a]);
      if (!node->varies[a]) node->constants[a] = args[a];
    }
    note_sources(*node);
  } else {
    note_variation(*node, args);
  }
  if (!edge) edge = graph.find_edge(cursor_, node);
  if (!edge) {
    *known = false;
    edge = &graph.add_edge(cursor_, node);
  }
  advance(node, edge);
  return node;
}

void Session::note_sources(graph::Node& node) {
  for (size_t i = node.operands.size(); i < operands_.size(); ++i) node.operands.push_back(source_of(operands_[i]));
}

// Where an operand comes from. Values of this call that ran at once cannot be told from the user's: unknown.
graph::OperandSource Session::source_of(const OperandView& view) const {
  using Kind = graph::OperandSource::Kind;
  graph::OperandSource source;
  if (is_of_this_call(view)) {
    source.kind = Kind::kNode;
    source.node = view.link->producer;
    source.output = view.link->output;
  } else if (view.storage && (!at_once_ || function_->origins.contains(view.storage))) {
    source.kind = Kind::kFeed;
    source.origin = origin_of(view);
    source.storage = view.storage;
  }
  return source;
}

const std::string& Session::origin_of(const OperandView& view) const {
  static const std::string unknown = "?";
  const auto named = function_->origins.find(view.storage);
  return named == function_->origins.end() ? unknown : named->second;
}

bool Session::is_of_this_call(const OperandView& view) const {
  return view.link && view.link->session == this && view.link->call == call_;
}

// Whether the operand comes from where the node says.
bool Session::has_source(const OperandView& view, graph::OperandSource& source) const {
  using Kind = graph::OperandSource::Kind;
  if (is_of_this_call(view))
    return source.kind == Kind::kNode && source.node == view.link->producer && source.output == view.link->output;
  if (!view.storage) return source.kind == Kind::kUnknown;
  if (source.kind != Kind::kFeed) return false;
  if (source.storage == view.storage) return true;
  if (source.origin != origin_of(view)) return false;
  source.storage = view.storage;
  return true;
}

// A node passed again: numbers and operands that are not what they were before vary.
void Session::note_variation(graph::Node& node, at::ArrayRef<c10::IValue> args) {
  for (size_t a = 0; a < args.size(); ++a) {
    if (!is_constant(node.op->args[a].kind)) continue;
    if (!node.varies[a] && !is_same_constant(node.constants[a], args[a])) node.varies[a] = true;
  }
  note_operand_variation(node);
}

void Session::note_operand_variation(graph::Node& node) {
  using Kind = graph::OperandSource::Kind;
  if (at_once_) return;
  const size_t known = std::min(node.operands.size(), operands_.size());
  for (size_t i = 0; i < known; ++i) {
    auto& source = node.operands[i];
    if (source.kind == Kind::kVaries || has_source(operands_[i], source)) continue;
    if (source.kind == Kind::kUnknown) {
      source = source_of(operands_[i]);
      continue;
    }
    source = {};
    source.kind = Kind::kVaries;
  }
  if (operands_.size() > known) note_sources(node);
}

void Session::advance(graph::Node* node, graph::Edge* edge) {
  edge->count++;
  if (decided_) (*decided_ ? edge->after_true : edge->after_false) = true;
  decided_.reset();
  if (edge != &cursor_->next.front() && edge->count > cursor_->next.front().count)
    std::swap(*edge, cursor_->next.front());
  cursor_ = node;
  node->counts.asked++;
  node->last_call = call_;
  node->last_used = ++function_->clock;
}

// While Python goes on to the next op, what will be looked at then comes from memory: kernels have driven it out.
void Session::prefetch_next() const {
  if (!function_ || cursor_->next.empty()) return;  // closed by what the op called
  const auto* node = cursor_->next.front().to;
  __builtin_prefetch(&node->op);  // the runner reads it, too
  dynamic::prefetch_to_write(&node->next);
  dynamic::prefetch_to_write(&node->varies);
  dynamic::prefetch_to_write(&node->counts);
}

// An out= argument that did not fit was given another size.
void Session::note_resized_outputs(graph::Signature& signature, at::ArrayRef<c10::IValue> results) const {
  for (size_t i = 0; i < operands_.size(); ++i) {
    if (!operands_[i].is_written) continue;
    for (size_t r = 0; r < results.size(); ++r) {
      if (signature.op->returns[r].alias_arg != operands_[i].argument || !results[r].isTensor()) continue;
      auto now = graph::layout_of(results[r].toTensor());
      if (now.same_geometry(signature.inputs[i])) continue;
      signature.resizes = true;
      signature.resized.resize(operands_.size());
      signature.resized[i] = std::move(now);
    }
  }
}

namespace {

using Versioned = std::pair<at::Tensor, int64_t>;  // with its version before an op

// Views of one tensor do, also where one of them has been given other memory (`x.data = y`) and where none is left of
// what they were views of. The only way to tell is to count.
bool share_a_counter(const at::Tensor& left, const at::Tensor& right) {
  auto counter = left.unsafeGetTensorImpl()->version_counter();
  const auto before = counter.current_version();
  const auto seen = right._version();
  counter.bump();
  const bool shared = right._version() != seen;
  counter.set_version(before);
  return shared;
}

// How often the op counted this write. Views of one tensor count together: each of them its part.
int64_t bumps_of(const Versioned& written, const std::vector<Versioned>& all) {
  const auto& [tensor, before] = written;
  if (!tensor.defined()) return 0;
  const auto bumps = static_cast<int64_t>(tensor._version()) - before;
  const auto together = std::count_if(all.begin(), all.end(), [&tensor = tensor](const Versioned& other) {
    return other.first.defined() && share_a_counter(tensor, other.first);
  });
  return bumps % together == 0 ? bumps / together : bumps;
}

}  // namespace

// Runs a compute op on the leading thread, where everything it touches is at rest, and remembers what it made of its
// inputs. Returns whether that was known.
bool Session::run_and_learn(const OpInfo& op, torch::jit::Stack* stack, graph::Node* node, bool hides_warnings) {
  const bool dynamic = has_dynamic_shape(op);
  const auto* found = dynamic ? nullptr : find_signature(op, node);
  if (found) node->note_signature(found);
  std::unique_ptr<graph::Signature> learned;
  if (!found && !dynamic) learned = create_signature(op);
  std::vector<Versioned> versions;  // of what is written
  if (learned && op.writes)
    for (const auto& view : operands_) {
      const bool counts = view.is_written && view.tensor && dynamic::counts_versions(*view.tensor);
      versions.emplace_back(counts ? *view.tensor : at::Tensor(), counts ? view.tensor->_version() : 0);
    }
  bool known = !dynamic;
  bool warned = false;
  if (learned || hides_warnings) {
    warned = run_watching_warnings(op, stack, hides_warnings);
  } else {
    run_natively(op, stack);
  }
  const auto results = torch::jit::last(*stack, op.returns.size()).vec();
  if (learned) {
    fill_outputs(*learned, results);
    for (const auto& tensor : dynamic::fresh_results(op, results)) {
      const bool counts = tensor.defined() && dynamic::counts_versions(tensor);
      learned->output_versions.push_back(counts ? static_cast<int8_t>(tensor._version()) : 0);
    }
    learned->warns = warned;
    note_resized_outputs(*learned, results);
    for (const auto& written : versions) learned->version_bumps.push_back(static_cast<int8_t>(bumps_of(written, versions)));
    node->note_signature(remember(std::move(learned)));
    known = false;
  }
  link_results(op, results, *node);
  return known;
}

void Session::link_results(const OpInfo& op, const torch::jit::Stack& results, const graph::Node& node) {
  size_t output = 0;
  for (const auto& tensor : dynamic::fresh_results(op, results)) link_result(tensor, node, output++);
}

// Fresh results get their twins at once: so they are known as values of this call.
void Session::link_result(const at::Tensor& result, const graph::Node& node, size_t output) {
  if (!result.defined() || why_foreign(result) || !result.has_storage()) return;
  auto* storage = result.storage().unsafeGetStorageImpl();
  if (!link_of(storage) && owns_plain_memory(storage)) claim(*link_storage(storage), node, output);
}

void Session::begin_traced(graph::Node& node, Reason reason) {
  count_eager(node, reason);
  settle_operands();
}

// `known`: there was nothing to be learned from it.
void Session::end_traced(bool known) {
  known_streak_ = known ? known_streak_ + 1 : 0;
  if (known_streak_ < rejoin_streak_) return;
  phase_ = Phase::kCoExecuting;
  rejoined_at_ = function_->counters.ops;
  unknown_ = 0;
  hand_over_cores();
}

// Known, but for what it makes of its operands.
void Session::box_and_trace(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const OpInfo& info = graph::op_info(op);
  const auto args = torch::jit::last(*stack, info.args.size());
  listening_->collect_operands(info, args);
  listening_->build_words(info, args);
  listening_->end_traced(listening_->run_and_learn(info, stack, listening_->cursor_));
}

void Session::trace_op(const OpInfo& op, torch::jit::Stack* stack, const Place& place,
                       std::optional<Reason> foreign) {
  const auto args = torch::jit::last(*stack, op.args.size());
  const dynamic::PoolScope pool(dynamic::PoolUse::kAtRest);  // the same pages as in lockstep
  bool known = false;
  graph::Node* node = record(op, args, place, &known);
  const Reason reason = foreign.value_or(Reason::tracing);
  if (foreign && is_logged(LogKind::k_fallback)) log_fallback(*node, reason);
  begin_traced(*node, reason);
  backward_.note_forward(node, function_->serial);
  if (op.kind == OpKind::kCompute && !foreign) {
    build_words(op, args);
    known &= run_and_learn(op, stack, node);
  } else {
    run_natively(op, stack);
  }
  const auto results = torch::jit::last(*stack, op.returns.size());
  if (op.kind == OpKind::kHost && node->is_plain_bool && results.size() == 1 && results[0].isScalar())
    decided_ = results[0].toScalar().to<bool>();
  if (op.kind == OpKind::kHost) note_fetch();
  end_traced(known);
}

}  // namespace lockstep::coexec
