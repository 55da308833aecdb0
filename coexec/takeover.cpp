// Storages that several threads' calls touch. A link says how far one session uses it; who takes it over waits until nothing
// of that is pending, and begins to count anew. What is noted and who takes over: both under links_lock, as soon as there are
// several sessions.
#include <mutex>
#include <thread>

#include "coexec/session.h"

namespace lockstep::coexec {

void Session::take_over(Link& link) {
  for (int looks = 0;; ++looks) {
    Session* owner = nullptr;
    {
      const std::lock_guard lock(links_lock);
      owner = link.session;
      if (!owner || owner == this || owner->runner_.channel().is_done(link.read)) {
        if (looks > 0) --link.takers;
        if (owner == this) return;
        publish(&link);
        if (owner) owner->runner_.note_access();
        runner_.note_access();
        link.written = link.read = 0;
        link.call = 0;
        std::atomic_ref(link.session).store(this, std::memory_order_release);  // others look at it without the lock
        return;
      }
      if (looks == 0) ++link.takers;  // from now on its owner waits, too, and does not run ahead
    }
    owner->drain_from_other_thread();
    if (looks > 0) std::this_thread::yield();  // what it has noted it is about to ask
  }
}

// False where another thread has taken one of them over, or is about to.
bool Session::note_event(uint64_t number) {
  std::unique_lock lock(links_lock, std::defer_lock);
  if (has_several.load(std::memory_order_relaxed)) lock.lock();
  bool is_noted = true;
  for (auto& view : operands_) {
    if (view.is_copied || !view.link) continue;
    auto& link = *view.link;
    if (link.session != this) {
      is_noted &= link.session == nullptr;
      continue;
    }
    is_noted &= link.takers == 0;
    link.read = number;
    if (view.is_written) link.written = number;
  }
  return is_noted;
}

}  // namespace lockstep::coexec
