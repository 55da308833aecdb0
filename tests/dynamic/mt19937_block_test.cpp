#include "dynamic/kernels/mt19937_block.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "dynamic/kernels/vector_loops.h"

namespace lockstep::dynamic {
namespace {

at::Tensor state_of(const at::Generator& generator) { return generator.get_state(); }

at::Generator generator_after(uint64_t seed, int64_t drawn) {
  auto generator = at::detail::createCPUGenerator(seed);
  for (int64_t i = 0; i < drawn; ++i) generator.get<at::CPUGeneratorImpl>()->random();
  return generator;
}

class Mt19937Block : public testing::TestWithParam<InstructionSet> {
 protected:
  void SetUp() override {
    if (GetParam() > best_instruction_set()) GTEST_SKIP() << "not on this processor";
    use_instruction_set(GetParam());
  }
  void TearDown() override { use_instruction_set(best_instruction_set()); }
};

TEST_P(Mt19937Block, WordsAndStateAreThoseOfSingleDraws) {
  for (const int64_t drawn : {0, 1, 2, 17, 622, 623, 624, 625, 1300})
    for (const int64_t count : {0, 1, 127, 128, 500, 623, 624, 625, 1247, 1248, 1249, 9999}) {
      auto ours = generator_after(count + 3, drawn), theirs = generator_after(count + 3, drawn);
      std::vector<uint32_t> words(count), expected(count);
      WordSource(*ours.get<at::CPUGeneratorImpl>(), count).take(words.data(), count);
      for (auto& word : expected) word = theirs.get<at::CPUGeneratorImpl>()->random();
      ASSERT_EQ(words, expected) << drawn << " drawn before " << count;
      ASSERT_TRUE(state_of(ours).equal(state_of(theirs))) << drawn << " drawn before " << count;
    }
}

TEST_P(Mt19937Block, ElementsOfSeveralWordsAreNotTornAtTheEndOfABlock) {
  for (const int64_t words_per_element : {1, 2, 16, 32})
    for (const int64_t drawn : {0, 1, 7, 600, 623}) {
      constexpr int64_t kCount = 700;
      auto ours = generator_after(5, drawn), theirs = generator_after(5, drawn);
      std::vector<uint32_t> words(kCount * words_per_element), expected(words.size());
      {
        WordSource source(*ours.get<at::CPUGeneratorImpl>(), static_cast<int64_t>(words.size()));
        draw_elements(source, kCount, words_per_element, [&](const uint32_t* from, int64_t first, int64_t count) {
          std::copy_n(from, count * words_per_element, words.begin() + first * words_per_element);
        });
      }
      for (auto& word : expected) word = theirs.get<at::CPUGeneratorImpl>()->random();
      ASSERT_EQ(words, expected);
      ASSERT_TRUE(state_of(ours).equal(state_of(theirs)));
    }
}

TEST_P(Mt19937Block, TakingNothingChangesNothing) {
  auto generator = generator_after(5, 0);
  const auto before = state_of(generator);
  { WordSource source(*generator.get<at::CPUGeneratorImpl>(), 1000); }
  EXPECT_TRUE(state_of(generator).equal(before));
}

TEST_P(Mt19937Block, CachedNormalSamplesStay) {
  auto generator = generator_after(5, 3);
  auto* const impl = generator.get<at::CPUGeneratorImpl>();
  impl->set_next_double_normal_sample(0.25);
  impl->set_next_float_normal_sample(0.5f);
  std::vector<uint32_t> words(1000);
  WordSource(*impl, 1000).take(words.data(), 1000);
  EXPECT_EQ(impl->next_double_normal_sample(), 0.25);
  EXPECT_EQ(impl->next_float_normal_sample(), 0.5f);
}

// A state made by hand, where left and next do not belong together: the engine renews its block by left alone.
TEST_P(Mt19937Block, AStateThatNoEngineReachesIsDrawnFromAsTheEngineDoes) {
  auto ours = generator_after(5, 3), theirs = generator_after(5, 3);
  for (auto* generator : {&ours, &theirs}) {
    auto* const impl = generator->get<at::CPUGeneratorImpl>();
    auto engine = impl->engine();
    auto data = engine.data();
    data.left_ = 100;
    engine.set_data(data);
    impl->set_engine(engine);
  }
  std::vector<uint32_t> words(2000), expected(2000);
  WordSource(*ours.get<at::CPUGeneratorImpl>(), 2000).take(words.data(), 2000);
  for (auto& word : expected) word = theirs.get<at::CPUGeneratorImpl>()->random();
  EXPECT_EQ(words, expected);
  EXPECT_TRUE(state_of(ours).equal(state_of(theirs)));
}

INSTANTIATE_TEST_SUITE_P(Sets, Mt19937Block,
                         testing::Values(InstructionSet::kBaseline, InstructionSet::kAvx2, InstructionSet::kAvx512));

}  // namespace
}  // namespace lockstep::dynamic
