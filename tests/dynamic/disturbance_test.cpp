#include "dynamic/threads/disturbance.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace lockstep::dynamic {
namespace {

constexpr uint64_t kMillisecond = 1000000;

TEST(DisturbanceMeter, SaysWhatShareOfItsTimeAThreadWaited) {
  DisturbanceMeter meter;
  EXPECT_FALSE(meter.update({100 * kMillisecond, 90 * kMillisecond})) << "what was before is not known";
  EXPECT_FALSE(meter.update({110 * kMillisecond, 91 * kMillisecond}));
  EXPECT_TRUE(meter.update({116 * kMillisecond, 95 * kMillisecond}));
  EXPECT_TRUE(meter.update({118 * kMillisecond, 95 * kMillisecond})) << "too little time to say anything else";
  EXPECT_FALSE(meter.update({126 * kMillisecond, 95 * kMillisecond}));
}

TEST(DisturbanceMeter, SaysNothingWhereTheSystemDoesNot) {
  DisturbanceMeter meter;
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(meter.update({}));
}

void spin_for(std::chrono::milliseconds time) {
  for (const auto end = std::chrono::steady_clock::now() + time; std::chrono::steady_clock::now() < end;) continue;
}

// Three threads on one core.
TEST(Disturbance, IsSeenBesideBusyThreads) {
  if (times_of_this_thread().running == 0) GTEST_SKIP() << "the system does not say";
  cpu_set_t before, one;
  ASSERT_EQ(pthread_getaffinity_np(pthread_self(), sizeof before, &before), 0);
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  ASSERT_EQ(pthread_setaffinity_np(pthread_self(), sizeof one, &one), 0);
  std::atomic<bool> is_over{false};
  std::vector<std::thread> busy;
  for (int i = 0; i < 2; ++i)
    busy.emplace_back([&] {
      while (!is_over) continue;
    });
  bool is_seen = false;
  for (int i = 0; i < 100 && !is_seen; ++i) {
    spin_for(std::chrono::milliseconds(10));
    is_seen = is_disturbed();
  }
  is_over = true;
  for (auto& thread : busy) thread.join();
  ASSERT_EQ(pthread_setaffinity_np(pthread_self(), sizeof before, &before), 0);
  EXPECT_TRUE(is_seen);
}

}  // namespace
}  // namespace lockstep::dynamic
