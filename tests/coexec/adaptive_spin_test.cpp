#include "coexec/adaptive_spin.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace lockstep::coexec {
namespace {

class AdaptiveSpinTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (dynamic::has_one_core()) GTEST_SKIP() << "with one core nobody stays awake";
  }
  AdaptiveSpin spin_{20e-6, 300e-6};
};

TEST_F(AdaptiveSpinTest, SitsOutWaitsAsShortAsTheLastOnes) {
  spin_.note(150e-6);
  EXPECT_GT(spin_.limit(), 150e-6);
  spin_.note(10e-6);  // shorter ones change nothing
  EXPECT_GT(spin_.limit(), 150e-6);
}

TEST_F(AdaptiveSpinTest, NeverStaysAwakeForLongerThanItMay) {
  spin_.note(290e-6);
  EXPECT_DOUBLE_EQ(spin_.limit(), 300e-6);
}

TEST_F(AdaptiveSpinTest, SleepsSoonWhereWaitsAreLong) {
  spin_.note(290e-6);
  for (int wait = 0; wait < 20; ++wait) spin_.note(1e-3);
  EXPECT_DOUBLE_EQ(spin_.limit(), 20e-6);
}

TEST_F(AdaptiveSpinTest, LongWaitsAmongShortOnesDoNotEndIt) {
  for (int cycle = 0; cycle < 50; ++cycle) {
    spin_.note(5e-3);
    EXPECT_LT(spin_.limit(), 250e-6);
    for (int wait = 0; wait < 4; ++wait) spin_.note(100e-6);
    EXPECT_GE(spin_.limit(), 150e-6);
  }
}

TEST_F(AdaptiveSpinTest, SaysWhetherWhatItWaitsForCame) {
  EXPECT_FALSE(spin_.wait([] { return false; }));
  std::atomic<bool> came{false};
  std::thread other([&] { came = true; });
  while (!spin_.wait([&] { return came.load(); })) spin_.woke();
  other.join();
  EXPECT_TRUE(came);
}

}  // namespace
}  // namespace lockstep::coexec
