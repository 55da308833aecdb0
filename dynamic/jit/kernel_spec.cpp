#include "dynamic/jit/kernel_spec.h"

#include <algorithm>
#include <bit>

namespace lockstep::dynamic::jit {

int KernelSpec::add_buffer(DType type, Access access, std::vector<int64_t> strides, bool streaming) {
  buffers.push_back({type, access, std::move(strides), streaming});
  return static_cast<int>(buffers.size()) - 1;
}

int KernelSpec::add_total(DType type, Total total, std::vector<int64_t> strides) {
  buffers.push_back({type, Access::kOut, std::move(strides), false, total});
  return static_cast<int>(buffers.size()) - 1;
}

int KernelSpec::add_packed(std::vector<int64_t> strides) {
  const int buffer = add_buffer(DType::kBool, Access::kIn, std::move(strides));
  buffers[buffer].packed = true;
  return buffer;
}

int KernelSpec::add_scalar(DType type) {
  scalars.push_back(type);
  return static_cast<int>(scalars.size()) - 1;
}

ValueId KernelSpec::append(Instruction instruction) {
  body.push_back(instruction);
  return static_cast<ValueId>(body.size()) - 1;
}

ValueId KernelSpec::load(int buffer) { return append({Op::k_load, buffers[buffer].type, {}, {-1, -1, -1}, buffer}); }

ValueId KernelSpec::scalar(int index) { return append({Op::k_scalar, scalars[index], {}, {-1, -1, -1}, index}); }

ValueId KernelSpec::constant(DType type, double value) {
  int64_t bits = is_floating(type) ? std::bit_cast<int64_t>(value) : static_cast<int64_t>(value);
  return append({Op::k_constant, type, {}, {-1, -1, -1}, bits});
}

ValueId KernelSpec::index(int dim) { return append({Op::k_index, DType::kInt64, {}, {-1, -1, -1}, dim}); }

ValueId KernelSpec::cast(ValueId value, DType type) { return append({Op::k_cast, type, {}, {value, -1, -1}, 0}); }

ValueId KernelSpec::unary(Op op, ValueId value) {
  DType type = row_of(op).op_class == OpClass::kTest || op == Op::k_logical_not ? DType::kBool : type_of(value);
  return append({op, type, {}, {value, -1, -1}, 0});
}

ValueId KernelSpec::binary(Op op, ValueId left, ValueId right) {
  DType type = row_of(op).op_class == OpClass::kCompare ? DType::kBool : type_of(left);
  return append({op, type, {}, {left, right, -1}, 0});
}

ValueId KernelSpec::fma(ValueId a, ValueId b, ValueId c) { return append({Op::k_fma, type_of(a), {}, {a, b, c}, 0}); }

ValueId KernelSpec::where(ValueId condition, ValueId yes, ValueId no) {
  return append({Op::k_where, type_of(yes), {}, {condition, yes, no}, 0});
}

ValueId KernelSpec::reduce(ReduceKind kind, ValueId value, const std::vector<int>& dims) {
  int64_t mask = 0;
  for (int dim : dims) mask |= int64_t{1} << dim;
  return append({Op::k_reduce, type_of(value), kind, {value, -1, -1}, mask});
}

void KernelSpec::store(int buffer, ValueId value) {
  append({Op::k_store, type_of(value), {}, {value, -1, -1}, buffer});
}

int64_t KernelSpec::reduced_mask() const {
  for (const Instruction& instruction : body) {
    if (instruction.op == Op::k_reduce) return instruction.immediate;
  }
  return 0;
}

bool KernelSpec::has_totals() const {
  return std::any_of(buffers.begin(), buffers.end(), [](const Buffer& buffer) { return buffer.total != Total::kNone; });
}

int KernelSpec::innermost() const {
  int dim = static_cast<int>(sizes.size()) - 1;
  while (dim >= 0 && sizes[dim] == 1) --dim;
  return dim;
}

}  // namespace lockstep::dynamic::jit
