#include "coexec/way_memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "coexec/session.h"
#include "tests/support/test_host.h"
#include "tests/support/test_ops.h"

namespace lockstep::coexec {
namespace {

using support::at_line;
using support::Call;

// Forgets what is in memory, and remembers in a folder of its own.
class WayMemory : public testing::Test {
 protected:
  WayMemory() {
    folder_ = testing::TempDir() + "lockstep-ways-XXXXXX";
    mkdtemp(folder_.data());
    setenv("LOCKSTEP_CACHE", folder_.c_str(), 1);
    dynamic::forget_choices();
  }
  ~WayMemory() override { std::filesystem::remove_all(folder_); }

 private:
  std::string folder_;
};

// A function that adds up tensors of `size` elements `ops` times.
dynamic::Problem problem_of_sum(int64_t size, int ops, bool is_strict = true, bool adapts_workers = false) {
  Function function;
  function.adapts_workers = adapts_workers;
  function.is_strict = is_strict;
  const auto x = at::ones({size});
  Call call(function);
  auto sum = x;
  for (int i = 0; i < ops; ++i) {
    at_line(i + 1);
    sum = sum.add(x);
  }
  call.end();
  return way_problem(function);
}

TEST_F(WayMemory, FunctionsLikeEachOtherAreOneProblem) {
  EXPECT_EQ(problem_of_sum(1000, 3), problem_of_sum(1000, 3));
  EXPECT_EQ(problem_of_sum(1000, 3), problem_of_sum(1010, 3));  // roughly
}

TEST_F(WayMemory, OtherOpsSizesOrOptionsAreAnother) {
  const auto problem = problem_of_sum(1000, 3);
  EXPECT_NE(problem_of_sum(1000, 4), problem);
  EXPECT_NE(problem_of_sum(100000, 3), problem);
  EXPECT_NE(problem_of_sum(1000, 3, /*is_strict=*/false), problem);
  EXPECT_NE(problem_of_sum(1000, 3, /*is_strict=*/true, /*adapts_workers=*/true), problem);
}

TEST_F(WayMemory, IsEmptyAtFirst) { EXPECT_FALSE(remembered_way(problem_of_sum(10, 1)).has_value()); }

TEST_F(WayMemory, KnowsTheLatestChoiceInThisProcessAndInLaterOnes) {
  const auto problem = problem_of_sum(10, 2);
  remember_way(problem, Way::kEager);
  EXPECT_EQ(remembered_way(problem), Way::kEager);
  remember_way(problem, Way::kInPlace);
  EXPECT_EQ(remembered_way(problem), Way::kInPlace);
  dynamic::forget_choices();  // as a new process
  EXPECT_EQ(remembered_way(problem), Way::kInPlace);
}

}  // namespace
}  // namespace lockstep::coexec
