// Locks that nobody holds while the process forks: of the child's threads only the one that forked goes on, and what
// another one held would stay locked there for ever.
#pragma once

#include <array>

namespace lockstep::dynamic {

// In the order in which a thread that needs several takes them.
enum class ForkRank {
  kTeams, kCompiler, kSessions, kShapes, kLinks, kKernels, kChoices, kFigures, kProcessors, kOps, kNodes, kTimeline,
  kMemoryLog, kPool, kCount
};

struct ForkLock {
  void* lock = nullptr;
  void (*take)(void*) = nullptr;
  void (*give_back)(void*) = nullptr;
  void (*give_back_in_child)(void*) = nullptr;  // as in the parent where there is none
};
// For the rest of the process.
void hold_across_fork(ForkRank rank, ForkLock lock);

template <class Lock>
void hold_across_fork(ForkRank rank, Lock& lock) {
  hold_across_fork(rank, ForkLock{&lock, [](void* one) { static_cast<Lock*>(one)->lock(); },
                                  [](void* one) { static_cast<Lock*>(one)->unlock(); }});
}

}  // namespace lockstep::dynamic
