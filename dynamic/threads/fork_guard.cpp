#include "dynamic/threads/fork_guard.h"

#include <pthread.h>

#include <atomic>

namespace lockstep::dynamic {

namespace {

constexpr int kRanks = static_cast<int>(ForkRank::kCount);

struct Guard {
  std::array<ForkLock, kRanks> locks;
  std::array<std::atomic<bool>, kRanks> is_known{};
  std::array<bool, kRanks> is_held{};  // of the thread that forks
};
Guard& guard() {
  static auto* instance = new Guard;
  return *instance;
}

void take_all() {
  auto& all = guard();
  for (int rank = 0; rank < kRanks; ++rank) {
    all.is_held[rank] = all.is_known[rank].load(std::memory_order_acquire);
    if (all.is_held[rank]) all.locks[rank].take(all.locks[rank].lock);
  }
}

void give_all_back(bool in_child) {
  auto& all = guard();
  for (int rank = kRanks - 1; rank >= 0; --rank) {
    if (!all.is_held[rank]) continue;
    const ForkLock& one = all.locks[rank];
    (in_child && one.give_back_in_child ? one.give_back_in_child : one.give_back)(one.lock);
  }
}

}  // namespace

void hold_across_fork(ForkRank rank, ForkLock lock) {
  static const int registered = pthread_atfork(
      &take_all, [] { give_all_back(/*in_child=*/false); }, [] { give_all_back(/*in_child=*/true); });
  static_cast<void>(registered);
  auto& all = guard();
  all.locks[static_cast<int>(rank)] = lock;
  all.is_known[static_cast<int>(rank)].store(true, std::memory_order_release);
}

}  // namespace lockstep::dynamic
