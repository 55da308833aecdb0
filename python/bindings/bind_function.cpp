// Calling a decorated function. The callable is a C type, so that no frame of ours stands in a traceback.
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <x86intrin.h>

#include <bit>
#include <cstdio>

#include "coexec/clock.h"
#include "coexec/event_log.h"
#include "coexec/session.h"
#include "coexec/way_memory.h"
#include "dynamic/threads/cores.h"
#include "dynamic/vm/allocator.h"
#include "dynamic/vm/timeline.h"
#include "python/bindings/bind.h"
#include "tracer/python_frames.h"

namespace py = pybind11;

namespace lockstep::bindings {

using coexec::CallKind;
using coexec::Function;
using coexec::Session;
using coexec::Way;
using coexec::now_seconds;

namespace {

// Ends the call under a set Python error, which goes on afterwards.
void end_after_error(Session& session) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  session.end_quietly();
  PyErr_Restore(type, value, traceback);
}

bool try_end(Session& session) {
  HANDLE_TH_ERRORS
  session.end();
  return true;
  END_HANDLE_TH_ERRORS_RET(false)
}

PyObject* call_eagerly(Function& function, graph::Reason reason, PyObject* callable, PyObject* args, PyObject* kwargs) {
  function.counters.calls++;
  function.counters.reasons[static_cast<int>(reason)]++;
  const dynamic::SpanScope span(dynamic::SpanKind::kEagerCall, function.graph.entry());
  return PyObject_Call(callable, args, kwargs);
}

CallKind kind_of_last_call(const Session& session) {
  if (session.was_recorded()) return CallKind::kRecorded;
  return session.was_prepared() ? CallKind::kPrepared : CallKind::kTypical;
}

void note_time(Function& function, Way way, double seconds, CallKind kind, double between) {
  const auto before = function.policy.figures().measurements;
  function.policy.note(way, seconds, kind, between);
  const auto figures = function.policy.figures();
  if (figures.measurements == before) return;
  if (!function.way_problem.empty() && !figures.rests_on_gaps) coexec::remember_way(function.way_problem, figures.way);
  if (!is_logged(coexec::LogKind::k_auto)) return;
  std::string text = std::string("chose ") + coexec::way_name(figures.way) + " on";
  for (int other = 0; other < coexec::kWayCount; ++other) {
    if (figures.seconds[other] == 0) continue;
    char figure[64];
    std::snprintf(figure, sizeof figure, " %s %.3f ms", coexec::way_name(static_cast<Way>(other)),
                  1e3 * figures.seconds[other]);
    text += figure;
  }
  write_log(coexec::LogKind::k_auto, function.name, text);
}

// After the first call that recorded nothing: begins with the way that a function like this one chose.
void recall_way(Function& function) {
  function.forget_stale_signatures();
  function.way_problem = coexec::way_problem(function);
  const auto way = coexec::remembered_way(function.way_problem);
  if (!way) return;
  if (function.is_auto) {
    if (function.policy.figures().is_settled) return;
    function.policy.adopt(*way);
  } else {
    if (function.worker_habit.trials() > 0) return;
    function.worker_habit.adopt(*way == Way::kYielding);
  }
  if (is_logged(coexec::LogKind::k_auto))
    write_log(coexec::LogKind::k_auto, function.name, std::string("remembered ") + coexec::way_name(*way));
}

// Of a function that was claimed.
PyObject* call_in_session(Function& function, PyObject* callable, PyObject* args, PyObject* kwargs) {
  Session& session = Session::of_this_thread();
  const bool is_measured = function.is_auto && !function.next_recorder;
  const Way way = is_measured ? function.policy.choose() : function.unmeasured_way();
  const auto counted_before = function.counters;
  const int trials_before = function.worker_habit.trials();
  const double begin = now_seconds();
  const double between = function.gaps.begin(begin);
  const uint64_t begin_ticks = __rdtsc();
  PyObject* result = nullptr;
  if (way == Way::kEager) {
    session.runner().rest();
    const dynamic::PoolScope pool(dynamic::PoolUse::kAtRest);  // the same pages as in lockstep
    result = call_eagerly(function, graph::Reason::slower, callable, args, kwargs);  // or being measured
  } else {
    session.begin(function, way);
    result = PyObject_Call(callable, args, kwargs);
    if (!result) {
      end_after_error(session);
    } else if (!try_end(session)) {
      Py_CLEAR(result);
    }
  }
  const double end = now_seconds(), seconds = end - begin;
  function.gaps.end(end);
  if (is_measured && result) {
    if (function.counters.calls == 1) function.policy.guess(seconds / std::max<double>(1, function.counters.ops));
    auto kind = way == Way::kEager ? CallKind::kTypical : kind_of_last_call(session);
    if (way != Way::kEager && kind != CallKind::kRecorded && function.is_pointless(counted_before, __rdtsc() - begin_ticks))
      kind = CallKind::kPointless;
    note_time(function, way, seconds, kind, between);
  }
  const bool has_choice = is_measured || function.adapts_workers;
  if (has_choice && result && function.way_problem.empty() && !session.was_recorded()) recall_way(function);
  if (function.worker_habit.trials() > trials_before && !function.way_problem.empty())
    coexec::remember_way(function.way_problem, function.unmeasured_way());
  return result;
}

// Unless a session that the call left open still goes along its graph.
void release(Function& function) {
  if (Session::of_this_thread().function() != &function) function.is_busy.store(false);
}

// The end of a claim.
class ReleaseScope {
 public:
  explicit ReleaseScope(Function& function) : function_(function) {}
  ~ReleaseScope() { release(function_); }
  ReleaseScope(const ReleaseScope&) = delete;

 private:
  Function& function_;
};

py::object steal_or_throw(PyObject* result) {
  if (!result) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(result);
}

// What a decorator makes: the wrapped callable and what is known of it. Python subclasses add name, doc and settings.
struct Callable {
  py::object wrapped;
  std::shared_ptr<Function> core;

  Callable(py::object fn, const std::string& name) : wrapped(std::move(fn)), core(std::make_shared<Function>()) {
    core->name = name;
  }
};

// As lockstep.knobs.for_core says them.
void configure(Function& function, const py::dict& settings) {
  const auto is_on = [&settings](const char* name) { return settings[name].cast<bool>(); };
  const auto runner = settings["runner"].cast<std::string>();
  const bool is_in_place = runner == "inplace" || (runner == "auto" && dynamic::has_one_core());
  function.forced_way = is_in_place ? Way::kInPlace : runner == "yielding" ? Way::kYielding : Way::kBehind;
  function.adapts_workers = runner == "auto" && !is_in_place;
  function.waits_for_errors = is_on("waits_for_errors");
  function.is_strict = is_on("is_strict");
  function.fuses = is_on("fuses");
  function.passes = {};
  for (const auto& name : settings["without"].cast<std::vector<std::string>>())
    if (const auto pass = dynamic::find_pass(name)) function.passes = function.passes.without(*pass);
  function.is_deterministic = is_on("is_deterministic");
  function.joins_steps = is_on("joins_steps");
  function.rounds_products = is_on("rounds_products");
}

// `fn` with these arguments, as a call of the decorated function; tensors among `named` get names.
PyObject* run(const py::object& self, Callable& callable, PyObject* fn, PyObject* args, PyObject* kwargs,
              const std::pair<py::args, py::kwargs>& named) {
  const auto kept = callable.core;  // alive, as `fn` is
  auto& core = *kept;
  const auto run_eagerly = [&](graph::Reason reason) { return call_eagerly(core, reason, fn, args, kwargs); };
  if (Session::active_on_this_thread()) {  // part of the outer call
    core.counters.calls++;
    return PyObject_Call(fn, args, kwargs);
  }
  const auto [when, settings] = self.attr("_settings")().cast<std::pair<std::string, py::dict>>();
  if (when == "never") return run_eagerly(graph::Reason::switched_off);
  if (tracer::has_small_stack()) return run_eagerly(graph::Reason::small_stack);
  if (!core.try_claim()) return run_eagerly(graph::Reason::function_busy);  // with other settings, perhaps
  const ReleaseScope claimed(core);
  configure(core, settings);
  core.is_auto = when == "auto" && !core.is_deterministic;  // what is measured says which kernels run
  core.adapts_workers &= !core.is_auto;
  // Until there are ops to name tensors for; in ever fewer calls, for to look for names takes long.
  constexpr uint64_t kOften = 16;
  if (core.graph.op_node_count() == 0 && (++core.calls_without_ops <= kOften || std::has_single_bit(core.calls_without_ops)))
    self.attr("_name_origins")(named.first, named.second);
  return call_in_session(core, fn, args, kwargs);
}

py::object call(const py::object& self, const py::args& args, const py::kwargs& kwargs) {
  auto& callable = self.cast<Callable&>();
  const py::object fn = callable.wrapped;  // alive, whatever the callee does to the decorator
  const tracer::RecursionAllowance allowance;
  if (!tracer::has_stack_for_call() && !tracer::has_small_stack()) {
    PyErr_SetString(PyExc_RecursionError,
                    "maximum recursion depth exceeded: the stack of this thread has no room for another call of a "
                    "decorated function; decorate the function that begins the recursion, or raise the limit of the "
                    "stack (ulimit -s, threading.stack_size)");
    throw py::error_already_set();
  }
  return steal_or_throw(run(self, callable, fn.ptr(), args.ptr(), kwargs.ptr(), {args, kwargs}));
}

// A running generator or coroutine of a decorated function: each step is a call.
struct Steps {
  py::object function;
  py::object inner;
  Steps(py::object f, py::object i) : function(std::move(f)), inner(std::move(i)) {}

  py::object step(const char* name, const py::args& args) {
    const py::object method = inner.attr(name), self = function;
    return steal_or_throw(run(self, self.cast<Callable&>(), method.ptr(), args.ptr(), nullptr, {}));
  }
};

void name_origin(Function& function, const py::handle& tensor, const std::string& name) {
  if (!THPVariable_Check(tensor.ptr())) return;
  const auto& t = THPVariable_Unpack(tensor.ptr());
  if (t.defined() && t.has_storage()) function.origins[t.storage().unsafeGetStorageImpl()] = name;
}

}  // namespace

// Tells the collector what a C++ object holds: a decorated module or closure mostly stands in a cycle with its callable.
template <class T, py::object T::*... members>
py::custom_type_setup collected() {
  return py::custom_type_setup([](PyHeapTypeObject* heap_type) {
    auto* type = &heap_type->ht_type;
    type->tp_flags |= Py_TPFLAGS_HAVE_GC;
    type->tp_traverse = [](PyObject* self, visitproc visit, void* arg) {
      Py_VISIT(Py_TYPE(self));
      if (!py::detail::is_holder_constructed(self)) return 0;
      const auto& object = py::cast<T&>(py::handle(self));
      for (PyObject* held : {(object.*members).ptr()...}) Py_VISIT(held);
      return 0;
    };
    type->tp_clear = [](PyObject* self) {
      if (!py::detail::is_holder_constructed(self)) return 0;
      auto& object = py::cast<T&>(py::handle(self));
      ((object.*members = py::none()), ...);
      return 0;
    };
  });
}

void refuse_elsewhere(const Function& function, const char* where) {
  if (!function.runs_elsewhere()) return;
  const py::object type = py::module_::import("lockstep.errors").attr("Error");
  const py::object error = type("function_busy", where, function.name + " runs in another thread: ask when its call has returned");
  PyErr_SetObject(type.ptr(), error.ptr());
  throw py::error_already_set();
}

void bind_function(py::module_& m) {
  py::class_<Callable>(m, "Callable", collected<Callable, &Callable::wrapped>())
      .def(py::init<py::object, std::string>())
      .def_readonly("core", &Callable::core)
      .def("__call__", &call);
  py::class_<Steps>(m, "Steps", collected<Steps, &Steps::function, &Steps::inner>())
      .def(py::init<py::object, py::object>())
      .def("__iter__", [](const py::object& self) { return self; })
      .def("__next__", [](Steps& s) { return s.step(py::hasattr(s.inner, "__next__") ? "__next__" : "send",
                                                    py::hasattr(s.inner, "__next__") ? py::args() : py::args(py::make_tuple(py::none()))); })
      .def("send", [](Steps& s, const py::args& args) { return s.step("send", args); })
      .def("throw", [](Steps& s, const py::args& args) { return s.step("throw", args); })
      .def("close", [](Steps& s, const py::args& args) { return s.step("close", args); });
  py::class_<Function, std::shared_ptr<Function>>(m, "Function")
      .def(py::init<>())
      .def_readwrite("name", &Function::name)
      .def("configure", &configure)
      .def_readwrite("max_nodes", &Function::max_nodes)
      .def_readonly("serial", &Function::serial)
      .def("name_origin", &name_origin)
      .def("has_nodes", [](const Function& f) { return f.graph.op_node_count() > 0; })
      .def("begin", [](Function& f) {
        if (!f.try_claim()) throw py::value_error("this session is entered already");
        f.is_session = true;
        Session::of_this_thread().begin(f, f.unmeasured_way());
      })
      .def("end", [](Function& f, bool quietly) {
        Session& session = Session::of_this_thread();
        // Another one, where that was left open, or closed before this one.
        const auto outermost = session.function() ? session.function()->weak_from_this().lock() : nullptr;
        bool has_ended = true;
        if (quietly) {
          session.end_quietly();
        } else {
          has_ended = try_end(session);
        }
        release(f);
        if (outermost) release(*outermost);
        if (!has_ended) throw py::error_already_set();
      }, py::arg("quietly") = false)
      .def("reset_counters", [](Function& f) {
        refuse_elsewhere(f, "lockstep.reset_stats");
        f.counters = {};
        f.divergences.clear();
        for (const auto& node : f.graph.nodes()) node->counts = {};
      })
      .def("reset", [](Function& f) {
        if (f.is_busy.load()) throw py::value_error("cannot reset a function while it runs");
        f.counters = {};
        f.divergences.clear();
        f.origins.clear();
        f.calls_without_ops = 0;
        f.graph.clear();
        f.worker_habit = {};
        f.policy.reset();  // measures anew: its way_problem stays, and is not looked up again
      });
  // What is known of shapes, by all functions; they learn it anew. Not while one of them runs.
  m.def("forget_shapes", [] { Session::forget_signatures(0, nullptr); });
  m.def("is_active", [] { return Session::active_on_this_thread() != nullptr; });
}

}  // namespace lockstep::bindings
