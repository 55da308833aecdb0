// Maps (samples, channels, height, width) that the runner keeps with their channels innermost where eager has them in
// planes: the memory is in another order than the layouts that everybody knows say.
#pragma once

#include <ATen/core/Tensor.h>

#include "dynamic/kernels/map_order.h"
#include "dynamic/vm/hidden_storage.h"

namespace lockstep::dynamic {

bool some_maps_are_hidden();  // of the whole process
bool is_hidden_map(const c10::StorageImpl& storage);
// Whether this part of a storage is what is hidden: all of it.
bool is_hidden_map(const c10::StorageImpl& storage, const graph::Layout& layout, int64_t offset);
// `memory` holds, or will hold, the values with channels innermost. The storage has no memory yet.
void hide_map(c10::StorageImpl& storage, c10::DataPtr memory, at::IntArrayRef sizes);
void* hidden_memory(const c10::StorageImpl& storage);
// Over the storage's memory, which must outlive it.
at::Tensor hidden_tensor(const c10::StorageImpl& storage, const graph::Layout& layout);

struct HiddenLayoutStatistics {
  std::atomic<uint64_t> hidden{0}, restored{0};
};
extern HiddenLayoutStatistics hidden_layout_statistics;

}  // namespace lockstep::dynamic
