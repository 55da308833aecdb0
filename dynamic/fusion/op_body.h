// How one op is written into the body of a fused kernel. One row an op in op_bodies.cpp.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "dynamic/jit/kernel_spec.h"
#include "dynamic/vm/event.h"

namespace lockstep::dynamic {

std::optional<jit::DType> jit_type(c10::ScalarType type);
// Of a floating type: its largest number, and whether one is not beyond it.
double largest_of(jit::DType type);
bool fits(double number, jit::DType type);

// A scalar that is given at each run: a scalar argument, a number that the argument parser wrapped into a tensor, one
// that follows from the sizes, or what the bits of a mask stand for.
struct ScalarUse {
  int event = 0;
  int argument = -1;  // of the op
  int operand = -1;   // or of the event
  jit::DType type = jit::DType::kFloat32;
  double number = 0;  // where it is neither
  jit::DType range = type;  // one that does not fit is left to PyTorch's kernel
  int mask = -1;            // or of the mask that is this buffer of the group
};

// What a row sees of its op. Reading an operand gives its value as the ops before it in the group left it.
class OpBody {
 public:
  using Value = jit::ValueId;
  using Read = std::function<Value(int operand)>;
  using Write = std::function<void(int operand_or_result, bool is_result, Value value)>;
  using UseScalar = std::function<Value(ScalarUse)>;
  // `written`: the operand that the op writes, or -1; `target`: the layout of that, or of its first result; `folded`: the
  // dim that it folds, or -1.
  OpBody(const Event& event, int index, int written, const graph::Layout& target, int folded, jit::KernelSpec& spec,
         Read read, Write write, UseScalar use_scalar)
      : event_(event), index_(index), written_(written), target_(target), folded_(folded), spec_(spec),
        read_(std::move(read)), write_(std::move(write)), use_scalar_(std::move(use_scalar)) {}

  jit::KernelSpec& spec() { return spec_; }
  // The type that the op computes in: of its result, or of its first operand where the result is a truth value; float32
  // for bfloat16.
  jit::DType type() const;
  bool is_floating() const { return jit::is_floating(type()); }
  // Tensor argument number i of those that are tensors, in the type that is computed in.
  Value in(int operand);
  Value in_own_type(int operand);
  bool is_given(int operand) const { return event_.signature->inputs[operand].is_defined(); }
  // Scalar argument of the op by its position in the schema, in the type that is computed in.
  Value scalar(int argument);
  // The argument itself: what the key of the kernel knows (constants; scalars that the row calls static).
  const c10::IValue& argument(int position) const { return event_.args[position]; }
  // A scalar argument that the row calls static, as a number of the call.
  Value static_scalar(int argument);
  Value number(double value) { return spec_.constant(type(), value); }
  // A number that follows from the sizes, or from an argument that the plan is made for: not a part of the kernel, which
  // serves all of them.
  Value number_of_call(double value) { return use_scalar_({index_, -1, -1, type(), value}); }
  // How many elements the op iterates over.
  double element_count() const { return static_cast<double>(target_.numel()); }

  Value unary(jit::Op op, Value a) { return spec_.unary(op, a); }
  Value binary(jit::Op op, Value a, Value b) { return spec_.binary(op, a, b); }
  Value add(Value a, Value b) { return binary(jit::Op::k_add, a, b); }
  Value sub(Value a, Value b) { return binary(jit::Op::k_sub, a, b); }
  Value mul(Value a, Value b) { return binary(jit::Op::k_mul, a, b); }
  Value div(Value a, Value b) { return binary(jit::Op::k_div, a, b); }
  // a * b + c, rounded once where the type is floating
  Value multiply_add(Value a, Value b, Value c) { return is_floating() ? spec_.fma(a, b, c) : add(mul(a, b), c); }
  Value where(Value condition, Value yes, Value no) { return spec_.where(condition, yes, no); }
  // Along the row that the op folds, which is the innermost dim.
  Value sum_of_row(Value value) { return fold(jit::ReduceKind::kSum, value); }
  Value largest_of_row(Value value) { return fold(jit::ReduceKind::kMax, value); }
  Value largest_number_of_row(Value value) { return fold(jit::ReduceKind::kMaxNumber, value); }  // passes over nans
  Value place_in_row() { return spec_.index(static_cast<int>(spec_.sizes.size()) - 1); }  // int64
  double row_size() const { return static_cast<double>(target_.sizes[folded_]); }

  // The op's result: a fresh one, or the operand that it writes.
  void finish(Value value) { finish(0, value); }
  // One of several.
  void finish(int result, Value value);

 private:
  jit::DType common_type() const;  // before bfloat16 became float32
  bool rounds_operand(int operand) const;
  bool rounds_arguments() const;
  Value rounded(Value value);
  Value fold(jit::ReduceKind kind, Value value) {
    return spec_.reduce(kind, value, {static_cast<int>(spec_.sizes.size()) - 1});
  }

  const Event& event_;
  int index_, written_;
  const graph::Layout& target_;
  int folded_;
  jit::KernelSpec& spec_;
  Read read_;
  Write write_;
  UseScalar use_scalar_;
};

struct OpRow {
  void (*lower)(OpBody& body);
  std::vector<int> scalars;  // arguments that are scalars given at each run
  std::vector<int> statics;  // scalar arguments whose value the kernel is made for
  bool (*accepts)(const Event& event) = nullptr;  // beyond what holds for all rows
  int (*folds)(const Event& event) = nullptr;     // the dim along which it adds up or compares; null: pointwise
  std::vector<int> by_row = {};                   // operands of rank 1 that have one value for each row that is folded
  jit::Total total = jit::Total::kNone;  // of all rows: what the results hold from `first_total` on
  size_t first_total = 0;                // 0: the op iterates over its first operand
  bool (*takes_numbers)(const Event& event) = nullptr;  // of this call; those that PyTorch's kernel refuses go there
  int reduction = -1;  // the argument that says whether results are totals, and which (at::Reduction); -1: `total` does
  bool gives_rows = false;  // one value for each row of its first operand, which it iterates over
};
inline constexpr int64_t kShortestRow = 8;  // that is folded: worth a vector

using OpRows = std::unordered_map<std::string_view, OpRow>;

// Without its namespace; out of place.
std::string name_of_row(const graph::OpInfo& op);
// Null where the op is not written down.
const OpRow* find_op_row(const graph::OpInfo& op);
// The same for one call: which dims are reduced may decide.
const OpRow* find_op_row(const Event& event);
// What the results of this call hold.
jit::Total total_of(const OpRow& row, const Event& event);
bool has_pointwise_body(const graph::OpInfo& op);
// Whether one element comes out with the same bits from a kernel of ours and from PyTorch's: it is no matter which runs.
bool rounds_as_eager(const graph::OpInfo& op);
bool rounds_as_eager(const graph::OpInfo& op, const graph::Signature& signature);  // in this call

}  // namespace lockstep::dynamic
