// The operands of an op, and why it cannot take part: tensors that are not plain dense ones of the CPU.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include "coexec/session.h"

namespace lockstep::coexec {

using graph::ArgKind;
using graph::OpInfo;
using graph::Reason;

namespace {

const c10::DispatchKeySet& plain_keys() {
  static const auto keys = [] {
    c10::impl::ExcludeDispatchKeyGuard no_hook(tracer::kHookKey);
    const c10::InferenceMode normal(false);
    return at::empty({0}).key_set() |
           c10::DispatchKeySet({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});
  }();
  return keys;
}

template <class F>
void each_tensor(const OpInfo& op, at::ArrayRef<c10::IValue> args, F visit) {
  static const at::Tensor undefined;
  for (size_t a = 0; a < args.size(); ++a) {
    const auto& slot = op.args[a];
    if (slot.kind == ArgKind::kTensor) {
      visit(args[a].isTensor() ? args[a].toTensor() : undefined, static_cast<int>(a));
    } else if (slot.kind == ArgKind::kTensorList || slot.kind == ArgKind::kOptionalTensorList) {
      if (args[a].isNone()) continue;
      for (const auto& item : args[a].toListRef())
        visit(item.isTensor() ? item.toTensor() : undefined, static_cast<int>(a));
    }
  }
}

}  // namespace

std::optional<Reason> why_foreign(const at::Tensor& tensor) {
  const auto keys = tensor.key_set();
  if ((keys.raw_repr() & ~plain_keys().raw_repr()) == 0 && keys.has_backend(c10::BackendComponent::CPUBit)) return std::nullopt;
  if (tensor.is_meta()) return Reason::meta_tensor;
  if (keys.has(c10::DispatchKey::Python)) return Reason::tensor_subclass;
  if (keys.has_any(c10::DispatchKeySet({c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper})))
    return Reason::functorch;
  if (tensor.is_sparse() || tensor.is_sparse_csr()) return Reason::sparse_tensor;
  if (tensor.is_quantized()) return Reason::quantized_tensor;
  if (!tensor.is_cpu()) return Reason::foreign_device;
  return Reason::special_tensor;
}

// Which stream and which of several devices of a kind: that is the asking thread's to know.
std::optional<Reason> why_foreign(const OpInfo& op, c10::Device device) {
  if (device.is_cpu() || op.kind != graph::OpKind::kCompute) return std::nullopt;
  return device.is_meta() ? Reason::meta_tensor : Reason::foreign_device;
}

std::optional<Reason> Session::collect_operands(const OpInfo& op, at::ArrayRef<c10::IValue> args) {
  operands_.clear();
  std::optional<Reason> foreign;
  each_tensor(op, args, [&](const at::Tensor& tensor, int argument) {
    if (const auto reason = collect_operand(tensor, argument, op.args[argument].is_written)) foreign = reason;
  });
  nested_.clear();
  if (op.has_nested_tensors) collect_nested(op, args);
  if (op.device_argument >= 0 && !foreign && args[op.device_argument].isDevice())
    foreign = why_foreign(op, args[op.device_argument].toDevice());
  return foreign;
}

std::optional<Reason> Session::collect_operand(const at::Tensor& tensor, int argument, bool is_written) {
  auto& view = operands_.emplace_back();
  view.argument = argument;
  view.is_written = is_written;
  if (!tensor.defined()) return std::nullopt;
  view.tensor = &tensor;
  if (tensor.has_storage()) {
    view.storage = tensor.storage().unsafeGetStorageImpl();
    view.link = link_of(view.storage);
    if (view.link && !at_once_) dynamic::prefetch_to_write(view.link->twin.get());  // its count of references
  }
  return why_foreign(tensor);
}

}  // namespace lockstep::coexec
