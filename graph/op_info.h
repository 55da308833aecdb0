// What one operator does to the world: the effects table. Filled from schema and tags, corrected in effects_table.cpp
// where schemas do not tell the truth.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::graph {

enum class OpKind : uint8_t {
  kPass,         // bookkeeping (profiler): not an event
  kComposite,    // made of other ops, which come past the hook themselves
  kView,         // returns aliases of its input, reads and writes no data
  kMetadata,     // changes sizes or strides of its input in place, no data
  kHostMeta,     // returns host values that depend on metadata alone
  kHost,         // returns host values that depend on data
  kAllocate,     // returns memory without contents: at once, since code above the hook may fill it by pointer
  kEager,        // moves storages about: runs alone, everything else at rest
  kCompute,      // reads and writes tensors
};

enum class ArgKind : uint8_t {
  kTensor,
  kTensorList,
  kOptionalTensorList,
  kNestedTensors,  // in lists of lists, dicts, tuples: their ops run eagerly
  kScalar,
  kGenerator,
  kConstant,
};
// Nodes keep what was asked with first.
inline bool is_constant(ArgKind kind) { return kind == ArgKind::kConstant || kind == ArgKind::kScalar; }

struct ArgSlot {
  ArgKind kind = ArgKind::kConstant;
  bool is_written = false;
  bool holds_numbers = false;  // a constant: a list of them, of any type each
};

struct ReturnSlot {
  bool is_list = false;
  bool is_tensor = true;
  int alias_arg = -1;  // the argument that comes back, or -1 for a fresh value
};

// When the values of the operands may make the kernel raise.
enum class ValueCheck : uint8_t {
  kNone,
  kAlways,       // nobody can tell beforehand
  kIntegerOnly,  // only where no operand is floating (division by zero)
  kNumber,       // a tensor's number, the last operand, that the type of the first may not hold
  kIndex,        // indices out of range
  kClassLabel,   // labels out of range
  kProbability,  // a scalar outside of [0, 1]
};

struct OpInfo {
  c10::OperatorHandle handle;
  std::string name;  // with overload: aten::add.Tensor
  std::string base;  // without: aten::add
  OpKind kind = OpKind::kCompute;
  std::vector<ArgSlot> args;
  std::vector<ReturnSlot> returns;
  bool draws = false;               // takes random numbers from a generator
  bool dynamic_shape = false;       // output sizes depend on data
  bool bool_index_is_dynamic = false;
  bool puts_by_index = false;       // writes where indices or truth values say
  bool layout_from_scalars = true;  // scalar values may decide output layouts
  bool is_pointwise = false;
  bool is_foreign = false;  // of a namespace whose effects are not audited
  bool moves_values = false;        // gives values of its operands, or their places: nothing is rounded
  bool reads_layouts_alone = false; // of its operands: their values may be pending
  bool returns_out = false;         // an out= variant: may resize what it writes
  bool writes = false;              // some argument is written
  bool has_nested_tensors = false;  // in some argument
  int device_argument = -1;         // says on which device; or none does
  int alpha_argument = -1;          // a factor of another operand; or there is none
  bool may_warn = false;
  bool asks_for_threads = false;    // which of PyTorch's kernels runs, and so the layout, may depend on how many there are
  ValueCheck value_check = ValueCheck::kNone;
  mutable std::atomic<bool> python_kernel{false};  // implemented in Python: runs on the leading thread

  explicit OpInfo(const c10::OperatorHandle& op);
};

// The entry of an op; made at first use, lives for ever.
const OpInfo& op_info(const c10::OperatorHandle& op);
// Held where entries are looked up that this thread has not met. For who forks.
std::mutex& op_registry_mutex();
// By full name, for parsed graphs; null where the dispatcher does not know it.
const OpInfo* find_op_info(std::string_view full_name);
// From now on this op has a kernel in Python (torch.library). No effect for an unknown name.
void note_python_kernel(std::string_view full_name);
// Corrections to what schema and tags say (effects_table.cpp).
void correct_effects(OpInfo& info);

}  // namespace lockstep::graph
