// Masks of dropout as bits. PyTorch makes them of three ops (empty_like, bernoulli_(p), div_(p)), and autograd holds the
// result, a float for each element, until the backward pass. Here the storage stays blank after the first, where the graph
// knows that the second follows; that one draws one bit an element, with the same draws of the generator, the third
// changes what a bit stands for, and fused kernels read the bits. Everybody else finds the floats, which are the same
// whether a mask was packed or not.
#pragma once

#include <ATen/core/Tensor.h>

#include "dynamic/vm/event.h"
#include "dynamic/vm/hidden_storage.h"

namespace lockstep::dynamic {

// Each element is 0 or `value`.
struct PackedMask final : HiddenForm {
  PackedMask(c10::DataPtr b, c10::ScalarType t) : bits(std::move(b)), type(t) {}
  c10::DataPtr restored(const c10::StorageImpl& storage, bool in_parallel) override;

  c10::DataPtr bits;  // element i of the storage is bit i % 8 of byte i / 8
  c10::ScalarType type;
  double value = 1;  // exact in the type
};

inline PackedMask* packed_mask(const c10::StorageImpl& storage) { return hidden_as<PackedMask>(storage); }

// Whether the event does no more to a mask that is packed than to change its value, if that leaves zeros alone. Such an
// event runs by itself.
bool may_change_value(const Event& event);

// bernoulli_(p), and what it draws a mask into: the whole of a storage of floats, and not a small one.
bool draws_mask(const graph::OpInfo& op);
bool may_hold_mask(const graph::Layout& layout);
// `memory`: the storage's, which nobody has looked at.
void leave_blank(c10::StorageImpl& storage, c10::DataPtr memory);

// Ops that are done on masks as they are, in place of their kernels. False: nothing has happened, and the kernel is to be
// called.
bool may_run_packed(const Event& event);
bool try_run_packed(Event& event);  // if it may

struct PackedMaskStatistics {
  std::atomic<uint64_t> drawn{0}, unpacked{0};
};
extern PackedMaskStatistics packed_mask_statistics;

// Floats of their own, for an op that reads the mask and leaves it packed.
at::Tensor unpacked_copy(const c10::StorageImpl& storage, const graph::Layout& layout, int64_t offset);

}  // namespace lockstep::dynamic
