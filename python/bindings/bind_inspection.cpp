#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>
#include <x86intrin.h>

#include <algorithm>
#include <unordered_set>

#include "coexec/clock.h"
#include "coexec/event_log.h"
#include "coexec/session.h"
#include "dynamic/fusion/fuser.h"
#include "dynamic/fusion/op_body.h"
#include "dynamic/kernels/kernel_choice.h"
#include "dynamic/kernels/kernel_table.h"
#include "dynamic/passes/passes.h"
#include "dynamic/shapes/shape_memo.h"
#include "dynamic/vm/allocator.h"
#include "dynamic/vm/executor.h"
#include "dynamic/vm/hidden_layout.h"
#include "dynamic/vm/packed_mask.h"
#include "dynamic/vm/memory_log.h"
#include "dynamic/vm/skeleton_clock.h"
#include "dynamic/vm/timeline.h"
#include "python/bindings/bind.h"

namespace py = pybind11;

namespace lockstep::bindings {

using coexec::Function;
using coexec::now_seconds;

namespace {

const double first_seconds = now_seconds();
const double first_ticks = static_cast<double>(__rdtsc());

// Of the time stamp counter, measured since the library was loaded.
double seconds_per_tick() { return (now_seconds() - first_seconds) / (static_cast<double>(__rdtsc()) - first_ticks); }

template <class Array>
py::dict reasons_of(const Array& counts) {
  py::dict reasons;
  for (int i = 0; i < graph::kReasonCount; ++i)
    if (counts[i]) reasons[graph::reason_name(static_cast<graph::Reason>(i))] = counts[i];
  return reasons;
}

py::dict counters_of(Function& f) {
  const auto& c = f.counters;
  if (!f.runs_elsewhere()) f.last_size = {f.graph.blocks().size(), f.graph.op_node_count()};
  py::dict d;
  d["calls"] = c.calls;
  d["traced_calls"] = c.traced_calls;
  d["ops"] = c.ops;
  d["graph_ops"] = c.graph_ops;
  d["eager_ops"] = c.eager_ops;
  d["feeds"] = c.feeds;
  d["fetches"] = c.fetches;
  d["waits"] = c.waits;
  d["wait_seconds"] = c.wait_seconds;
  d["divergences"] = c.divergences;
  d["blocks"] = f.last_size.first;
  d["nodes"] = f.last_size.second;
  d["reasons"] = reasons_of(c.reasons);
  return d;
}

py::dict node_of(const graph::Node& n) {
  py::dict d;
  d["id"] = n.id;
  d["op"] = n.op ? n.op->name : "";
  d["where"] = n.where;
  d["api_call"] = n.api_call;
  d["autograd_node"] = n.autograd_node;
  d["forward_node"] = n.forward_node;
  d["is_plain_bool"] = n.is_plain_bool;
  d["asked"] = n.counts.asked;
  d["in_graph"] = n.counts.in_graph;
  d["eager"] = n.counts.eager;
  d["fetched"] = n.counts.fetched;
  d["wait_seconds"] = n.counts.wait_seconds;
  d["graph_seconds"] = seconds_per_tick() * (n.counts.kernel_ticks + n.counts.native_ticks);
  d["eager_seconds"] = seconds_per_tick() * n.counts.eager_ticks;
  d["reasons"] = reasons_of(n.counts.reasons);
  py::list next;
  for (const auto& edge : n.next) next.append(edge.to->id);
  d["next"] = next;
  return d;
}

using NodeSet = std::unordered_set<const graph::Node*>;

NodeSet nodes_of(const Function& function) {
  NodeSet nodes;
  for (const auto& node : function.graph.nodes()) nodes.insert(node.get());
  return nodes;
}

// (spans, names of threads, how many found no room); a span is (thread, kind, begin, duration, op, where), times in
// microseconds since the first one. Of this function only, and what belongs to none.
py::tuple timeline_of(const dynamic::Timeline& timeline, const Function& function) {
  struct Place {
    const dynamic::Span* span;
    std::string where;
  };
  std::vector<Place> places;
  {
    const std::lock_guard lock(graph::TraceGraph::nodes_mutex());  // another thread may run it
    const auto known = nodes_of(function);
    for (const auto& span : timeline.spans)
      if (!span.node || known.contains(span.node)) places.push_back({&span, span.node ? span.node->where : ""});
  }
  uint64_t first = ~uint64_t{0};
  for (const auto& span : timeline.spans) first = std::min(first, span.begin);
  const double us = 1e6 * seconds_per_tick();
  py::list spans;
  for (const auto& [span, where] : places)
    spans.append(py::make_tuple(span->thread, dynamic::span_kind_name(span->kind),
                                us * static_cast<double>(span->begin - first),
                                us * static_cast<double>(span->end - span->begin), span->op ? span->op->name : "", where));
  return py::make_tuple(spans, timeline.threads, timeline.dropped);
}

// (blocks, microseconds from begin to end, how many found no room); a block is (address, bytes, begin, end, op, where,
// api_call, is_backward, is_workspace), times in microseconds since the begin of the log, None before it and after it.
py::tuple memory_log_of(const dynamic::MemoryLog& log, const Function& function) {
  struct Place {
    std::string op, where, api_call;
    bool is_backward = false;
  };
  std::vector<Place> places(log.blocks.size());
  {
    const std::lock_guard lock(graph::TraceGraph::nodes_mutex());  // another thread may run it
    const auto known = nodes_of(function);
    for (size_t i = 0; i < places.size(); ++i) {
      const auto* node = log.blocks[i].node;
      if (!known.contains(node)) continue;
      places[i] = {node->op ? node->op->name : "", node->where, node->api_call,
                   node->forward_node >= 0 || !node->autograd_node.empty()};
    }
  }
  const double us = 1e6 * seconds_per_tick();
  auto time = [&](uint64_t ticks) -> py::object {
    if (ticks == 0) return py::none();
    return py::float_(us * static_cast<double>(ticks - log.begin));
  };
  py::list blocks;
  for (size_t i = 0; i < places.size(); ++i) {
    const auto& block = log.blocks[i];
    const auto& place = places[i];
    blocks.append(py::make_tuple(reinterpret_cast<uintptr_t>(block.data), block.bytes, time(block.begin), time(block.end),
                                 place.op, place.where, place.api_call, place.is_backward, block.is_workspace));
  }
  return py::make_tuple(blocks, us * static_cast<double>(log.end - log.begin), log.dropped);
}

// (address, bytes) of a tensor's memory, which nobody gets to see by that; None where it has none of its own.
py::object memory_of(const py::handle& object) {
  if (!THPVariable_Check(object.ptr())) return py::none();
  const auto& tensor = THPVariable_Unpack(object.ptr());
  if (!tensor.defined() || coexec::why_foreign(tensor) || !tensor.has_storage()) return py::none();
  if (auto* session = coexec::Session::active_on_this_thread()) session->drain();
  const auto* storage = tensor.storage().unsafeGetStorageImpl();
  const auto* link = coexec::link_of(storage);
  const void* data = link ? link->twin->data_ptr().get() : storage->data_ptr().get();
  return py::make_tuple(reinterpret_cast<uintptr_t>(data), storage->nbytes());
}

}  // namespace

void bind_inspection(py::module_& m) {
  m.def("counters", &counters_of);
  m.def("nodes", [](const Function& f) {
    refuse_elsewhere(f, "lockstep.explain");
    py::list nodes;
    for (const auto& node : f.graph.nodes()) nodes.append(node_of(*node));
    return nodes;
  });
  m.def("auto_figures", [](const Function& f) {
    const auto figures = f.policy.figures();
    py::dict d;
    d["is_auto"] = f.is_auto;
    d["way"] = coexec::way_name(f.is_auto ? figures.way : f.unmeasured_way());
    d["next_way"] = coexec::way_name(f.is_auto ? f.policy.choose() : f.unmeasured_way());
    d["is_settled"] = figures.is_settled;
    for (int way = 0; way < coexec::kWayCount; ++way)
      d[(std::string(coexec::way_name(static_cast<coexec::Way>(way))) + "_seconds").c_str()] = figures.seconds[way];
    d["measurements"] = figures.measurements;
    d["is_pointless"] = figures.is_pointless;
    d["rests_on_gaps"] = figures.rests_on_gaps;
    return d;
  });
  m.def("divergences", [](const Function& f) {
    refuse_elsewhere(f, "lockstep.explain");
    py::list list;
    for (const auto& d : f.divergences)
      list.append(py::dict(py::arg("where") = d.where, py::arg("expected") = d.expected,
                           py::arg("found") = d.found, py::arg("call") = d.call));
    return list;
  });
  m.def("reasons", [] {
    py::dict d;
    for (int i = 0; i < graph::kReasonCount; ++i) {
      const auto reason = static_cast<graph::Reason>(i);
      d[graph::reason_name(reason)] = graph::reason_sentence(reason);
    }
    return d;
  });
  m.def("set_log", &coexec::set_log);
  m.def("passes", [] {
    std::vector<std::pair<std::string, std::string>> all;
    for (const auto& [name, meaning] : dynamic::kPassRows) all.emplace_back(name, meaning);
    return all;
  });
  m.def("log_kinds", [] { return coexec::log_kinds(); });
  m.def("memory_statistics", [] {
    const auto s = dynamic::Pool::instance().statistics();
    return py::dict(py::arg("used_bytes") = s.used_bytes, py::arg("peak_used_bytes") = s.peak_used_bytes,
                    py::arg("reserved_bytes") = s.reserved_bytes);
  });
  m.def("reset_memory_peak", [] { dynamic::Pool::instance().reset_peak(); });
  m.def("start_memory_log", &dynamic::start_memory_log);
  m.def("stop_memory_log", [](const Function& f) { return memory_log_of(dynamic::stop_memory_log(), f); });
  m.def("memory_of", &memory_of);
  m.def("count_memory", &dynamic::count_memory);
  m.def("memory_count", [] {
    const auto count = dynamic::memory_count();
    return py::dict(py::arg("live_bytes") = count.live_bytes, py::arg("peak_bytes") = count.peak_bytes);
  });
  m.def("release_free_pages", [] { dynamic::Pool::instance().release_free_pages(); });
  m.def("enable_pool", &dynamic::enable_pool);
  m.def("signature_count", [] { return dynamic::ShapeMemo::instance().count(); });
  m.def("time_skeleton", [](bool on) {
    dynamic::skeleton::hook.reset();
    dynamic::skeleton::runner.reset();
    dynamic::skeleton::is_timed.store(on);
  });
  m.def("skeleton_times", [] {
    auto of = [](const dynamic::skeleton::Totals& totals) {
      return py::make_tuple(totals.count.load(), seconds_per_tick() * static_cast<double>(totals.ticks.load()));
    };
    return py::dict(py::arg("hook") = of(dynamic::skeleton::hook),
                    py::arg("runner") = of(dynamic::skeleton::runner));
  });
  m.def("start_timeline", &dynamic::start_timeline);
  m.def("stop_timeline", [](const Function& f) { return timeline_of(dynamic::stop_timeline(), f); });
  m.def("fusion_statistics", [] {
    const auto& s = dynamic::fusion_statistics;
    const auto cache = dynamic::KernelService::instance().statistics();
    return py::dict(py::arg("groups") = s.groups.load(), py::arg("fused_events") = s.fused_events.load(),
                    py::arg("single_events") = s.single_events.load(), py::arg("kernels") = s.kernels.load(),
                    py::arg("compiled") = cache.compiled_count, py::arg("loaded") = cache.loaded_count,
                    py::arg("failures") = dynamic::KernelService::instance().failures(), py::arg("compile_ms") = cache.compile_ms,
                    py::arg("longest_compile_ms") = cache.longest_compile_ms,
                    py::arg("hidden_maps") = dynamic::hidden_layout_statistics.hidden.load(),
                    py::arg("restored_maps") = dynamic::hidden_layout_statistics.restored.load(),
                    py::arg("packed_masks") = dynamic::packed_mask_statistics.drawn.load(),
                    py::arg("unpacked_masks") = dynamic::packed_mask_statistics.unpacked.load());
  });
  m.def("force_kernel_way", [](int way) { dynamic::forced_way.store(way); });
  m.def("wait_for_kernels", [] { dynamic::KernelService::instance().wait(); },
        py::call_guard<py::gil_scoped_release>());
  m.def("may_round_otherwise", [](const std::string& name, const std::string& overload, bool has_bfloat16) {
    const auto handle = c10::Dispatcher::singleton().findSchema({name, overload});
    if (!handle) return false;
    const auto& op = graph::op_info(*handle);
    if (has_bfloat16 && dynamic::find_op_row(op)) return true;
    return !dynamic::rounds_as_eager(op) || dynamic::may_round_otherwise(op);
  });
  m.def("skip_kernels", [](bool on) { dynamic::skip_kernels.store(on); });
}

}  // namespace lockstep::bindings
