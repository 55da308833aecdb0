// The hook: every ATen op that reaches the backends on a thread where it is switched on comes here first. It is a boxed
// fallback on a dispatch key below autograd that nobody else uses (kHookKey is the one place that names it).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKey.h>

namespace lockstep::tracer {

constexpr c10::DispatchKey kHookKey = c10::DispatchKey::Fake;

// Who listens on a thread. `on_op` replaces the arguments on the stack by the results.
class OpSink {
 public:
  virtual ~OpSink() = default;
  virtual void on_op(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) = 0;
};

// Listens on this thread; with null, the hook is as it was before.
void listen(OpSink* sink);
OpSink* listener();
// Listens on threads that have the hook on but no listener of their own (autograd's, or foreign ones).
void set_foreign_listener(OpSink* sink);
void enable_foreign(bool on);  // this thread, as a foreign one

// What the hook does with an op whose arguments are boxed: hands it to whoever listens, else lets it pass.
void hand_over(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

}  // namespace lockstep::tracer
