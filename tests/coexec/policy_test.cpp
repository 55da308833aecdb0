#include "coexec/policy.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <tuple>
#include <utility>

namespace lockstep::coexec {
namespace {

// Warm-up, then each way twice: three calls that count, after two that do not where the way has changed. Enough where
// a way takes half as long as the others.
constexpr int kCallsOfAPass = 8 * 3 + 7 * 2;
// Before: one that begins, and a glance, with a call of each way twice, after one that does not count where it changed.
constexpr int kCallsOfAGlance = 1 + 8 + 8 - 1;
constexpr int kCallsOfWarmUp = kCallsOfAGlance + 5;
constexpr int kCallsToChoose = kCallsOfWarmUp + kCallsOfAPass;
constexpr int kCallsWhereUnclear = kCallsOfWarmUp + 6 * kCallsOfAPass;

// Calls the policy `calls` times with the time that `seconds(way, call)` says.
void run(Policy& policy, int calls, const std::function<double(Way, int)>& seconds) {
  for (int call = 0; call < calls; ++call) {
    const Way way = policy.choose();
    policy.note(way, seconds(way, call), CallKind::kTypical);
  }
}

std::function<double(Way, int)> fixed(double behind, double in_place, double eager, double yielding = 2) {
  return [=](Way way, int) {
    const double seconds[kWayCount] = {behind, in_place, eager, yielding};
    return seconds[static_cast<int>(way)];
  };
}

TEST(Policy, TakesTheFastestWay) {
  for (int fastest = 0; fastest < kWayCount; ++fastest) {
    Policy policy;
    run(policy, kCallsToChoose, fixed(fastest == 0 ? 1 : 2, fastest == 1 ? 1 : 2, fastest == 2 ? 1 : 2, fastest == 3 ? 1 : 2));
    ASSERT_TRUE(policy.figures().is_settled);
    EXPECT_EQ(policy.choose(), static_cast<Way>(fastest));
    EXPECT_DOUBLE_EQ(policy.figures().seconds[fastest], 1);
  }
}

TEST(Policy, RunsBehindUntilItHasMeasuredAllWays) {
  Policy policy;
  run(policy, kCallsToChoose - 1, fixed(2.5, 2, 1));
  EXPECT_FALSE(policy.figures().is_settled);
  run(policy, 1, fixed(2.5, 2, 1));
  EXPECT_TRUE(policy.figures().is_settled);
}

TEST(Policy, RunsEagerlyWhatHasNothingToGain) {
  Policy policy;
  policy.note(policy.choose(), 1, CallKind::kRecorded);
  for (int call = 0; call < 3; ++call) {
    EXPECT_FALSE(policy.figures().is_settled);
    EXPECT_NE(policy.choose(), Way::kEager);
    policy.note(policy.choose(), 1, CallKind::kPointless);
  }
  EXPECT_TRUE(policy.figures().is_settled && policy.figures().is_pointless);
  int others = 0;
  for (int call = 0; call < 10000; ++call) {
    const Way way = policy.choose();
    others += way != Way::kEager;
    policy.note(way, way == Way::kEager ? 1 : 1.2, way == Way::kEager ? CallKind::kTypical : CallKind::kPointless);
  }
  EXPECT_GT(others, 0) << "it is looked at now and then";
  EXPECT_LT(others, 20);
  EXPECT_EQ(policy.figures().measurements, 0);
}

TEST(Policy, MeasuresWhatHadNothingToGainAndNowMay) {
  Policy policy;
  for (int call = 0; call < 3; ++call) policy.note(policy.choose(), 1, CallKind::kPointless);
  ASSERT_TRUE(policy.figures().is_pointless);
  run(policy, 3000, fixed(1, 2, 3));
  EXPECT_FALSE(policy.figures().is_pointless);
  EXPECT_EQ(policy.choose(), Way::kBehind);
  for (int call = 0; call < 2; ++call) policy.note(Way::kBehind, 1, CallKind::kPointless);
  run(policy, 1, fixed(1, 2, 3));
  policy.note(Way::kBehind, 1, CallKind::kPointless);
  EXPECT_EQ(policy.choose(), Way::kBehind) << "only several in a row say so";
}

TEST(Policy, RunsNothingBehindWhereThereIsOneCore) {
  for (const auto& [in_place, eager, way] : {std::tuple(2.0, 3.0, Way::kInPlace), std::tuple(3.0, 2.0, Way::kEager)}) {
    Policy policy(/*may_run_behind=*/false);
    policy.guess(1e-9);
    for (int call = 0; call < kCallsWhereUnclear; ++call) {
      ASSERT_NE(policy.choose(), Way::kBehind);
      ASSERT_NE(policy.choose(), Way::kYielding);
      policy.note(policy.choose(), policy.choose() == Way::kInPlace ? in_place : eager, CallKind::kTypical);
    }
    ASSERT_TRUE(policy.figures().is_settled);
    EXPECT_EQ(policy.choose(), way);
    EXPECT_EQ(policy.figures().seconds, (std::array<double, kWayCount>{0, in_place, eager, 0}));
  }
}

TEST(Policy, BeginsAsTheSizeOfTheOpsSuggests) {
  for (const auto& [seconds_an_op, way] : {std::pair(5e-6, Way::kYielding), std::pair(80e-6, Way::kBehind)}) {
    Policy policy;
    policy.guess(seconds_an_op);
    EXPECT_EQ(policy.choose(), way);
    run(policy, kCallsToChoose, fixed(2, 1, 2));
    EXPECT_EQ(policy.choose(), Way::kInPlace);  // measurements say otherwise
  }
}

TEST(Policy, CallsThatAlternateInWorkAreMetByEachWayAlike) {
  for (int period : {2, 3}) {
    for (int offset = 0; offset < period; ++offset) {
      Policy policy;
      run(policy, kCallsWhereUnclear, [&](Way way, int call) {
        const double work = (call + offset) % period == 0 ? 20.0 : 0.1;
        return work * (way == Way::kBehind ? 1 : way == Way::kInPlace ? 1.2 : 1.5);
      });
      EXPECT_EQ(policy.choose(), Way::kBehind) << period << ' ' << offset;
    }
  }
}

TEST(Policy, AMachineThatGetsSlowerOrFasterFavoursNoWay) {
  for (const double drift : {-0.003, 0.003}) {
    Policy policy;
    run(policy, kCallsWhereUnclear, [&](Way way, int call) {
      return (way == Way::kInPlace ? 0.95 : 1.0) * (1 + drift * call);
    });
    EXPECT_EQ(policy.choose(), Way::kInPlace);
  }
}

// What two ways take when they differ by less than calls do.
double scatter(int call) {
  const double turn = 0.618034 * (call - kCallsOfAGlance);
  return 0.8 + 0.4 * (turn - std::floor(turn));
}

TEST(Policy, MeasuresLongerWhereCallsScatter) {
  Policy policy;
  const auto nearly_equal = [](Way way, int call) { return scatter(call) * (way == Way::kEager ? 1.01 : 1.0); };
  run(policy, kCallsWhereUnclear - 1, nearly_equal);
  EXPECT_FALSE(policy.figures().is_settled);
  run(policy, 1, nearly_equal);
  EXPECT_TRUE(policy.figures().is_settled);
}

TEST(Policy, CallsThatScatterByThemselvesAreNotMeasuredForEver) {
  const auto ragged = [](Way way, int call) {
    const double work = 1 + 0.8 * std::sin(12.9898 * call * call);  // by no pattern
    return work * (way == Way::kEager ? 1.5 : way == Way::kInPlace ? 1.01 : 1.0);
  };
  Policy policy;
  run(policy, kCallsOfWarmUp + 3 * kCallsOfAPass, ragged);
  ASSERT_TRUE(policy.figures().is_settled);
  EXPECT_NE(policy.choose(), Way::kEager);
}

TEST(Policy, CoExecutesWhereEagerIsNotClearlyFaster) {
  Policy policy;
  run(policy, kCallsWhereUnclear, fixed(1, 1.2, 0.985));
  EXPECT_EQ(policy.figures().way, Way::kBehind);
  Policy other;
  run(other, kCallsWhereUnclear, fixed(1, 1.2, 0.975));
  EXPECT_EQ(other.figures().way, Way::kEager);
}

TEST(Policy, MeasuresNoFurtherWhatIsClearlySlower) {
  Policy policy;
  int behind = 0;
  run(policy, kCallsWhereUnclear, [&](Way way, int call) {
    behind += way == Way::kBehind;
    return way == Way::kBehind || way == Way::kYielding ? 2.5 : scatter(call) * (way == Way::kEager ? 1.02 : 1.0);
  });
  EXPECT_EQ(behind, 1 + (1 + 2 * 1) + (2 + 2 * 3));  // the first, and two rounds in the middle of the glance and of a pass
  EXPECT_EQ(policy.figures().way, Way::kInPlace);
}

// Parallel loops are rare, and Python wants the core that the workers wait on.
TEST(Policy, TakesWorkersThatYieldWhereTheyPay) {
  Policy policy;
  run(policy, kCallsToChoose, fixed(1.8, 1.1, 1, 0.85));
  run(policy, kCallsOfAPass, fixed(1.8, 1.1, 1, 0.85));
  EXPECT_TRUE(policy.figures().is_settled);
  EXPECT_EQ(policy.choose(), Way::kYielding);
}

// The system moves threads that share a core apart, in time; a short call is over long before.
TEST(Policy, ShortCallsCountOnceThreadsHaveTheirCores) {
  Policy policy;
  Way last = Way::kBehind;
  double since_change = 0;
  run(policy, 20000, [&](Way way, int) {
    if (std::exchange(last, way) != way) since_change = 0;
    const double seconds = (way == Way::kYielding ? 0.0004 : 0.0006) * (since_change < 0.02 && way != Way::kEager ? 3 : 1);
    since_change += seconds;
    return seconds;
  });
  EXPECT_EQ(policy.figures().way, Way::kYielding);
  EXPECT_NEAR(policy.figures().seconds[static_cast<int>(Way::kYielding)], 0.0004, 1e-6);
}

TEST(Policy, OneLongPauseDecidesNothing) {
  Policy policy;
  run(policy, kCallsToChoose + kCallsOfAPass, [](Way way, int call) {
    if (call == kCallsOfWarmUp + 3) return 50.0;  // while the first way was measured
    return way == Way::kBehind ? 1.0 : 1.5;
  });
  EXPECT_EQ(policy.choose(), Way::kBehind);
}

TEST(Policy, AMachineThatIsSlowForAWhileDecidesNothing) {
  for (int begin = kCallsOfWarmUp; begin < kCallsOfWarmUp + 2 * kCallsOfAPass; ++begin) {
    Policy policy;
    run(policy, kCallsWhereUnclear, [&](Way way, int call) {
      const double speed = call >= begin && call < begin + 10 ? 1.3 : 1.0;
      return scatter(call) * speed * (way == Way::kEager ? 1.0 : 1.08);
    });
    EXPECT_EQ(policy.choose(), Way::kEager) << begin;
  }
}

TEST(Policy, KeepsItsWayUnlessAnotherIsClearlyFaster) {
  Policy policy;
  run(policy, kCallsToChoose, fixed(1, 2, 2));
  run(policy, 4000, fixed(1, 0.985, 2));
  EXPECT_GT(policy.figures().measurements, 1u);
  EXPECT_EQ(policy.figures().way, Way::kBehind);
  run(policy, 5000, fixed(1, 2, 0.5));
  EXPECT_EQ(policy.figures().way, Way::kEager);
}

// Long before it is measured: the first minute is what one sees first.
TEST(Policy, WarmsUpInTheWayThatAGlanceShowsToBeFastest) {
  for (int fastest = 0; fastest < kWayCount; ++fastest) {
    Policy policy;
    const auto seconds = [&](Way way, int call) {
      return (way == static_cast<Way>(fastest) ? 0.09 : 0.1) * (1 + 0.01 * call);  // and a machine that gets slower
    };
    run(policy, kCallsOfAGlance, seconds);
    EXPECT_FALSE(policy.figures().is_settled);
    for (int call = 0; call < 5; ++call) {
      EXPECT_EQ(policy.choose(), static_cast<Way>(fastest)) << call;
      policy.note(policy.choose(), 0.1, CallKind::kTypical);
    }
  }
}

TEST(Policy, AGlanceAtWaysThatAreAlikeChangesNothing) {
  Policy policy;
  policy.guess(5e-6);
  run(policy, kCallsOfAGlance, fixed(1, 0.97, 1, 1));
  EXPECT_EQ(policy.choose(), Way::kYielding);
}

// Eager takes no part in choosing and compiling kernels, so that it would stay the fastest for as long as it is taken.
TEST(Policy, EagerIsNotTakenAtAGlanceWhileKernelsArePrepared) {
  Policy policy;
  const auto seconds = fixed(3, 2.5, 1, 3);
  int eager = 0, calls = 0;
  for (; calls < 1000 && policy.choose() != Way::kInPlace; ++calls) policy.note(policy.choose(), 3, CallKind::kPrepared);
  for (int call = 0; call < 20; ++call) {
    const Way way = policy.choose();
    eager += way == Way::kEager;
    policy.note(way, seconds(way, call), CallKind::kPrepared);
  }
  EXPECT_EQ(eager, 0);
  EXPECT_EQ(policy.choose(), Way::kInPlace);
}

// Where other programs want the cores, whoever waits awake for a worker is many times slower.
std::function<double(Way, int)> beside_others(bool (*is_busy)(int call)) {
  return [=](Way way, int call) {
    const double quiet[kWayCount] = {0.040, 0.042, 0.060, 0.045}, busy[kWayCount] = {0.5, 0.5, 1.7, 0.09};
    return (is_busy(call) ? busy : quiet)[static_cast<int>(way)];
  };
}

TEST(Policy, GivesUpAtOnceWhatIsManyTimesSlower) {
  Policy policy;
  std::array<int, kWayCount> calls{};
  const auto seconds = beside_others([](int) { return true; });
  run(policy, kCallsToChoose, [&](Way way, int call) {
    if (call >= kCallsOfWarmUp) ++calls[static_cast<int>(way)];
    return seconds(way, call);
  });
  ASSERT_TRUE(policy.figures().is_settled);
  EXPECT_EQ(policy.choose(), Way::kYielding);
  EXPECT_LE(calls[static_cast<int>(Way::kEager)], 2);
  EXPECT_LE(calls[static_cast<int>(Way::kInPlace)], 3);
  EXPECT_LE(calls[static_cast<int>(Way::kBehind)], 3);
  EXPECT_NEAR(policy.figures().seconds[static_cast<int>(Way::kEager)], 1.7, 1e-9);
}

TEST(Policy, MeasuresAgainWhenOtherProgramsBeginAndEnd) {
  Policy policy;
  const auto seconds = beside_others([](int call) { return call >= 400 && call < 700; });
  int call = 0;
  const auto go_on = [&](int calls) { run(policy, calls, [&](Way way, int) { return seconds(way, call++); }); };
  go_on(400);
  ASSERT_EQ(policy.choose(), Way::kBehind);
  go_on(100);
  EXPECT_EQ(policy.choose(), Way::kYielding);
  go_on(400);
  EXPECT_EQ(policy.choose(), Way::kBehind);
}

TEST(Policy, WorkThatComesAndGoesIsSoonMeasuredLess) {
  Policy policy;
  int elsewhere = 0;
  const int calls = 20000;
  run(policy, calls, [&](Way way, int call) {
    elsewhere += way != Way::kBehind;
    return (call / 300 % 2 ? 0.3 : 0.1) * (way == Way::kBehind ? 1 : 1.5);
  });
  EXPECT_EQ(policy.figures().way, Way::kBehind);
  EXPECT_LT(elsewhere, calls / 20);
}

TEST(Policy, MeasuringCostsLessThanAHundredthOfTheTime) {
  Policy policy;
  double taken = 0;
  int calls = 0;
  const auto count = [&](Way way, int) {
    const double seconds = way == Way::kBehind ? 2.0 : way == Way::kEager ? 1.0 : 1.6;
    taken += seconds;
    ++calls;
    return seconds;
  };
  run(policy, kCallsToChoose, count);
  ASSERT_EQ(policy.choose(), Way::kEager);
  taken = calls = 0;
  run(policy, 8000, count);
  EXPECT_GT(policy.figures().measurements, 2u);
  EXPECT_LT(taken, 1.01 * calls);
}

// Short ones are measured in thousands, for the system needs its time to move threads apart.
TEST(Policy, MeasuringShortCallsCostsAsLittle) {
  Policy policy;
  double taken = 0;
  const auto count = [&](Way way, int) {
    const double seconds = way == Way::kEager ? 0.0004 : 0.0008;
    taken += seconds;
    return seconds;
  };
  run(policy, 4000, count);
  ASSERT_TRUE(policy.figures().is_settled);
  ASSERT_EQ(policy.choose(), Way::kEager);
  taken = 0;
  constexpr int kCalls = 400000;
  run(policy, kCalls, count);
  EXPECT_GT(policy.figures().measurements, 1u);
  EXPECT_LT(taken, 1.015 * 0.0004 * kCalls);
}

TEST(Policy, AnAdoptedWayIsKeptForLongAndThenMeasured) {
  Policy policy;
  run(policy, 1, fixed(1, 1, 1));
  policy.adopt(Way::kInPlace);
  EXPECT_TRUE(policy.figures().is_settled);
  int others = 0;
  run(policy, 1000, [&](Way way, int) {
    others += way != Way::kInPlace;
    return 1.0;
  });
  EXPECT_EQ(others, 0);
  EXPECT_EQ(policy.figures().measurements, 0u);
  run(policy, 200, fixed(2, 2, 1));
  EXPECT_EQ(policy.figures().measurements, 1u);
  EXPECT_EQ(policy.choose(), Way::kEager);
}

TEST(Policy, AnAdoptedWayStaysWhereNoOtherIsClearlyFaster) {
  Policy policy;
  policy.adopt(Way::kEager);
  run(policy, 1200, fixed(0.985, 0.99, 1));
  EXPECT_EQ(policy.figures().measurements, 1u);
  EXPECT_EQ(policy.choose(), Way::kEager);
}

TEST(Policy, AFunctionThatKnowsNoTypicalCallsIsMeasuredByOthers) {
  Policy policy;
  for (int call = 0; call < 200; ++call) {
    const Way way = policy.choose();
    policy.note(way, way == Way::kEager ? 1 : 2, way == Way::kEager ? CallKind::kTypical : CallKind::kPrepared);
  }
  EXPECT_TRUE(policy.figures().is_settled);
  EXPECT_EQ(policy.choose(), Way::kEager);
}

TEST(Policy, RecordedCallsAreNotMeasured) {
  Policy policy;
  for (int call = 0; call < 30; ++call) policy.note(policy.choose(), 1, CallKind::kRecorded);
  EXPECT_FALSE(policy.figures().is_settled);
  run(policy, kCallsToChoose, fixed(1, 2, 3));
  EXPECT_TRUE(policy.figures().is_settled);
}

// The same, with the time between calls that `gap(way, call)` says after a call of that way.
void run_with_gaps(Policy& policy, int calls, const std::function<double(Way, int)>& seconds,
                   const std::function<double(Way, int)>& gap) {
  Way last = policy.choose();
  for (int call = 0; call < calls; ++call) {
    const Way way = policy.choose();
    policy.note(way, seconds(way, call), CallKind::kTypical, gap(std::exchange(last, way), call));
  }
}

TEST(Policy, WhatAWayAddsBetweenCallsCounts) {
  Policy policy;
  run_with_gaps(policy, kCallsWhereUnclear, fixed(1, 1.1, 1.3, 1), fixed(0.9, 0.2, 0.2, 0.6));
  ASSERT_TRUE(policy.figures().is_settled);
  EXPECT_EQ(policy.choose(), Way::kInPlace);
  EXPECT_TRUE(policy.figures().rests_on_gaps);
  EXPECT_NEAR(policy.figures().seconds[static_cast<int>(Way::kBehind)], 1.7, 1e-9);
  EXPECT_NEAR(policy.figures().seconds[static_cast<int>(Way::kInPlace)], 1.1, 1e-9);
  EXPECT_NEAR(policy.figures().seconds[static_cast<int>(Way::kYielding)], 1.4, 1e-9);
}

// A pass in which they are longer with one way than with another is worth a second one, and no more.
TEST(Policy, GapsOfASinglePassDecideNothing) {
  Policy policy;
  int call = 0;
  const auto gap = [&call](Way way, int) { return call++ < kCallsToChoose && way == Way::kBehind ? 0.9 : 0.1; };
  run_with_gaps(policy, kCallsToChoose, fixed(1, 1.5, 1.5, 1.5), gap);
  EXPECT_FALSE(policy.figures().is_settled);
  run_with_gaps(policy, kCallsWhereUnclear - kCallsToChoose, fixed(1, 1.5, 1.5, 1.5), gap);
  EXPECT_TRUE(policy.figures().is_settled);
  EXPECT_EQ(policy.choose(), Way::kBehind);
  EXPECT_FALSE(policy.figures().rests_on_gaps);
}

TEST(Policy, GapsThatGrowForAllFavourNoWayThatWasDropped) {
  Policy policy;
  run_with_gaps(policy, kCallsWhereUnclear, fixed(1, 1.25, 1, 1),
                [](Way, int call) { return call < kCallsToChoose ? 0.1 : 1.5; });
  ASSERT_TRUE(policy.figures().is_settled);
  EXPECT_NE(policy.choose(), Way::kInPlace);
}

// However long they are, ten calls here. Those of one way may by chance be longer than those of another.
TEST(Policy, GapsThatScatterHardlyEverDecide) {
  uint32_t state = 1;  // of a linear congruential generator
  constexpr int kTrials = 400;
  int others = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    Policy policy;
    double gap = 0;  // long ones come one after the other
    run_with_gaps(policy, kCallsWhereUnclear, [](Way way, int) { return way == Way::kBehind ? 1 : 1.06; },
                  [&](Way, int) { return gap = 0.8 * gap + 1e-9 * (state = 1664525 * state + 1013904223); });
    EXPECT_TRUE(policy.figures().is_settled);
    others += policy.figures().way != Way::kBehind;
  }
  EXPECT_LE(others, kTrials / 50);
}

TEST(Policy, GapsThatBecomeShorterAreNoReasonToMeasureAgain) {
  Policy policy;
  run_with_gaps(policy, kCallsToChoose + kCallsOfAPass + 2, fixed(1, 2.5, 2.5, 2.5), fixed(0.9, 0, 0, 0));
  ASSERT_TRUE(policy.figures().is_settled);
  ASSERT_EQ(policy.choose(), Way::kBehind);
  run(policy, 200, [](Way way, int) {
    EXPECT_EQ(way, Way::kBehind);
    return 1;
  });
}

}  // namespace
}  // namespace lockstep::coexec
