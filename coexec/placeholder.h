// Placeholders: real tensors whose data is still being computed. A storage that takes part in co-execution has two
// halves: the user's StorageImpl, which the leading thread alone changes, and the twin, which belongs to the runner and
// is the handle. The user's half points to the twin through the context of its data pointer (a Link). Use counts of the
// user's tensors and storages stay as in eager, since autograd decides by them.
//
// On a linked storage PyTorch's materializer hook is armed: whoever takes a mutable pointer to the memory past all
// wrapped doors waits first, and from then on the storage is exposed.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "coexec/spin_lock.h"
#include "dynamic/vm/event.h"
#include "dynamic/vm/hidden_layout.h"
#include "dynamic/vm/recycled.h"

namespace lockstep::coexec {

class Session;
using dynamic::StorageRef;

struct Link : dynamic::Recycled<Link> {
  StorageRef twin;
  c10::weak_intrusive_ptr<c10::StorageImpl> user;
  Session* session = nullptr;   // whose events `written` and `read` count; sessions live for ever
  uint64_t written = 0;         // the last event that writes this storage (its number in the session)
  uint64_t read = 0;            // the last event that touches it at all
  std::atomic<bool> is_published{false};  // the user's half has its data pointer; stays so
  std::atomic<int> exposures{0};  // who else may read or write the memory at any time
  uint32_t producer = 0;        // node of the event that made it, in call `call`
  uint16_t output = 0;
  bool may_be_hidden = false;   // a map, until it is published (dynamic/vm/hidden_layout.h)
  uint64_t call = 0;
  int takers = 0;               // threads that wait until they can take it over; under links_lock
  size_t list_index = 0;        // in the session's list of unpublished links

  // Looking at it changes its order: who was asked for before that should find it as it is.
  bool is_perhaps_hidden() const {
    return may_be_hidden && !is_published.load(std::memory_order_acquire) && dynamic::some_maps_are_hidden();
  }
  bool is_exposed() const { return exposures.load(std::memory_order_relaxed) > 0; }

  Link(StorageRef t, const c10::weak_intrusive_ptr<c10::StorageImpl>& u) : twin(std::move(t)), user(u) {}
};

// The link of a storage; null where it has none.
Link* link_of(const c10::StorageImpl* user);
// True where the storage's memory is PyTorch's own, so that nobody outside can know it unless it was given away.
bool owns_plain_memory(const c10::StorageImpl* user);
// A storage that nobody else knows, with what is in this one now.
StorageRef copy_storage(const c10::StorageImpl& storage);
// Gives a storage with plain memory its twin. The data stays where it is.
Link* link_storage(c10::StorageImpl* user);
// The same for memory that nobody has looked at yet: unpublished, so that the runner may fill it in a form of its own.
Link* link_blank(c10::StorageImpl* user);
// A user's storage without data yet, unpublished.
c10::intrusive_ptr<c10::StorageImpl> create_pending_storage(int64_t bytes, StorageRef twin, Link** link);
at::Tensor create_placeholder(c10::intrusive_ptr<c10::StorageImpl> storage, const graph::Layout& layout);
// The user's half gets its data. On any thread, with the data complete.
void publish(Link* link);
void arm(c10::StorageImpl* user);

// Somebody outside can see the memory from now on: until the Exposure is ended, mostly never.
struct Exposure {
  c10::weak_intrusive_ptr<c10::StorageImpl> user;
  const Link* link;
  void end() const;
};
Exposure expose(Link& link);

// Exposures that are noted on this thread while it lives end with it: for entry points that read memory and give nothing
// out.
class ReadingScope {
 public:
  ReadingScope();
  ~ReadingScope();
  ReadingScope(const ReadingScope&) = delete;
  static void note(Exposure exposure);  // for ever where no scope is open

 private:
  std::vector<Exposure> exposures_;
  ReadingScope* outer_;
};

// Guards all links: they die on whichever thread drops the last tensor.
inline constinit RecursiveSpinLock links_lock;

}  // namespace lockstep::coexec
