// Ops that are asked for often come with their arguments as they are: numbers, lists and tensors are not put into boxes
// on the way to the session and taken out again. The steps are those of Session::on_op; whatever is out of the ordinary
// is boxed after all, and goes on there.
#pragma once

#include <ATen/core/IListRef.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <tuple>
#include <type_traits>
#include <utility>

#include "coexec/session.h"
#include "dynamic/vm/allocator.h"
#include "graph/op_info.h"

namespace lockstep::coexec {

namespace unboxed {

template <class T>
using Bare = std::remove_cvref_t<T>;
template <class T>
constexpr bool is_tensor = std::is_same_v<Bare<T>, at::Tensor>;
template <class T>
constexpr bool is_optional_tensor = std::is_same_v<Bare<T>, std::optional<at::Tensor>>;
template <class T>
constexpr bool is_tensor_list = std::is_same_v<Bare<T>, at::ITensorListRef> || std::is_same_v<Bare<T>, at::TensorList>;
template <class T>
constexpr bool holds_tensors = is_tensor<T> || is_optional_tensor<T> || is_tensor_list<T>;
template <class T>
constexpr bool is_size_list = std::is_same_v<Bare<T>, at::IntArrayRef> || std::is_same_v<Bare<T>, c10::SymIntArrayRef>;
template <class T>
constexpr bool is_optional_size_list =
    std::is_same_v<Bare<T>, at::OptionalIntArrayRef> || std::is_same_v<Bare<T>, at::OptionalSymIntArrayRef>;
template <class T>
constexpr bool is_tuple = false;
template <class... T>
constexpr bool is_tuple<std::tuple<T...>> = true;

// Calls `visit` with each tensor of an argument, undefined ones included.
template <class T, class F>
void each_tensor(const T& arg, F visit) {
  static const at::Tensor undefined;
  if constexpr (is_tensor<T>) {
    visit(arg);
  } else if constexpr (is_optional_tensor<T>) {
    visit(arg.has_value() ? *arg : undefined);
  } else if constexpr (is_tensor_list<T>) {
    for (const at::Tensor& tensor : arg) visit(tensor);
  }
}

// As IValue keeps it: a size that is no number is refused, as where a box is opened.
inline int64_t number_of(int64_t size) { return size; }
inline int64_t number_of(const c10::SymInt& size) { return size.guard_int(__FILE__, __LINE__); }

template <class Sizes>
bool is_same_list(const c10::IValue& known, const Sizes& sizes) {
  if (!known.isIntList()) return false;
  const auto list = known.toListRef();
  if (list.size() != sizes.size()) return false;
  for (size_t i = 0; i < list.size(); ++i)
    if (!list[i].isInt() || list[i].toInt() != number_of(sizes[i])) return false;
  return true;
}

// Without a box where that would need memory.
template <class T>
bool is_same(const c10::IValue& known, const T& arg) {
  if constexpr (is_size_list<T>) {
    return is_same_list(known, arg);
  } else if constexpr (is_optional_size_list<T>) {
    return arg.has_value() ? is_same_list(known, *arg) : known.isNone();
  } else {
    return is_same_constant(known, c10::IValue(arg));
  }
}

template <class Sizes>
void append_list(graph::SignatureWords& words, const Sizes& sizes) {
  words.push_back(graph::list_word(sizes.size()));
  for (const auto& size : sizes) words.push_back(number_of(size));
}

template <class T>
void append_constant(graph::SignatureWords& words, const T& arg) {
  if constexpr (is_size_list<T>) {
    append_list(words, arg);
  } else if constexpr (is_optional_size_list<T>) {
    if (arg.has_value()) return append_list(words, *arg);
    graph::append_constant(words, c10::IValue());
  } else {
    graph::append_constant(words, c10::IValue(arg));
  }
}

// What stands in the place of an argument in an event (Event::args).
template <class T>
c10::IValue event_argument(const T& arg) {
  if constexpr (is_tensor<T>) {
    return true;
  } else if constexpr (is_optional_tensor<T>) {
    return arg.has_value() ? c10::IValue(true) : c10::IValue();
  } else if constexpr (is_tensor_list<T>) {
    return static_cast<int64_t>(arg.size());
  } else {
    return c10::IValue(arg);
  }
}

}  // namespace unboxed

// The kernel of one op (a struct of at::_ops) for the hook's dispatch key.
template <class Op, class Schema = typename Op::schema>
class Unboxed;

template <class Op, class Result, class... Args>
class Unboxed<Op, Result(Args...)> {
 public:
  static Result run(c10::DispatchKeySet keys, Args... args) {
    Session* const session = Session::taking_unboxed();
    const Known& op = the_op();
    if (!session || !op.is_ordinary) return box<&tracer::hand_over>(op, keys, args...);
    c10::impl::ExcludeDispatchKeyGuard no_hook(tracer::kHookKey);
    const dynamic::TimedScope timed(dynamic::skeleton::hook);
    const Session::AskScope asked(*session);
    session->arrive(keys);
    graph::Node* node = follow(*session, op, args...);
    if (!node) return box<&Session::box_and_go_on>(op, keys, args...);
    if (session->phase_ == Phase::kTracing) return trace(*session, op, *node, keys, args...);
    if (op.info.kind == graph::OpKind::kView) {
      session->count_in_graph(*node);
      return run_natively(*session, op, args...);
    }
    if (op.info.kind == graph::OpKind::kAllocate) {
      session->count_in_graph(*node);
      const Session::LeadingAllocation memory(*session);
      if constexpr (std::is_same_v<Result, at::Tensor>) {
        auto result = run_natively(*session, op, args...);
        if (session->may_leave_blank(*node)) session->leave_blank(result);
        return result;
      } else {
        return run_natively(*session, op, args...);
      }
    }
    if (session->at_once_) {
      session->count_in_graph(*node);
      session->settle_operands();
      const dynamic::PoolScope pool;
      return run_natively(*session, op, args...);
    }
    collect_words(*session, op, args...);
    const auto* signature = session->find_signature(op.info, node);
    if (!signature || !is_plain(*signature)) return box<&Session::box_and_compute>(op, keys, args...);
    if (session->can_run_on_host(op.info, *signature)) {
      note_known(*session, *node, *signature);
      return run_natively(*session, op, args...);
    }
    if (session->synchronous_ || session->meets_outside() || session->may_fail_by_value(op.info) ||
        session->may_lack_memory(*signature))
      return box<&Session::box_and_compute>(op, keys, args...);
    note_known(*session, *node, *signature);
    auto& event = session->open_event(node, signature);
    (event.args.push_back(unboxed::event_argument(args)), ...);
    session->fill_operands(event);
    return result_of(session->push_event(event), args...);
  }

 private:
  struct Known {
    c10::OperatorHandle handle = c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
    const graph::OpInfo& info = graph::op_info(handle);
    bool is_ordinary = can_go_unboxed(info);
  };
  static const Known& the_op() {
    static const Known op;
    return op;
  }

  static bool can_go_unboxed(const graph::OpInfo& info) {
    using graph::OpKind;
    if (info.kind == OpKind::kView || info.kind == OpKind::kAllocate) return true;
    if (info.kind != OpKind::kCompute || info.draws || info.dynamic_shape || info.bool_index_is_dynamic ||
        info.returns_out)
      return false;
    for (const auto& slot : info.returns)
      if (slot.is_list || !slot.is_tensor) return false;
    return true;
  }

  using BoxedFunction = void(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack*);
  template <BoxedFunction* kFunction>
  static Result box(const Known& op, c10::DispatchKeySet keys, Args... args) {
    static const auto kernel = c10::BoxedKernel::makeFromFunction<kFunction>();
    return c10::impl::BoxedKernelWrapper<Result(Args...)>::call(kernel, op.handle, keys, std::forward<Args>(args)...);
  }

  // The node that the graph has for this op here, now the cursor; null where it has none, or where the op cannot be asked.
  static graph::Node* follow(Session& session, const Known& op, const Args&... args) {
    session.operands_.clear();
    bool is_foreign = session.place_.unrecorded || op.info.python_kernel.load(std::memory_order_relaxed);
    int index = 0;
    const auto collect = [&](const auto& arg) {
      unboxed::each_tensor(arg, [&](const at::Tensor& tensor) {
        is_foreign |= session.collect_operand(tensor, index, op.info.args[index].is_written).has_value();
      });
      if constexpr (std::is_same_v<std::decay_t<decltype(arg)>, std::optional<c10::Device>>)
        is_foreign |= arg && why_foreign(op.info, *arg);
      ++index;
    };
    (collect(args), ...);
    if (is_foreign) return nullptr;
    auto* edge = session.match(op.info, session.place_.key);
    if (!edge) return nullptr;
    graph::Node* node = edge->to;
    index = 0;
    const auto compare = [&](const auto& arg) {
      if constexpr (!unboxed::holds_tensors<decltype(arg)>)
        if (!node->varies[index] && !unboxed::is_same(node->constants[index], arg)) node->varies[index] = true;
      ++index;
    };
    (compare(args), ...);
    session.note_operand_variation(*node);
    session.advance(node, edge);
    session.backward_.note_forward(node, session.function_->serial);
    return node;
  }

  // What Session::trace_op does with an op that the graph knows here.
  static Result trace(Session& session, const Known& op, graph::Node& node, c10::DispatchKeySet keys, Args... args) {
    session.begin_traced(node, graph::Reason::tracing);
    const dynamic::PoolScope pool(dynamic::PoolUse::kAtRest);
    if (op.info.kind == graph::OpKind::kCompute) {
      collect_words(session, op, args...);
      const auto* signature = session.find_signature(op.info, &node);
      if (!signature) return box<&Session::box_and_trace>(op, keys, args...);
      node.note_signature(signature);
    }
    const auto end = [&](const auto& results) {
      if (op.info.kind == graph::OpKind::kCompute) link_results(session, node, results);
      session.end_traced(/*known=*/true);
    };
    if constexpr (std::is_reference_v<Result>) {
      Result result = run_natively(session, op, args...);
      end(std::tuple<>());
      return result;
    } else {
      auto result = run_natively(session, op, args...);
      end(result);
      return result;
    }
  }

  template <class Results>
  static void link_results(Session& session, const graph::Node& node, const Results& results) {
    if constexpr (std::is_same_v<Results, at::Tensor>) {
      session.link_result(results, node, 0);
    } else if constexpr (unboxed::is_tuple<Results>) {
      [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
        (session.link_result(std::get<kIndex>(results), node, kIndex), ...);
      }(std::make_index_sequence<std::tuple_size_v<Results>>());
    }
  }

  static Result run_natively(Session& session, const Known& op, Args... args) {
    const Session::NativeRun run(session, op.info, /*in_graph=*/true);
    return Op::redispatch(session.keys_, std::forward<Args>(args)...);
  }

  static void collect_words(Session& session, const Known& op, const Args&... args) {
    session.begin_words(op.info);
    size_t index = 0;
    const auto append = [&](const auto& arg) {
      auto& words = session.words_;
      using T = decltype(arg);
      if constexpr (unboxed::is_tensor_list<T>) words.push_back(static_cast<int64_t>(arg.size()));
      if constexpr (unboxed::holds_tensors<T>) {
        unboxed::each_tensor(arg, [&](const at::Tensor& tensor) { graph::append_layout(words, tensor); });
      } else if (op.info.args[index].kind == graph::ArgKind::kScalar) {
        const c10::IValue number(arg);
        if (static_cast<int>(index) == op.info.alpha_argument) session.note_factor(number);
        graph::append_scalar(words, number, op.info.layout_from_scalars);
      } else {
        unboxed::append_constant(words, arg);
      }
      ++index;
    };
    (append(args), ...);
  }

  static bool is_plain(const graph::Signature& signature) {
    return !signature.special && !signature.warns && !signature.resizes && !signature.aliases_input;
  }

  static void note_known(Session& session, graph::Node& node, const graph::Signature& signature) {
    session.count_in_graph(node);
    node.note_signature(&signature);
  }

  // What is written comes first, and comes back.
  static Result result_of(Session::Placeholders fresh, const Args&... args) {
    if constexpr (std::is_same_v<Result, at::Tensor&>) {
      return std::get<0>(std::tie(args...));
    } else if constexpr (std::is_same_v<Result, at::Tensor>) {
      return std::move(fresh[0]);
    } else if constexpr (unboxed::is_tuple<Result>) {
      return [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
        return Result(std::move(fresh[kIndex])...);
      }(std::make_index_sequence<std::tuple_size_v<Result>>());
    } else {
      TORCH_INTERNAL_ASSERT(false, "only views return lists unboxed");
    }
  }
};

}  // namespace lockstep::coexec
