// Each case in tests/dynamic/passes/events/ is a program, and what the graph runner does with it: with all passes, and
// without the one that the case is about. Values are compared with PyTorch's.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "coexec/function.h"
#include "dynamic/fusion/kernel_service.h"
#include "dynamic/kernels/kernel_choice.h"
#include "dynamic/passes/spec_passes.h"
#include "tests/support/jit_kernels.h"
#include "tests/support/kernel_report.h"
#include "tests/support/test_host.h"
#include "tests/support/text_cases.h"

namespace lockstep::coexec {
namespace {

using dynamic::Pass;
using dynamic::PassSet;
using support::TextCase;
using support::TextProgram;

// Nothing on disk: kernels are those of this build.
const int no_cache = setenv("LOCKSTEP_CACHE", "", 1);

enum Part { kProgram, kWith, kWithout };
std::vector<TextCase> cases() { return support::read_text_cases(__FILE__, "../dynamic/passes/events", {"with", "without"}); }

struct ForcedWay {
  explicit ForcedWay(int way) { dynamic::forced_way.store(way); }
  ~ForcedWay() { dynamic::forced_way.store(-1); }
};

struct Outcome {
  std::string report;
  TextProgram::Values values;
};

// The third call: it is known then, and its kernels are there.
Outcome run(const TextProgram& program, PassSet passes, const TextProgram::Values& like) {
  Function function;
  function.is_strict = false;
  function.fuses = true;
  function.passes = passes;
  const ForcedWay way(program.way());
  Outcome outcome;
  for (int call = 0; call < 3; ++call) {
    outcome.values = program.create_inputs();
    outcome.report = support::report_call(function, program, outcome.values, like);
    dynamic::KernelService::instance().wait();
  }
  EXPECT_EQ(function.counters.divergences, 0u);
  EXPECT_EQ(function.counters.traced_calls, 1u);
  return outcome;
}

void expect_as_eager(const TextProgram& program, const TextProgram::Values& values, const TextProgram::Values& eager) {
  for (const auto& [name, value] : values) {
    const auto& expected = eager.at(name);
    EXPECT_EQ(value.strides(), expected.strides()) << '%' << name;
    if (program.is_exact(name)) {
      EXPECT_TRUE(dynamic::jit::has_same_bits(value, expected)) << '%' << name << " has other bits than eager's";
    } else {
      EXPECT_TRUE(at::allclose(value, expected, 1e-4, 1e-4)) << '%' << name << " differs from eager's by "
                                                             << (value - expected).abs().max().item<double>();
    }
  }
}

// docs/passes.md
bool changes_bits(Pass pass) {
  return pass == Pass::k_map_order || pass == Pass::k_fuse_rows || pass == Pass::k_fuse_totals ||
         pass == Pass::k_choose_kernels;
}

struct EventPasses : testing::TestWithParam<TextCase> {};

TEST_P(EventPasses, Text) {
  const auto& text = GetParam();
  const auto pass = dynamic::find_pass(text.pass);
  ASSERT_TRUE(pass.has_value()) << "no pass " << text.pass;
  std::string reason;
  const auto program = TextProgram::parse(text.parts[kProgram], &reason);
  ASSERT_TRUE(program.has_value()) << reason;
  support::session();  // sets the number of threads, for eager, too
  auto eager = program->create_inputs();
  program->run(eager, /*drops=*/false);
  const auto with = run(*program, {}, eager), without = run(*program, PassSet().without(*pass), eager);
  EXPECT_EQ(with.report, text.parts[kWith]) << "with " << text.pass;
  EXPECT_EQ(without.report, text.parts[kWithout]) << "without " << text.pass;
  expect_as_eager(*program, with.values, eager);
  expect_as_eager(*program, without.values, eager);
  if (changes_bits(*pass)) return;
  for (const auto& [name, value] : with.values)
    EXPECT_TRUE(dynamic::jit::has_same_bits(value, without.values.at(name))) << '%' << name << " has other bits without the pass";
}

INSTANTIATE_TEST_SUITE_P(, EventPasses, testing::ValuesIn(cases()), [](const auto& info) { return info.param.name; });

// A pass over bodies has cases of its own (passes_test.cpp).
bool is_over_events(Pass pass) {
  return std::none_of(std::begin(dynamic::kSpecPasses), std::end(dynamic::kSpecPasses),
                      [pass](const auto& row) { return row.pass == pass; });
}

TEST(EventPassCases, EachHasCasesWhereItActsAndWhereItDoesNot) {
  std::map<std::string, int> acts, refuses;
  for (const auto& text : cases()) ++(text.parts[kWith] != text.parts[kWithout] ? acts : refuses)[text.pass];
  for (int pass = 0; pass < static_cast<int>(Pass::kCount); ++pass) {
    if (!is_over_events(static_cast<Pass>(pass))) continue;
    const std::string name = dynamic::kPassRows[pass].name;
    EXPECT_GE(acts[name], 1) << name;
    EXPECT_GE(refuses[name], 1) << name;
    EXPECT_GE(acts[name] + refuses[name], 3) << name;
  }
}

}  // namespace
}  // namespace lockstep::coexec
