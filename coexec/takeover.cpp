// Storages that several threads' calls touch. A link says how far one session uses it; who takes it over waits for that, and
// begins to count anew. The other thread may note one more event at any time: each side stores what it does before it looks at
// what the other one did, so that one of them at least sees the other, and waits.
#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

#include "coexec/session.h"

namespace lockstep::coexec {

// Until nothing of the owner's is pending. While this thread waits, that one may ask for more. False where it is about to,
// for a long time.
bool Session::wait_for(Session& owner, Link& link) {
  constexpr int kMostLooks = 1000;
  for (int i = 0; i < kMostLooks; ++i) {
    if (owner.runner_.channel().is_done(std::atomic_ref(link.read).load())) return true;
    owner.drain_from_other_thread();
    if (i > 0) std::this_thread::yield();
  }
  return false;
}

void Session::take_over(Link& link) {
  for (;;) {
    Session* const owner = std::atomic_ref(link.session).load();
    const bool is_done = !owner || wait_for(*owner, link);
    publish(&link);
    const std::lock_guard lock(links_lock);
    if (std::atomic_ref(link.session).load() != owner) continue;  // a third one was faster
    std::atomic_ref(link.session).store(this);
    if (is_done && owner && !owner->runner_.channel().is_done(std::atomic_ref(link.read).load())) {
      std::atomic_ref(link.session).store(owner);  // it has noted one more, perhaps before it could see this
      continue;
    }
    link.written = link.read = 0;
    link.call = 0;
    return;
  }
}

void Session::note_event(uint64_t number) {
  for (auto& view : operands_) {
    if (view.is_copied || !view.link || view.link->session != this) continue;
    std::atomic_ref(view.link->read).store(number, std::memory_order_relaxed);
    if (view.is_written) std::atomic_ref(view.link->written).store(number, std::memory_order_relaxed);
  }
}

// False where another thread has taken one of them over, before or after it was noted here what is asked.
bool Session::keeps_operands() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  bool keeps = true;
  for (auto& view : operands_) {
    if (view.is_copied || !view.link) continue;
    auto& link = *view.link;
    const Session* const seen = std::atomic_ref(link.session).load();
    if (!seen || seen == this) continue;
    keeps = false;
    const std::lock_guard lock(links_lock);
    if (link.session == this) continue;
    // What was noted here may lie over what that one has noted, for an event that it is about to ask.
    link.read = std::max(link.read, link.session->runner_.channel().asked() + 1);
    link.written = std::max(link.written, link.read);
  }
  return keeps;
}

}  // namespace lockstep::coexec
