// Maps (samples, channels, height, width) that the runner keeps with their channels innermost where eager has them in
// planes: the memory is in another order than the layouts that everybody knows say. It is hidden in the context of the
// data pointer, so that it ends with the storage or with its memory, and who takes the pointer without asking gets null,
// never other numbers. Nobody outside of the runner meets such a storage: publishing one restores it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <atomic>
#include <mutex>
#include <shared_mutex>

#include "dynamic/kernels/map_order.h"

namespace lockstep::dynamic {

bool some_are_hidden();  // of the whole process
bool is_hidden(const c10::StorageImpl& storage);
// Whether this part of a hidden storage is what is hidden: all of it.
bool is_hidden_map(const c10::StorageImpl& storage, const graph::Layout& layout, int64_t offset);
// `memory` holds, or will hold, the values with channels innermost. The storage has no memory yet.
void hide(c10::StorageImpl& storage, c10::DataPtr memory, at::IntArrayRef sizes);
void* hidden_memory(const c10::StorageImpl& storage);
// Over the storage's memory, which must outlive it.
at::Tensor hidden_tensor(const c10::StorageImpl& storage, const graph::Layout& layout);
// Back to planes, if it is hidden.
void restore(c10::StorageImpl& storage);

struct HiddenLayoutStatistics {
  std::atomic<uint64_t> hidden{0}, restored{0};
};
extern HiddenLayoutStatistics hidden_layout_statistics;

// While events run, only their own thread may restore what they use; others wait. Costs nothing while nothing is hidden.
class HiddenLayoutReader {
 public:
  HiddenLayoutReader();
  bool some_are_hidden() const { return lock_.owns_lock(); }  // perhaps what this event uses

 private:
  std::shared_lock<std::shared_mutex> lock_;
};
// From any thread, between events.
void restore_from_outside(c10::StorageImpl& storage);

}  // namespace lockstep::dynamic
