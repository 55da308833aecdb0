#include "tracer/hook.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <atomic>

namespace lockstep::tracer {

namespace {

thread_local OpSink* t_sink = nullptr;
thread_local bool t_is_foreign = false;
std::atomic<OpSink*> foreign_sink{nullptr};

}  // namespace

void hand_over(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  OpSink* sink = t_sink;
  if (!sink) sink = foreign_sink.load(std::memory_order_acquire);
  if (sink) return sink->on_op(op, keys, stack);
  c10::impl::ExcludeDispatchKeyGuard no_hook(kHookKey);
  op.redispatchBoxed(keys.remove(kHookKey), stack);  // what is above the hook has been done
}

TORCH_LIBRARY_IMPL(_, Fake, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&hand_over>()); }

namespace {

void switch_hook() { c10::impl::tls_set_dispatch_key_included(kHookKey, t_sink || t_is_foreign); }

}  // namespace

void listen(OpSink* sink) {
  t_sink = sink;
  switch_hook();
}

OpSink* listener() { return t_sink; }

void set_foreign_listener(OpSink* sink) { foreign_sink.store(sink, std::memory_order_release); }

void enable_foreign(bool on) {
  t_is_foreign = on;
  switch_hook();
}

}  // namespace lockstep::tracer
