#include "coexec/call_gaps.h"

#include <gtest/gtest.h>

#include <thread>

namespace lockstep::coexec {
namespace {

TEST(CallGaps, AreWhatLiesBetweenCalls) {
  CallGaps gaps;
  EXPECT_EQ(gaps.begin(10), 0);
  gaps.end(11);
  EXPECT_EQ(gaps.begin(14), 3);
  gaps.end(15);
  EXPECT_EQ(gaps.begin(15.5), 0.5);
}

TEST(CallGaps, LeaveOutCallsOfOthers) {
  CallGaps gaps, others;
  gaps.begin(0);
  gaps.end(1);
  others.begin(3);
  others.end(7);
  EXPECT_EQ(gaps.begin(8), 3);  // of seven seconds
  gaps.end(9);
  EXPECT_EQ(others.begin(10), 2);  // of three
}

TEST(CallGaps, CallsWithinCallsCountOnce) {
  CallGaps outer, inner, beside;
  beside.begin(0);
  beside.end(1);
  outer.begin(2);
  inner.begin(3);
  inner.end(4);
  EXPECT_EQ(inner.begin(6), 2);  // the outer call has not ended
  inner.end(7);
  outer.end(8);
  EXPECT_EQ(beside.begin(9), 2);
  EXPECT_EQ(outer.begin(10), 2);
}

TEST(CallGaps, BeginAnewOnEachThread) {
  CallGaps gaps;
  gaps.begin(0);
  gaps.end(1);
  for (int i = 0; i < 2; ++i) {  // the system may give the second one the place of the first
    std::thread([&gaps] {
      EXPECT_EQ(gaps.begin(5), 0);
      gaps.end(6);
      EXPECT_EQ(gaps.begin(8), 2);
      gaps.end(9);
    }).join();
  }
  EXPECT_EQ(gaps.begin(20), 0);
}

}  // namespace
}  // namespace lockstep::coexec
