#include "dynamic/threads/disturbance.h"

#include <gtest/gtest.h>

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

TEST(DisturbanceMeter, BeginsAnewWhereTimesGoBack) {
  DisturbanceMeter meter;
  meter.update({100 * kMillisecond, 90 * kMillisecond});
  EXPECT_FALSE(meter.update({}));
  EXPECT_FALSE(meter.update({10 * kMillisecond, 1 * kMillisecond}));
  EXPECT_TRUE(meter.update({20 * kMillisecond, 6 * kMillisecond}));
}

TEST(NeighbourMeter, LeavesOutWhatIsTheProcessesOwn) {
  NeighbourMeter meter;
  const auto at = [](uint64_t clock, uint64_t busy, uint64_t own) {
    return ProcessorTimes{busy * kMillisecond, own * kMillisecond, clock * kMillisecond};
  };
  EXPECT_FALSE(meter.update(at(1000, 9000, 500))) << "what was before is not known";
  EXPECT_FALSE(meter.update(at(1200, 9400, 890))) << "both cores are its own";
  EXPECT_TRUE(meter.update(at(1400, 9800, 1090))) << "one of them was another's";
  EXPECT_TRUE(meter.update(at(1450, 9850, 1140))) << "too little time to say anything else";
  EXPECT_FALSE(meter.update(at(1600, 10200, 1490)));
  EXPECT_FALSE(meter.update({})) << "the system says no more";
}

TEST(NeighbourMeter, TheSystemSaysWhatProcessorsDid) {
  const auto before = times_of_processors();
  if (before.clock == 0) GTEST_SKIP() << "it does not";
  auto after = before;
  while (after.own < before.own + 30 * kMillisecond) after = times_of_processors();
  EXPECT_GE(after.busy, before.busy + 10 * kMillisecond);
  EXPECT_GT(after.clock, before.clock);
}

TEST(Disturbance, TheSystemSaysHowLongAThreadRan) {
  const auto before = times_of_this_thread();
  if (before.running == 0) GTEST_SKIP() << "it does not";
  auto after = before;
  while (after.running < before.running + kMillisecond) after = times_of_this_thread();
  EXPECT_GE(after.waiting, before.waiting);
}

}  // namespace
}  // namespace lockstep::dynamic
