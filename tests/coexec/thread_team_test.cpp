// Which thread has OpenMP workers while a call runs.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "coexec/session.h"
#include "tests/support/test_host.h"
#include "tests/support/test_ops.h"
#include "tests/support/thread_count.h"

namespace lockstep::coexec {
namespace {

using support::at_line;
using support::Call;
using support::thread_count;

// Workers end a little after they were told to.
bool falls_to(int count) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (thread_count() > count)
    if (std::chrono::steady_clock::now() > end) return false;
  return true;
}

TEST(ThreadTeam, AKernelOnTheLeadingThreadLeavesNoWorkersBehind) {
  support::session();  // makes the host, which asks for one
  at::set_num_threads(2);
  Function function;
  const auto x = at::randn({1 << 20});
  const auto small = at::randn({4, 3, 16, 16});
  std::vector<float> memory(4 * 3 * 8 * 8);
  auto pooled = at::from_blob(memory.data(), {4, 3, 8, 8});
  int seen = 0;  // calls in which both had workers: the runner's end where this thread gets no core for some milliseconds
  for (int i = 0; i < 20 && seen < 3; ++i) {
    Call call(function);
    at_line(1);
    const auto sum = x.add(1).sum();
    at_line(2);
    sum.item<float>();  // the graph runner has its workers
    const int with_runner = thread_count();
    at_line(3);
    at::avg_pool2d_out(pooled, small, {2, 2});  // into memory that others see: computed here, by threads
    const int with_both = thread_count();
    at_line(4);
    const auto result = x.mul(2);
    if (i > 0 && with_both == with_runner + 1) {
      ++seen;
      EXPECT_TRUE(falls_to(with_runner)) << thread_count();
    }
    call.end();
  }
  EXPECT_EQ(seen, 3) << "then this test says nothing";
  at::set_num_threads(1);
}

// With workers of two threads on two cores, libgomp lets those sleep that have nothing to do.
TEST(ThreadTeam, AYieldingCallKeepsTheWorkersOfBothThreads) {
  support::session();
  at::set_num_threads(2);
  Function function;
  const auto x = at::randn({1 << 20});
  const auto threads_of_call = [&](Way way) {
    Call call(function, way);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // until those are gone that were told to end
    at_line(1);
    x.add(1).sum().item<float>();  // the graph runner has its workers
    const int threads = thread_count();
    call.end();
    return threads;
  };
  for (int i = 0; i < 2; ++i) threads_of_call(Way::kBehind);
  for (int i = 0; i < 3; ++i) {
    const int behind = threads_of_call(Way::kBehind);
    EXPECT_EQ(threads_of_call(Way::kYielding), behind + 1);
    EXPECT_EQ(threads_of_call(Way::kYielding), behind + 1);
    EXPECT_EQ(threads_of_call(Way::kBehind), behind);
  }
  at::set_num_threads(1);
}

TEST(ThreadTeam, WhereNobodyMeasuresTheHabitDecides) {
  support::session();
  at::set_num_threads(2);
  Function function;
  function.adapts_workers = true;
  EXPECT_EQ(function.unmeasured_way(), Way::kBehind);
  auto& habit = function.worker_habit;
  do {
    habit.note(1, 0, habit.sleeps() ? 2 : 1);
  } while (habit.gain() == 0);
  EXPECT_EQ(function.unmeasured_way(), Way::kYielding);
  const auto x = at::randn({1 << 20});
  const auto threads_of_call = [&] {
    Call call(function, function.unmeasured_way());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // until those are gone that were told to end
    at_line(1);
    x.add(1).sum().item<float>();
    const int threads = thread_count();
    call.end();
    return threads;
  };
  for (int i = 0; i < 2; ++i) threads_of_call();
  const int asleep = threads_of_call();
  habit = {};
  EXPECT_EQ(threads_of_call(), asleep - 1);
  at::set_num_threads(1);
}

}  // namespace
}  // namespace lockstep::coexec
