#include "coexec/placeholder.h"

#include <c10/core/CPUAllocator.h>

#include <sys/mman.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "coexec/session.h"
#include "dynamic/vm/allocator.h"
#include "dynamic/vm/executor.h"
#include "dynamic/vm/packed_mask.h"

namespace lockstep::coexec {

namespace {

// The user's storage has died, or was given other memory.
void drop_link(void* context) {
  auto* link = static_cast<Link*>(context);
  {
    std::lock_guard lock(links_lock);
    if (link->session) link->session->forget_locked(link);
  }
  delete link;
}

void materialize(c10::StorageImpl* user) {
  if (Link* link = link_of(user)) Session::on_raw_access(link);
}

c10::DataPtr linked_pointer(void* data, Link* link) {
  return {data, link, &drop_link, c10::Device(c10::DeviceType::CPU)};
}

struct Mapping {
  void* begin;
  size_t bytes;
};

// Of an event that was never executed, since it or an earlier one failed: whoever looks finds memory, of which there is as
// much as he touches. What failed may have been too large.
c10::DataPtr make_zeros(size_t bytes) {
  void* begin = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (begin == MAP_FAILED) return {nullptr, c10::Device(c10::DeviceType::CPU)};
  const auto unmap = [](void* context) {
    const std::unique_ptr<Mapping> mapping(static_cast<Mapping*>(context));
    munmap(mapping->begin, mapping->bytes);
  };
  return {begin, new Mapping{begin, bytes}, unmap, c10::Device(c10::DeviceType::CPU)};
}

}  // namespace

Link* link_of(const c10::StorageImpl* user) {
  const auto& pointer = user->data_ptr();
  if (pointer.get_deleter() != &drop_link) return nullptr;
  if (auto* link = static_cast<Link*>(pointer.get_context())) return link;
  std::lock_guard lock(links_lock);  // another thread publishes it right now
  return static_cast<Link*>(pointer.get_context());
}

bool owns_plain_memory(const c10::StorageImpl* user) {
  static const auto default_deleter = c10::GetDefaultCPUAllocator()->raw_deleter();
  const auto deleter = user->data_ptr().get_deleter();
  if (deleter == default_deleter || deleter == c10::GetCPUAllocator()->raw_deleter()) return true;
  // An empty storage has no memory to share. Where programs are traced, how large it is may be a symbol.
  return user->sym_nbytes().maybe_as_int() == 0 && user->data_ptr().get() == nullptr && !user->has_materializer();
}

// Aligned as that one is: the last bits of a product may depend on it.
StorageRef copy_storage(const c10::StorageImpl& storage) {
  constexpr size_t kAlignment = 64;  // of PyTorch's own memory
  const dynamic::PoolScope pool;
  const size_t bytes = storage.nbytes();
  const auto* from = static_cast<const char*>(storage.data_ptr().get());
  const size_t shift = reinterpret_cast<uintptr_t>(from) % kAlignment;
  auto memory = c10::GetCPUAllocator()->allocate(bytes + shift);
  auto* to = static_cast<char*>(memory.get()) + shift;
  if (bytes > 0) std::memcpy(to, from, bytes);
  const auto deleter = memory.get_deleter();
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes,
      c10::DataPtr(to, memory.release_context(), deleter, c10::DeviceType::CPU), /*allocator=*/nullptr,
      /*resizable=*/false);
}

void arm(c10::StorageImpl* user) {
  if (user->has_materializer()) return;
  std::lock_guard lock(links_lock);  // another thread may use the tensor, too
  if (!user->has_materializer()) user->set_materializer(&materialize);
}

namespace {

// To a twin without memory.
Link* create_link(c10::StorageImpl* user) {
  const auto reference = c10::intrusive_ptr<c10::StorageImpl>::unsafe_reclaim_from_nonowning(user);
  return new Link(dynamic::create_empty_storage(static_cast<int64_t>(user->nbytes())),
                  c10::weak_intrusive_ptr<c10::StorageImpl>(reference));
}

}  // namespace

Link* link_storage(c10::StorageImpl* user) {
  std::lock_guard lock(links_lock);
  if (Link* link = link_of(user)) return link;  // another thread was first
  auto& pointer = user->_mutable_data_ptr_no_checks();
  void* data = pointer.get();
  auto* link = create_link(user);
  link->twin->set_data_ptr_noswap(std::move(pointer));  // leaves `data` readable in the user's half meanwhile
  pointer = linked_pointer(data, link);
  link->is_published = true;
  return link;
}

Link* link_blank(c10::StorageImpl* user) {
  std::lock_guard lock(links_lock);
  auto& pointer = user->_mutable_data_ptr_no_checks();
  auto* link = create_link(user);
  dynamic::leave_blank(*link->twin, std::move(pointer));
  pointer = linked_pointer(nullptr, link);
  user->set_materializer(&materialize);
  return link;
}

c10::intrusive_ptr<c10::StorageImpl> create_pending_storage(int64_t bytes, StorageRef twin, Link** link) {
  auto user = dynamic::create_empty_storage(bytes);
  *link = new Link(std::move(twin), c10::weak_intrusive_ptr<c10::StorageImpl>(user));
  user->set_data_ptr_noswap(linked_pointer(nullptr, *link));
  user->set_materializer(&materialize);
  return user;
}

at::Tensor create_placeholder(c10::intrusive_ptr<c10::StorageImpl> storage, const graph::Layout& layout) {
  return dynamic::tensor_over(std::move(storage), layout, layout.offset);
}

Exposure expose(Link& link) {
  link.exposures.fetch_add(1, std::memory_order_relaxed);
  return {link.user, &link};
}

void Exposure::end() const {
  const auto storage = user.lock();
  Link* now = storage ? link_of(storage.get()) : nullptr;
  if (now && now == link) now->exposures.fetch_sub(1, std::memory_order_relaxed);  // else it was given other memory
}

namespace {
thread_local ReadingScope* t_reading = nullptr;
}

ReadingScope::ReadingScope() : outer_(std::exchange(t_reading, this)) {}

ReadingScope::~ReadingScope() {
  t_reading = outer_;
  for (const auto& exposure : exposures_) exposure.end();
}

void ReadingScope::note(Exposure exposure) {
  if (t_reading) t_reading->exposures_.push_back(std::move(exposure));
}

void publish(Link* link) {
  if (link->is_published.load(std::memory_order_acquire)) return;
  std::lock_guard lock(links_lock);
  if (link->is_published) return;
  auto user = link->user.lock();
  if (!user) return;  // it is dying on another thread
  dynamic::restore_from_outside(*link->twin);
  if (auto& twin = link->twin; !twin->data_ptr().get() && twin->nbytes() > 0) twin->set_data_ptr_noswap(make_zeros(twin->nbytes()));
  auto& pointer = user->_mutable_data_ptr_no_checks();
  pointer.release_context();
  pointer = linked_pointer(link->twin->data_ptr().get(), link);
  link->is_published.store(true, std::memory_order_release);
  if (link->session) link->session->forget_locked(link);
}

}  // namespace lockstep::coexec
