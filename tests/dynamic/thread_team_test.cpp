// Teams of threads, and a process that forks while one of them ends.
#include "dynamic/threads/thread_team.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "dynamic/threads/shared_loop.h"

namespace lockstep::dynamic {
namespace {

std::atomic<bool> is_ending{false}, is_forking{false}, has_forked{false}, forked_while_ending{false};

// As a library that gives back what it holds for a thread, under a lock.
struct AtEnd {
  bool is_watched = false;
  ~AtEnd() {
    if (!is_watched) return;
    is_ending = true;
    while (!is_forking) std::this_thread::yield();
    constexpr int kTurns = 100'000;
    for (int turn = 0; turn < kTurns && !has_forked; ++turn) std::this_thread::yield();
    forked_while_ending = has_forked.load();
  }
};
thread_local AtEnd at_end;

TEST(ThreadTeam, AProcessForksWhenWorkersHaveEnded) {
  std::thread leader([] {
    at::set_num_threads(2);
    const auto own = std::this_thread::get_id();
    std::atomic<int> present{0};
    shared_loop(0, 2, 1, [&](int64_t begin, int64_t end) {
      present += static_cast<int>(end - begin);
      while (present < 2) std::this_thread::yield();
      at_end.is_watched = std::this_thread::get_id() != own;
    });
    release_thread_team();
  });
  while (!is_ending) std::this_thread::yield();
  is_forking = true;
  const pid_t child = fork();
  if (child == 0) _exit(0);
  has_forked = true;
  ASSERT_GT(child, 0);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  leader.join();
  at::set_num_threads(1);
  EXPECT_FALSE(forked_while_ending);
}

}  // namespace
}  // namespace lockstep::dynamic
