#include "dynamic/vm/hidden_layout.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "dynamic/kernels/map_order.h"
#include "dynamic/threads/shared_loop.h"
#include "dynamic/vm/allocator.h"
#include "dynamic/vm/executor.h"

namespace lockstep::dynamic {

namespace {

constexpr int64_t kGrainBytes = 64 << 10;  // a thread

std::atomic<int64_t> live{0};  // hidden storages

std::shared_mutex& mutex() {
  static auto* instance = new std::shared_mutex;
  return *instance;
}

struct Hidden {
  c10::DataPtr memory;
  std::array<int64_t, 4> sizes;
};

void drop(void* context) {
  delete static_cast<Hidden*>(context);
  live.fetch_sub(1, std::memory_order_release);
}

Hidden& hidden_of(const c10::StorageImpl& storage) { return *static_cast<Hidden*>(storage.data_ptr().get_context()); }

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

// Without any op: the hook must not see it.
void restore(c10::StorageImpl& storage, bool in_parallel) {
  if (!is_hidden(storage)) return;
  const PoolScope pool;
  auto& hidden = hidden_of(storage);
  const auto& [n, c, h, w] = hidden.sizes;
  const int64_t item_bytes = static_cast<int64_t>(storage.nbytes()) / (n * c * h * w);
  c10::DataPtr memory;
  if (n > 1) {
    turn_in_place(static_cast<char*>(hidden.memory.get()), item_bytes, n, h * w, c, in_parallel);
    memory = std::move(hidden.memory);  // hidden itself ends below
  } else {
    memory = c10::GetCPUAllocator()->allocate(storage.nbytes());
    turn_matrices(hidden.memory.get(), memory.get(), item_bytes, n, h * w, c, in_parallel);
  }
  storage.set_data_ptr_noswap(std::move(memory));
  hidden_layout_statistics.restored.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

HiddenLayoutStatistics hidden_layout_statistics;

bool some_are_hidden() { return live.load(std::memory_order_acquire) > 0; }

bool is_hidden(const c10::StorageImpl& storage) { return storage.data_ptr().get_deleter() == &drop; }

bool is_hidden_map(const c10::StorageImpl& storage, const graph::Layout& layout, int64_t offset) {
  return is_hidden(storage) && is_whole_map(layout, offset, static_cast<int64_t>(storage.nbytes())) &&
         at::IntArrayRef(layout.sizes) == hidden_of(storage).sizes;
}

void hide(c10::StorageImpl& storage, c10::DataPtr memory, at::IntArrayRef sizes) {
  auto* hidden = new Hidden{std::move(memory), {sizes[0], sizes[1], sizes[2], sizes[3]}};
  live.fetch_add(1, std::memory_order_relaxed);
  hidden_layout_statistics.hidden.fetch_add(1, std::memory_order_relaxed);
  storage.set_data_ptr_noswap({nullptr, hidden, &drop, c10::Device(c10::DeviceType::CPU)});
}

void* hidden_memory(const c10::StorageImpl& storage) { return hidden_of(storage).memory.get(); }

at::Tensor hidden_tensor(const c10::StorageImpl& storage, const graph::Layout& layout) {
  auto borrowed = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), storage.nbytes(),
      c10::DataPtr(hidden_memory(storage), c10::Device(c10::DeviceType::CPU)), nullptr, /*resizable=*/false);
  auto order = layout;
  order.strides = innermost_strides(layout.sizes);
  return tensor_over(std::move(borrowed), order, 0);
}

void restore(c10::StorageImpl& storage) { restore(storage, /*in_parallel=*/true); }

HiddenLayoutReader::HiddenLayoutReader() {
  if (dynamic::some_are_hidden()) lock_ = std::shared_lock(mutex());
}

void restore_from_outside(c10::StorageImpl& storage) {
  if (!some_are_hidden()) return;
  const std::unique_lock lock(mutex());
  restore(storage, /*in_parallel=*/false);
}

}  // namespace lockstep::dynamic
