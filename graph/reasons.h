// Every way to run eagerly has a name and a sentence, here and nowhere else.
#pragma once

#include <cstdint>

namespace lockstep::graph {

#define LOCKSTEP_REASONS(X)                                                                            \
  X(tracing, "the function had not taken this way before: recorded while running eagerly")             \
  X(new_sizes, "sizes that this op had not met, too many in one call to wait for each: recorded again")   \
  X(foreign_device, "a tensor on another device than the CPU")                                         \
  X(meta_tensor, "a tensor on the meta device")                                                        \
  X(sparse_tensor, "a sparse tensor")                                                                  \
  X(quantized_tensor, "a quantized tensor")                                                            \
  X(tensor_subclass, "a tensor subclass with its own dispatch")                                        \
  X(functorch, "a transform of torch.func, or forward-mode automatic differentiation")                 \
  X(special_tensor, "a tensor of another layout (nested, oneDNN, zero tensor)")                        \
  X(moves_storage, "the op gives a tensor another storage or another size")                            \
  X(custom_op, "an op of another namespace than aten: its effects are not known")                      \
  X(python_kernel, "an op implemented in Python")                                                      \
  X(warns, "the kernel warns, which must be seen by the caller")                                       \
  X(resizes_output, "an out= argument of another size")                                                \
  X(foreign_thread, "an op from another thread than the function's")                                   \
  X(interrupted, "code that runs at random places: __del__")                                           \
  X(function_busy, "the function is running in another thread")                                        \
  X(small_stack, "a thread whose stack is too small for co-execution")                                   \
  X(slower, "co-execution measured slower than eager for this function")                               \
  X(switched_off, "when=\"never\" or LOCKSTEP_DISABLE=1")

enum class Reason : uint8_t {
#define X(name, sentence) name,
  LOCKSTEP_REASONS(X)
#undef X
      count_
};
constexpr int kReasonCount = static_cast<int>(Reason::count_);

const char* reason_name(Reason reason);
const char* reason_sentence(Reason reason);

}  // namespace lockstep::graph
