#include "dynamic/kernels/kernel_choice.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "dynamic/vm/allocator.h"

namespace lockstep::dynamic {
namespace {

// Takes the ways until one is settled; `cost` says what each takes.
int settle(KernelChoice& choice, uint32_t allowed, const std::map<int, uint64_t>& cost, int* calls = nullptr) {
  for (int call = 1; call < 100; ++call) {
    const int way = choice.pick(allowed);
    EXPECT_TRUE((allowed | 1) >> way & 1);
    if (!choice.note(way, cost.at(way))) continue;
    if (calls) *calls = call;
    return choice.settled_way();
  }
  ADD_FAILURE() << "never settled";
  return -1;
}

TEST(KernelChoice, TakesTheFastestOfThoseAllowed) {
  const std::map<int, uint64_t> cost{{0, 100}, {1, 50}, {2, 20}, {3, 70}};
  KernelChoice all, some;
  int calls = 0;
  EXPECT_EQ(settle(all, 0b1111, cost, &calls), 2);
  EXPECT_EQ(calls, 8);  // each way twice
  EXPECT_EQ(settle(some, 0b1010, cost), 1);
}

TEST(KernelChoice, MeasuresThoseThatAreNearEachOtherMoreOften) {
  KernelChoice choice;
  int calls = 0;
  EXPECT_EQ(settle(choice, 0b111, {{0, 100}, {1, 50}, {2, 45}}, &calls), 2);
  EXPECT_EQ(calls, 2 + 4 + 4);
}

// Each way six times, those within a factor of two and a half twelve times: some of these find the cores free.
TEST(KernelChoice, MeasuresMoreOftenWhereItIsDisturbed) {
  const std::map<int, double> cost{{0, 100}, {1, 49}, {2, 30}};
  KernelChoice choice;
  std::map<int, int> calls;
  for (;;) {
    const int way = choice.pick(0b111);
    const bool is_free = ++calls[way] == 5;
    if (choice.note(way, is_free ? cost.at(way) : 200, 0, /*disturbed=*/calls[0] == 1)) break;
  }
  EXPECT_EQ(choice.settled_way(), 2);
  EXPECT_EQ(calls[0], 6);
  EXPECT_EQ(calls[1], 12);
  EXPECT_EQ(calls[2], 12);
}

TEST(KernelChoice, KeepsEagersWayWhereTheOtherHardlyPays) {
  KernelChoice choice;
  EXPECT_EQ(settle(choice, 0b11, {{0, 100}, {1, 98}}), 0);
}

TEST(KernelChoice, TheFirstMeasurementMayPayForPreparations) {
  KernelChoice choice;
  int calls[2] = {0, 0};
  for (;;) {
    const int way = choice.pick(0b11);
    const bool first = calls[way]++ == 0;
    if (choice.note(way, way == 1 ? (first ? 1000 : 10) : 100)) break;
  }
  EXPECT_EQ(choice.settled_way(), 1);
}

TEST(KernelChoice, ASettledWayThatIsNotAllowedNowIsNotTaken) {
  KernelChoice choice(2);
  EXPECT_EQ(choice.pick(0b111), 2);
  EXPECT_EQ(choice.pick(0b011), 0);
}

void spin(uint64_t ticks) {
  for (const uint64_t end = __rdtsc() + ticks; __rdtsc() < end;) continue;
}

TEST(KernelChoice, WhatASlowerWayTookLongerIsPreparation) {
  setenv("LOCKSTEP_CACHE", "", 1);
  forget_choices();
  constexpr uint64_t kFast = 1000000, kSlow = 4000000;
  const auto call = [&] { run_chosen({77}, 0b11, 1, [](int way) { spin(way == 0 ? kFast : kSlow); }); };
  const uint64_t before = preparation_ticks.load();
  call();
  EXPECT_GE(preparation_ticks.load(), before + kFast) << "how fast the others are is not known yet";
  int calls = 1;
  for (; choice_for({77}).settled_way() < 0; ++calls) {
    ASSERT_LT(calls, 30);
    call();
  }
  const uint64_t settled = preparation_ticks.load();
  call();
  EXPECT_EQ(preparation_ticks.load(), settled);
}

TEST(KernelChoice, OfAWayNoSlowerThanTheOthersNothingIsLost) {
  KernelChoice choice;
  EXPECT_EQ(choice.lost_share(100), 1);
  choice.pick(0b11);
  choice.note(0, 100);
  EXPECT_EQ(choice.lost_share(80), 0);
  EXPECT_EQ(choice.lost_share(200), 0.5);
}

TEST(KernelChoice, AWayMayHaveAHandicap) {
  setenv("LOCKSTEP_CACHE", "", 1);
  forget_choices();
  const auto wait = [](int way) { spin(way == 0 ? 200000 : 150000); };
  for (int call = 0; call < 20; ++call)
    run_chosen({79}, 0b11, 1, [](int way) { return way == 1 ? 3.0 : 1.0; }, needs_nothing, [](int) {}, wait);
  EXPECT_EQ(choice_for({79}).settled_way(), 0);
}

TEST(KernelChoice, AWayThatIsCrowdedWaitsAndIsGivenUpInTheEnd) {
  KernelChoice late, never;
  for (int call = 0; call < 4; ++call) {
    EXPECT_EQ(late.pick(0b11, 0b10), 0);
    EXPECT_FALSE(late.note(0, 100));
  }
  EXPECT_EQ(late.pick(0b11), 1);
  late.note(1, 50);
  EXPECT_EQ(late.pick(0b11), 1);
  EXPECT_TRUE(late.note(1, 50));
  EXPECT_EQ(late.settled_way(), 1);

  EXPECT_EQ(never.pick(0b11), 0);
  EXPECT_FALSE(never.note(0, 100));
  EXPECT_EQ(never.pick(0b11), 1);
  EXPECT_FALSE(never.note(1, 50)) << "the first measurement of each";
  int calls = 0;
  do EXPECT_EQ(never.pick(0b11, 0b10), 0);
  while (!never.note(0, 100) && ++calls < 100);
  EXPECT_EQ(never.settled_way(), 0) << "it was faster, but there is never room for it";
}

TEST(KernelChoice, WhileThePeakRisesNoWayIsGivenUp) {
  KernelChoice rising, standing;
  for (size_t call = 1; call <= 50; ++call) {
    EXPECT_EQ(rising.pick(0b11, 0b10, call), 0);
    EXPECT_FALSE(rising.note(0, 100));
  }
  EXPECT_EQ(rising.pick(0b11, 0, 50), 1);
  int calls = 0;
  do EXPECT_EQ(standing.pick(0b11, 0b10, 50), 0);
  while (!standing.note(0, 100) && ++calls < 50);
  EXPECT_LT(calls, 50);
  EXPECT_EQ(standing.settled_way(), 0);
}

TEST(KernelChoice, WhereEagersWayIsCrowdedAnotherIsTaken) {
  KernelChoice choice;
  for (int call = 0; call < 2; ++call) {
    EXPECT_EQ(choice.pick(0b111, 0b001), 1);
    EXPECT_FALSE(choice.note(1, 200));
    EXPECT_EQ(choice.pick(0b111, 0b001), 2);
    EXPECT_FALSE(choice.note(2, 100));
  }
  EXPECT_EQ(choice.pick(0b111, 0b001), 2) << "the fastest of those that were measured";
  bool is_settled = choice.note(2, 100);
  for (int call = 0; call < 20 && !is_settled; ++call) {
    EXPECT_EQ(choice.pick(0b111, 0b001), 2);
    is_settled = choice.note(2, 100);
  }
  EXPECT_EQ(choice.settled_way(), 2);
}

// But by as much as the caller allows.
TEST(KernelChoice, ThePeakOfMemoryMayRiseAsFarAsIsSaid) {
  setenv("LOCKSTEP_CACHE", "", 1);
  forget_choices();
  const auto room = room_for_trials().room;
  for (const int64_t number : {82, 83}) {
    int tries = 0;
    const auto estimate = [&](int way, size_t) { return way == 0 ? size_t{0} : room + (1 << 20); };
    for (int call = 0; call < 30; ++call)
      run_chosen({number}, 0b11, 1, [](int) { return 1.0; }, estimate, [](int) {}, [&](int way) { tries += way; },
                 /*rise=*/number == 82 ? (1 << 20) - 1 : 1 << 20);
    EXPECT_EQ(tries > 0, number == 83);
  }
}

TEST(KernelChoice, SaysWhatTheNextRunNeeds) {
  setenv("LOCKSTEP_CACHE", "", 1);
  forget_choices();
  const Problem problem{84};
  const auto bytes = [&](uint32_t allowed) {
    return bytes_to_run(problem, allowed, [](int way, size_t of_eager) { return of_eager + 1000 - 100 * way; });
  };
  EXPECT_EQ(bytes(0b001), 1000);
  EXPECT_EQ(bytes(0b011), 900);   // which way is not known: the least
  EXPECT_EQ(bytes(0b111), 800);
  choice_for(problem).note(0, 1.0, 5000);
  EXPECT_EQ(bytes(0b001), 5000);  // as measured
  EXPECT_EQ(bytes(0b011), 5000);
  choice_for(problem).settle(1);
  EXPECT_EQ(bytes(0b111), 5900);
  EXPECT_EQ(bytes(0b101), 5000);  // that way is not there
  forced_way = 2;
  EXPECT_EQ(bytes(0b111), 5800);
  forced_way = -1;
}

// What is asked for beyond the highest level of the pool is too much.
TEST(KernelChoice, WaysThatNeedMoreMemoryThanThereIsAreNotTried) {
  setenv("LOCKSTEP_CACHE", "", 1);
  forget_choices();
  constexpr size_t kMost = 64 << 20;
  auto& pool = Pool::instance();
  const auto take = [&](size_t bytes) {
    void* block = pool.allocate(bytes);
    ASSERT_NE(block, nullptr);
    pool.deallocate(block);
  };
  pool.reset_peak();
  take(kMost);
  int tries[3] = {};
  const auto run = [&](int way) {
    ++tries[way];
    take(way == 0 ? kMost / 2 : way == 1 ? kMost / 4 : 2 * kMost);
  };
  const auto estimate = [&](int way, size_t of_eager) {
    EXPECT_EQ(of_eager, way == 0 || tries[0] == 0 ? 0 : kMost / 2);
    return way == 0 ? 0 : way == 1 ? kMost / 4 : 2 * kMost;
  };
  for (int call = 0; call < 30; ++call)
    run_chosen({80}, 0b111, 1, [](int) { return 1.0; }, estimate, [](int) {}, run);
  EXPECT_GE(choice_for({80}).settled_way(), 0);
  EXPECT_GT(tries[1], 0);
  EXPECT_EQ(tries[2], 0);
  EXPECT_EQ(choice_for({80}).bytes_of(1), kMost / 4);
  EXPECT_EQ(pool.statistics().peak_used_bytes, kMost + pool.statistics().used_bytes);
}

TEST(KernelChoice, SizesThatGoFromCallToCallAreTakenRoughly) {
  for (const int64_t exact : {0, 1, 2, 5, 7}) EXPECT_EQ(rough_size(exact), exact);
  EXPECT_EQ(rough_size(896), 896);
  EXPECT_EQ(rough_size(1023), 896);
  EXPECT_EQ(rough_size(1024), 1024);
  EXPECT_EQ(rough_size(1151), 1024);
  EXPECT_EQ(rough_size(1280), 1280);
}

TEST(KernelChoice, WhatVariesInSizeIsComparedByWork) {
  setenv("LOCKSTEP_CACHE", "", 1);
  forget_choices();
  auto& choice = choice_for({78});
  choice.pick(0b11);
  EXPECT_FALSE(choice.note(0, 100.0 / 1));
  EXPECT_FALSE(choice.note(0, 200.0 / 2));
  EXPECT_FALSE(choice.note(1, 120.0 / 2));
  EXPECT_TRUE(choice.note(1, 60.0 / 1));
  EXPECT_EQ(choice.settled_way(), 1);
}

struct OnDisk : testing::Test {
  std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "lockstep-choices";
  void SetUp() override {
    std::filesystem::remove_all(folder);
    setenv("LOCKSTEP_CACHE", folder.c_str(), 1);
    forget_choices();
  }
  void TearDown() override {
    std::filesystem::remove_all(folder);
    unsetenv("LOCKSTEP_CACHE");
    forget_choices();
  }
};

TEST_F(OnDisk, IsRememberedForLaterProcesses) {
  const Problem problem{1, 2, 3}, other{1, 2, 4};
  EXPECT_EQ(choice_for(problem).settled_way(), -1);
  remember_choice(problem, 3);
  forget_choices();
  EXPECT_EQ(choice_for(problem).settled_way(), 3);
  EXPECT_EQ(choice_for(other).settled_way(), -1);
}

TEST_F(OnDisk, BrokenLinesAndOtherMachinesArePassedOver) {
  remember_choice({7, 8}, 1);
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    std::ofstream(entry.path(), std::ios::app) << "nonsense\nothermachine 2 7 9\n\x01\x02 3\nothermachine 99 1\n";
  remember_choice({7, 10}, 2);
  forget_choices();
  EXPECT_EQ(choice_for({7, 8}).settled_way(), 1);
  EXPECT_EQ(choice_for({7, 9}).settled_way(), -1);
  EXPECT_EQ(choice_for({7, 10}).settled_way(), 2);
}

TEST_F(OnDisk, AFolderThatCannotBeWrittenIsNoError) {
  setenv("LOCKSTEP_CACHE", "/proc/no/such/folder", 1);
  remember_choice({1}, 1);
  forget_choices();
  EXPECT_EQ(choice_for({1}).settled_way(), -1);
}

}  // namespace
}  // namespace lockstep::dynamic
