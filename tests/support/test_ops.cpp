#include "tests/support/test_ops.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/clone.h>
#include <torch/library.h>

#include <atomic>
#include <condition_variable>
#include <mutex>

namespace lockstep::support {

namespace {

std::mutex gate_mutex;
std::condition_variable gate_opened;
bool gate_is_open = true;
std::atomic<bool> is_blown{false};
std::atomic<bool> is_contiguous{true};

at::Tensor copy_of(const at::Tensor& self) {
  return at::clone(self, at::MemoryFormat::Contiguous);
}

at::Tensor gate_kernel(const at::Tensor& self) {
  std::unique_lock lock(gate_mutex);
  gate_opened.wait(lock, [] { return gate_is_open; });
  return copy_of(self);
}

at::Tensor fuse_kernel(const at::Tensor& self) {
  TORCH_CHECK_INDEX(!is_blown.load(), "the fuse has blown");
  return copy_of(self);
}

at::Tensor layout_kernel(const at::Tensor& self) {
  return is_contiguous.load() ? copy_of(self) : copy_of(self.t()).t();
}

at::Tensor call(const char* name, const at::Tensor& self) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(name, "")
      .typed<at::Tensor(const at::Tensor&)>()
      .call(self);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(aten, m) {
  m.def("_lockstep_gate(Tensor self) -> Tensor");
  m.def("_lockstep_fuse(Tensor self) -> Tensor");
  m.def("_lockstep_other_layout(Tensor self) -> Tensor");
}

TORCH_LIBRARY_IMPL(aten, CPU, m) {
  m.impl("_lockstep_gate", TORCH_FN(gate_kernel));
  m.impl("_lockstep_fuse", TORCH_FN(fuse_kernel));
  m.impl("_lockstep_other_layout", TORCH_FN(layout_kernel));
}

at::Tensor gate(const at::Tensor& self) { return call("aten::_lockstep_gate", self); }
at::Tensor fuse(const at::Tensor& self) { return call("aten::_lockstep_fuse", self); }
at::Tensor other_layout(const at::Tensor& self) { return call("aten::_lockstep_other_layout", self); }

void close_gate() {
  std::lock_guard lock(gate_mutex);
  gate_is_open = false;
}
void open_gate() {
  std::lock_guard lock(gate_mutex);
  gate_is_open = true;
  gate_opened.notify_all();
}
void blow_fuse(bool on) { is_blown.store(on); }
void choose_layout(bool contiguous) { is_contiguous.store(contiguous); }

}  // namespace lockstep::support
