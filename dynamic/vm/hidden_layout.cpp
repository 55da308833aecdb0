#include "dynamic/vm/hidden_layout.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "dynamic/kernels/map_order.h"
#include "dynamic/threads/shared_loop.h"
#include "dynamic/vm/executor.h"

namespace lockstep::dynamic {

namespace {

constexpr int64_t kGrainBytes = 64 << 10;  // a thread

std::atomic<int64_t> live_maps{0};

// Map by map in its own memory, where there are several: a copy of all of them could be what a step's peak comes from.
void turn_in_place(char* maps, int64_t item_bytes, int64_t count, int64_t rows, int64_t columns, bool in_parallel) {
  const int64_t bytes = rows * columns * item_bytes;
  const auto scratch = c10::GetCPUAllocator()->allocate((in_parallel ? loop_threads() : 1) * bytes);
  const auto turn = [&](int64_t begin, int64_t end) {
    char* copy = static_cast<char*>(scratch.get()) + (in_parallel ? number_in_loop() : 0) * bytes;
    for (int64_t map = begin; map < end; ++map) {
      std::memcpy(copy, maps + map * bytes, bytes);
      turn_matrices(copy, maps + map * bytes, item_bytes, 1, rows, columns, /*in_parallel=*/false);
    }
  };
  if (!in_parallel) return turn(0, count);
  shared_loop(0, count, std::max<int64_t>(1, kGrainBytes / bytes), turn);
}

struct HiddenMap final : HiddenForm {
  HiddenMap(c10::DataPtr memory, at::IntArrayRef s) : memory(std::move(memory)), sizes{s[0], s[1], s[2], s[3]} {
    live_maps.fetch_add(1, std::memory_order_relaxed);
    hidden_layout_statistics.hidden.fetch_add(1, std::memory_order_relaxed);
  }
  ~HiddenMap() override { live_maps.fetch_sub(1, std::memory_order_release); }

  c10::DataPtr restored(const c10::StorageImpl& storage, bool in_parallel) override {
    const auto& [n, c, h, w] = sizes;
    const int64_t item_bytes = static_cast<int64_t>(storage.nbytes()) / (n * c * h * w);
    hidden_layout_statistics.restored.fetch_add(1, std::memory_order_relaxed);
    if (n > 1) {
      turn_in_place(static_cast<char*>(memory.get()), item_bytes, n, h * w, c, in_parallel);
      return std::move(memory);
    }
    auto turned = c10::GetCPUAllocator()->allocate(storage.nbytes());
    turn_matrices(memory.get(), turned.get(), item_bytes, n, h * w, c, in_parallel);
    return turned;
  }

  c10::DataPtr memory;
  std::array<int64_t, 4> sizes;
};

}  // namespace

HiddenLayoutStatistics hidden_layout_statistics;

bool some_maps_are_hidden() { return live_maps.load(std::memory_order_acquire) > 0; }

bool is_hidden_map(const c10::StorageImpl& storage) { return hidden_as<HiddenMap>(storage); }

bool is_hidden_map(const c10::StorageImpl& storage, const graph::Layout& layout, int64_t offset) {
  const auto* map = hidden_as<HiddenMap>(storage);
  return map && is_whole_map(layout, offset, static_cast<int64_t>(storage.nbytes())) &&
         at::IntArrayRef(layout.sizes) == map->sizes;
}

void hide_map(c10::StorageImpl& storage, c10::DataPtr memory, at::IntArrayRef sizes) {
  hide(storage, std::make_unique<HiddenMap>(std::move(memory), sizes));
}

void* hidden_memory(const c10::StorageImpl& storage) { return hidden_as<HiddenMap>(storage)->memory.get(); }

at::Tensor hidden_tensor(const c10::StorageImpl& storage, const graph::Layout& layout) {
  auto borrowed = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), storage.nbytes(),
      c10::DataPtr(hidden_memory(storage), c10::Device(c10::DeviceType::CPU)), nullptr, /*resizable=*/false);
  auto order = layout;
  order.strides = innermost_strides(layout.sizes);
  return tensor_over(std::move(borrowed), order, 0);
}

}  // namespace lockstep::dynamic
