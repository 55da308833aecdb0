#include "coexec/value_check.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <optional>

#include "dynamic/shapes/shape_inference.h"

namespace lockstep::coexec {

namespace {

constexpr int64_t kMaxScanned = 1 << 20;  // elements; beyond, waiting is cheaper than looking

template <class T>
bool scan(const at::Tensor& t, int64_t low, int64_t high, int64_t ignored) {
  const T* data = t.const_data_ptr<T>();
  bool fine = true;
  for (int64_t i = 0, n = t.numel(); i < n; ++i)
    fine &= (data[i] >= low && data[i] < high) || data[i] == ignored;
  return fine;
}

bool in_range(const at::Tensor& t, int64_t low, int64_t high, std::optional<int64_t> ignored_label = {}) {
  if (t.numel() > kMaxScanned || !t.is_contiguous()) return false;
  if (t.numel() == 0) return true;
  if (low >= high && !ignored_label) return false;
  const int64_t ignored = ignored_label.value_or(low);  // in range anyway
  if (t.scalar_type() == at::kLong) return scan<int64_t>(t, low, high, ignored);
  if (t.scalar_type() == at::kInt) return scan<int32_t>(t, low, high, ignored);
  return false;
}

int64_t size_at(const at::Tensor& t, int64_t dim) {
  if (t.dim() == 0) return 1;
  return t.size(dim < 0 ? dim + t.dim() : dim);
}

bool advanced_index_in_range(const at::Tensor& self, const c10::IValue& indices) {
  int64_t dim = 0;
  for (const auto& item : indices.toListRef()) {
    if (!item.isTensor() || !item.toTensor().defined()) {
      ++dim;
      continue;
    }
    const auto& index = item.toTensor();
    if (index.scalar_type() == at::kBool || index.scalar_type() == at::kByte || dim >= self.dim()) return false;
    const int64_t size = self.size(dim++);
    if (!in_range(index, -size, size)) return false;
  }
  return true;
}

bool indices_in_range(const std::string& base, at::ArrayRef<c10::IValue> args) {
  const auto& self = args[0].toTensor();
  if (base == "aten::embedding") return in_range(args[1].toTensor(), 0, size_at(self, 0));
  if (base == "aten::take" || base == "aten::put" || base == "aten::put_")
    return in_range(args[1].toTensor(), -self.numel(), self.numel());
  if (base.find("index_put") != std::string::npos || base == "aten::index" || base == "aten::_unsafe_index")
    return args[1].isList() && (dynamic::puts_number_by_mask(args) || advanced_index_in_range(self, args[1]));
  // (self, dim, index, ...)
  if (args.size() > 3 && base.starts_with("aten::index_fill") && args[3].isTensor() && may_not_hold(self, args[3].toTensor()))
    return false;
  if (args.size() > 2 && args[1].isInt() && args[2].isTensor())
    return in_range(args[2].toTensor(), 0, size_at(self, args[1].toInt()));
  return false;
}

bool labels_in_range(const std::string& base, at::ArrayRef<c10::IValue> args) {
  const bool backward = base.find("backward") != std::string::npos;
  const size_t first = backward ? 1 : 0;  // grad_output comes first
  const auto& self = args[first].toTensor();
  const auto& target = args[first + 1].toTensor();
  const int64_t classes = self.dim() == 1 ? self.size(0) : self.size(1);
  return args[first + 4].isInt() && in_range(target, 0, classes, args[first + 4].toInt());
}

bool probabilities_in_range(at::ArrayRef<c10::IValue> args) {
  for (const auto& arg : args)
    if (arg.isDouble() && !(arg.toDouble() >= 0 && arg.toDouble() <= 1)) return false;
  return true;
}

}  // namespace

bool may_not_hold(const at::Tensor& target, const at::Tensor& number) {
  const auto to = target.scalar_type(), from = number.scalar_type();
  if (from == to || from == at::kBool) return false;
  for (const auto type : {to, from})  // PyTorch promotes none of these
    if (c10::isBarebonesUnsignedType(type) || c10::isFloat8Type(type)) return true;
  if (to == at::kHalf || to == at::kComplexHalf) return from != at::kByte && from != at::kChar;  // 65504 is its largest
  return c10::promoteTypes(to, from) != to;
}

bool is_deciding(const graph::OpInfo& op, const at::Tensor& operand) {
  switch (op.value_check) {
    case graph::ValueCheck::kIndex:
    case graph::ValueCheck::kClassLabel:
      return operand.defined() && !operand.is_floating_point() && !operand.is_complex() && operand.scalar_type() != at::kBool;
    default:
      return false;
  }
}

bool values_in_range(const graph::OpInfo& op, at::ArrayRef<c10::IValue> args) {
  switch (op.value_check) {
    case graph::ValueCheck::kNone: return true;
    case graph::ValueCheck::kAlways:
    case graph::ValueCheck::kNumber:
    case graph::ValueCheck::kIntegerOnly: return false;
    case graph::ValueCheck::kIndex: return indices_in_range(op.base, args);
    case graph::ValueCheck::kClassLabel: return labels_in_range(op.base, args);
    case graph::ValueCheck::kProbability: return probabilities_in_range(args);
  }
  return false;
}

}  // namespace lockstep::coexec
