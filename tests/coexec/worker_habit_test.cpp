#include "coexec/worker_habit.h"

#include <gtest/gtest.h>

#include <functional>

namespace lockstep::coexec {
namespace {

struct Program {
  double waiting = 0.3;  // share of time
  double awake = 1e5, asleep = 1e5;  // events a second
};

// Notes of calls of `seconds` each; returns how many of them ran with workers asleep.
int run(WorkerHabit& habit, int calls, const Program& program, double seconds = 0.1) {
  int slept = 0;
  for (int i = 0; i < calls; ++i) {
    slept += habit.sleeps();
    const double rate = habit.sleeps() ? program.asleep : program.awake;
    habit.note(seconds, seconds * program.waiting, static_cast<uint64_t>(seconds * rate));
  }
  return slept;
}

TEST(WorkerHabit, WorkersSleepWhereThatIsFaster) {
  WorkerHabit habit;
  EXPECT_FALSE(habit.sleeps());
  run(habit, 50, {.awake = 1e5, .asleep = 1.2e5});
  EXPECT_TRUE(habit.sleeps());
  EXPECT_FALSE(habit.is_trying());
  EXPECT_NEAR(habit.gain(), 1.2, 1e-9);
}

TEST(WorkerHabit, WorkersStayAwakeWhereThatIsAsFast) {
  for (const double asleep : {0.5e5, 1.02e5}) {
    WorkerHabit habit;
    EXPECT_GT(run(habit, 50, {.asleep = asleep}), 0);
    EXPECT_FALSE(habit.sleeps());
    EXPECT_FALSE(habit.is_trying());
  }
}

TEST(WorkerHabit, NothingIsTriedWherePythonWaitsForKernels) {
  WorkerHabit habit;
  EXPECT_EQ(run(habit, 10000, {.waiting = 0.9, .asleep = 2e5}), 0);
}

TEST(WorkerHabit, OtherProgramsThatBeginAndEndAreMet) {
  WorkerHabit habit;
  const Program quiet{.waiting = 0.9}, busy{.waiting = 0.9, .awake = 1e4, .asleep = 0.5e5};
  EXPECT_EQ(run(habit, 500, quiet), 0);
  run(habit, 60, busy);
  EXPECT_TRUE(habit.sleeps());
  run(habit, 200, busy);
  EXPECT_TRUE(habit.sleeps());
  run(habit, 100, quiet);
  EXPECT_FALSE(habit.sleeps());
}

TEST(WorkerHabit, PhasesOfAProgramAreSoonTriedLess) {
  WorkerHabit habit;
  int slept = 0;
  for (int phase = 0; phase < 100; ++phase)
    slept += run(habit, 200, {.waiting = 0.9, .awake = phase % 2 ? 1e5 : 3e5, .asleep = phase % 2 ? 0.9e5 : 2.7e5});
  EXPECT_FALSE(habit.sleeps());
  EXPECT_LT(slept, 20000 / 50);
}

TEST(WorkerHabit, TrialsAreRare) {
  WorkerHabit habit;
  EXPECT_LT(run(habit, 20000, {.asleep = 0.5e5}), 200);
}

TEST(WorkerHabit, ProgramsThatChangeAreMetAgain) {
  WorkerHabit habit;
  run(habit, 50, {.asleep = 2e5});
  ASSERT_TRUE(habit.sleeps());
  run(habit, 2000, {.asleep = 0.5e5});
  EXPECT_FALSE(habit.sleeps());
}

TEST(WorkerHabit, WhatIsAdoptedIsTriedLater) {
  WorkerHabit habit;
  habit.adopt(true);
  EXPECT_EQ(run(habit, 5000, {.asleep = 0.5e5}), 5000);
  EXPECT_EQ(habit.trials(), 0);
  run(habit, 10000, {.asleep = 0.5e5});
  EXPECT_FALSE(habit.sleeps());
}

TEST(WorkerHabit, ShortCallsCountTogether) {
  WorkerHabit habit;
  run(habit, 4000, {.asleep = 2e5}, /*seconds=*/0.0005);
  EXPECT_TRUE(habit.sleeps());
}

// A machine that becomes twice as slow and fast again.
TEST(WorkerHabit, WhatTheMachineDoesMeanwhileDecidesNothing) {
  for (int period = 3; period < 40; ++period) {
    WorkerHabit habit;
    for (int call = 0; call < 60 || habit.is_trying(); ++call) {
      const double slow = call / period % 2 ? 2.0 : 1.0;
      run(habit, 1, {.awake = 1e5 / slow, .asleep = 3e5 / slow});
    }
    EXPECT_TRUE(habit.sleeps()) << period;
  }
}

}  // namespace
}  // namespace lockstep::coexec
