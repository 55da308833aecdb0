// The cases in passes/: the name of a pass, a spec, and what the pass makes of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "dynamic/jit/spec_text.h"
#include "dynamic/jit/spec_verifier.h"
#include "dynamic/passes/spec_passes.h"
#include "tests/support/text_cases.h"

namespace lockstep::dynamic {
namespace {

using support::TextCase;

enum Part { kBefore, kAfter };
std::vector<TextCase> cases() { return support::read_text_cases(__FILE__, "passes", {"becomes"}); }

jit::KernelSpec parse(const std::string& text) {
  std::string reason;
  auto spec = jit::parse_spec(text, &reason);
  EXPECT_TRUE(spec) << reason;
  return spec.value_or(jit::KernelSpec{});
}

const SpecPass* find_spec_pass(const std::string& name) {
  const auto pass = find_pass(name);
  const auto row = std::find_if(std::begin(kSpecPasses), std::end(kSpecPasses),
                                [&](const SpecPass& candidate) { return pass && candidate.pass == *pass; });
  return row == std::end(kSpecPasses) ? nullptr : row;
}

struct SpecPasses : testing::TestWithParam<TextCase> {};

TEST_P(SpecPasses, Text) {
  const auto& text = GetParam();
  const auto* pass = find_spec_pass(text.pass);
  ASSERT_NE(pass, nullptr) << "no pass " << text.pass;
  auto spec = parse(text.parts[kBefore]);
  ASSERT_FALSE(jit::verify_spec(spec).has_value()) << *jit::verify_spec(spec);
  pass->run(spec);
  EXPECT_EQ(jit::print_spec(spec), text.parts[kAfter]);
  EXPECT_FALSE(jit::verify_spec(spec).has_value()) << *jit::verify_spec(spec);
  const auto once = spec;
  pass->run(spec);
  EXPECT_EQ(spec, once) << "a second time there is nothing to do";
}

INSTANTIATE_TEST_SUITE_P(, SpecPasses, testing::ValuesIn(cases()), [](const auto& info) { return info.param.name; });

TEST(Passes, EachOverSpecsHasACase) {
  std::set<std::string> seen;
  for (const auto& text : cases()) seen.insert(text.pass);
  for (const auto& row : kSpecPasses)
    EXPECT_TRUE(seen.contains(kPassRows[static_cast<int>(row.pass)].name)) << kPassRows[static_cast<int>(row.pass)].name;
}

TEST(Passes, RunInTheOrderOfTheTableUnlessSwitchedOff) {
  EXPECT_TRUE(std::is_sorted(std::begin(kSpecPasses), std::end(kSpecPasses),
                             [](const SpecPass& a, const SpecPass& b) { return a.pass < b.pass; }));
  const std::string text =
      "dims [8]\nb0 = in f32 [1]\nb1 = out f32 [1]\n%0 = load b0 : f32\n%1 = constant 0x1p+0 : f32\n"
      "%2 = mul %0 %1 : f32\n%3 = neg %2 : f32\nstore b1 %3\n";
  auto all = parse(text), none = parse(text);
  run_spec_passes(all, {});
  EXPECT_EQ(jit::print_spec(all),
            "dims [8]\nb0 = in f32 [1]\nb1 = out f32 [1]\n%0 = load b0 : f32\n%1 = neg %0 : f32\nstore b1 %1\n");
  PassSet without;
  for (const auto& row : kSpecPasses) without = without.without(row.pass);
  run_spec_passes(none, without);
  EXPECT_EQ(jit::print_spec(none), text);
}

TEST(Passes, AreFoundByName) {
  for (int pass = 0; pass < static_cast<int>(Pass::kCount); ++pass)
    EXPECT_EQ(find_pass(kPassRows[pass].name), static_cast<Pass>(pass));
  EXPECT_FALSE(find_pass("merge").has_value());
  EXPECT_TRUE(PassSet().has(Pass::k_split));
  const auto set = PassSet().without(Pass::k_split);
  EXPECT_FALSE(set.has(Pass::k_split));
  EXPECT_TRUE(set.has(Pass::k_choose_kernels));
}

}  // namespace
}  // namespace lockstep::dynamic
