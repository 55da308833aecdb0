#include "dynamic/vm/hidden_storage.h"

#include <new>
#include <utility>

#include "dynamic/vm/allocator.h"

namespace lockstep::dynamic {

namespace {

std::atomic<int64_t> live{0};  // hidden storages

std::shared_mutex& mutex() {
  static auto* instance = new std::shared_mutex;
  return *instance;
}

void drop(void* context) {
  delete static_cast<HiddenForm*>(context);
  live.fetch_sub(1, std::memory_order_release);
}

void restore(c10::StorageImpl& storage, bool in_parallel) {
  HiddenForm* form = hidden_form(storage);
  if (!form) return;
  const PoolScope pool;
  storage.set_data_ptr_noswap(form->restored(storage, in_parallel));
}

}  // namespace

bool some_are_hidden() { return live.load(std::memory_order_acquire) > 0; }

bool is_hidden(const c10::StorageImpl& storage) { return storage.data_ptr().get_deleter() == &drop; }

void hide(c10::StorageImpl& storage, std::unique_ptr<HiddenForm> form) {
  live.fetch_add(1, std::memory_order_relaxed);
  storage.set_data_ptr_noswap({nullptr, form.release(), &drop, c10::Device(c10::DeviceType::CPU)});
}

HiddenForm* hidden_form(const c10::StorageImpl& storage) {
  return is_hidden(storage) ? static_cast<HiddenForm*>(storage.data_ptr().get_context()) : nullptr;
}

void restore(c10::StorageImpl& storage) { restore(storage, /*in_parallel=*/true); }

HiddenStorageReader::HiddenStorageReader() {
  if (dynamic::some_are_hidden()) lock_ = std::shared_lock(mutex());
}

void renew_hidden_storage_lock() { new (&mutex()) std::shared_mutex; }

void restore_from_outside(c10::StorageImpl& storage) {
  if (!some_are_hidden()) return;
  const std::unique_lock lock(mutex());
  restore(storage, /*in_parallel=*/false);
}

}  // namespace lockstep::dynamic
