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

TEST(Disturbance, TheSystemSaysHowLongAThreadRan) {
  const auto before = times_of_this_thread();
  if (before.running == 0) GTEST_SKIP() << "it does not";
  auto after = before;
  while (after.running < before.running + kMillisecond) after = times_of_this_thread();
  EXPECT_GE(after.waiting, before.waiting);
}

}  // namespace
}  // namespace lockstep::dynamic
