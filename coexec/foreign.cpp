// What the graph cannot hold: tensors that are not plain dense ones of the CPU, and ops that make such.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include "coexec/session.h"

namespace lockstep::coexec {

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
std::optional<Reason> why_foreign(const graph::OpInfo& op, c10::Device device) {
  if (device.is_cpu() || op.kind != graph::OpKind::kCompute) return std::nullopt;
  return device.is_meta() ? Reason::meta_tensor : Reason::foreign_device;
}

}  // namespace lockstep::coexec
