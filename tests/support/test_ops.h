// Ops made for tests, in the namespace that the effects table trusts. What they do is set from outside, so that a test
// decides what the graph runner meets behind the leading thread.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::support {

// aten::_lockstep_gate(Tensor self) -> Tensor: a copy, made once the gate is open.
at::Tensor gate(const at::Tensor& self);
void close_gate();
void open_gate();

// aten::_lockstep_fuse(Tensor self) -> Tensor: a copy; throws "the fuse has blown" while blown.
at::Tensor fuse(const at::Tensor& self);
void blow_fuse(bool on);

// aten::_lockstep_other_layout(Tensor self) -> Tensor: a transposed copy in the memory order given from outside.
at::Tensor other_layout(const at::Tensor& self);
void choose_layout(bool contiguous);

// Keeps the gate closed; opens it at the end at the latest, so that a failing test does not hang.
class ClosedGate {
 public:
  ClosedGate() { close_gate(); }
  ~ClosedGate() { open_gate(); }
};

class BlownFuse {
 public:
  BlownFuse() { blow_fuse(true); }
  ~BlownFuse() { blow_fuse(false); }
};

}  // namespace lockstep::support
