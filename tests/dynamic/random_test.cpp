#include "dynamic/kernels/random.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <xmmintrin.h>

#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "dynamic/kernels/random_check.h"
#include "dynamic/kernels/vector_loops.h"
#include "tests/support/helped_board.h"

namespace lockstep::dynamic {
namespace {

using at::Generator;
using at::Tensor;

const std::vector<int64_t> kSizes = {0, 1, 7, 15, 16, 17, 31, 33, 128, 311, 312, 623, 624, 625, 2497, 100000};
const std::vector<at::ScalarType> kFloating = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};
const std::vector<at::ScalarType> kAll = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kBool,
                                          at::kByte,  at::kChar,   at::kShort,    at::kInt,  at::kLong};

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.nbytes() == b.nbytes() && (a.nbytes() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0);
}

Generator generator_after(uint64_t seed, int64_t drawn) {
  auto generator = at::detail::createCPUGenerator(seed);
  for (int64_t i = 0; i < drawn; ++i) generator.get<at::CPUGeneratorImpl>()->random();
  return generator;
}

// Where PyTorch draws otherwise on this machine, declining is right and there is nothing to compare.
bool is_declined(Sampler sampler, at::ScalarType type) {
  return agreement_with_eager(sampler, type) == Agreement::kDiffers;
}

using Own = std::function<bool(const Tensor&, const Generator&)>;
using Eager = std::function<void(Tensor&, const Generator&)>;

// On copies of `like`, so that what is not written shows.
void expect_same(const Tensor& like, uint64_t seed, int64_t drawn, const Own& own, const Eager& eager) {
  SCOPED_TRACE(testing::Message() << like.scalar_type() << " of " << like.sizes() << ", seed " << seed << " after "
                                  << drawn);
  Tensor ours = like.clone(), theirs = like.clone();
  auto our_generator = generator_after(seed, drawn), their_generator = generator_after(seed, drawn);
  ASSERT_TRUE(own(ours, our_generator));
  eager(theirs, their_generator);
  ASSERT_TRUE(same_bytes(ours, theirs));
  ASSERT_TRUE(our_generator.get_state().equal(their_generator.get_state()));
}

void expect_same_for_all(Sampler sampler, const std::vector<at::ScalarType>& types, int64_t smallest, const Own& own,
                         const Eager& eager) {
  uint64_t seed = 0;
  for (const auto type : types) {
    if (is_declined(sampler, type)) continue;
    for (const auto size : kSizes)
      for (const int64_t drawn : {0, 1, 6, 623})
        if (size >= smallest) expect_same(at::ones({size}, type), seed++, drawn, own, eager);
  }
}

// Nothing is done: neither values nor the state move.
void expect_declined(const Tensor& tensor, const Own& own) {
  const auto generator = generator_after(3, 2);
  const auto state = generator.get_state();
  const auto before = tensor.clone();
  EXPECT_FALSE(own(tensor, generator));
  EXPECT_TRUE(tensor.equal(before));
  EXPECT_TRUE(generator.get_state().equal(state));
}

class Random : public testing::TestWithParam<InstructionSet> {
 protected:
  void SetUp() override {
    if (GetParam() > best_instruction_set()) GTEST_SKIP() << "not on this processor";
    use_instruction_set(GetParam());
  }
  void TearDown() override { use_instruction_set(best_instruction_set()); }
};

TEST_P(Random, Bernoulli) {
  for (const double p : {0.0, 1.0, 0.5, 0.1, 0.9, 1.0 / 3, 5e-324, 0x1p-53, 0x1.8p-53, 1 - 0x1p-53})
    expect_same_for_all(
        Sampler::kBernoulli, kAll, 0, [&](const Tensor& t, const Generator& g) { return try_bernoulli_(t, p, g); },
        [&](Tensor& t, const Generator& g) { t.bernoulli_(p, g); });
}

TEST_P(Random, BernoulliWithAProbabilityForEach) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    const auto p_like = [&](const Tensor& t) {
      auto p = at::linspace(0, 1, t.numel(), type);
      return p;
    };
    expect_same_for_all(
        Sampler::kBernoulliEach, kAll, 0,
        [&](const Tensor& t, const Generator& g) { return try_bernoulli_(t, p_like(t), g); },
        [&](Tensor& t, const Generator& g) { t.bernoulli_(p_like(t), g); });
  }
}

TEST_P(Random, BernoulliBitsAreTheDrawsOfBernoulli) {
  if (is_declined(Sampler::kBernoulli, at::kFloat)) GTEST_SKIP();
  for (const auto size : kSizes)
    for (const int64_t drawn : {0, 5}) {
      auto ours = generator_after(9, drawn), theirs = generator_after(9, drawn);
      std::vector<uint8_t> bits((size + 7) / 8, 0xff), expected(bits.size(), 0);
      ASSERT_TRUE(generate_bernoulli_mask(at::kFloat, ours, 0.7, size, bits.data()));
      const auto values = at::empty({size}, at::kByte).bernoulli_(0.7, theirs);
      for (int64_t i = 0; i < size; ++i) expected[i / 8] |= values.const_data_ptr<uint8_t>()[i] << (i % 8);
      ASSERT_EQ(bits, expected);
      ASSERT_TRUE(ours.get_state().equal(theirs.get_state()));
    }
}

TEST_P(Random, Uniform) {
  for (const auto& [from, to] :
       {std::pair{0.0, 1.0}, {-0.3, 1.4}, {2.0, 2.0}, {-1.0, 0.0}, {1e-40, 3e-39}, {100.0, 1e4}})
    expect_same_for_all(
        Sampler::kUniform, kFloating, 0,
        [&, from = from, to = to](const Tensor& t, const Generator& g) { return try_uniform_(t, from, to, g); },
        [&, from = from, to = to](Tensor& t, const Generator& g) { t.uniform_(from, to, g); });
}

TEST_P(Random, Normal) {
  for (const auto& [mean, std] : {std::pair{0.0, 1.0}, {-1.3, 0.02}, {1e3, 0.0}, {0.1, 1e20}})
    expect_same_for_all(
        Sampler::kNormal, kFloating, 16,
        [&, mean = mean, std = std](const Tensor& t, const Generator& g) { return try_normal_(t, mean, std, g); },
        [&, mean = mean, std = std](Tensor& t, const Generator& g) { t.normal_(mean, std, g); });
}

TEST_P(Random, RandomWithoutBounds) {
  expect_same_for_all(
      Sampler::kRandom, kAll, 0, [](const Tensor& t, const Generator& g) { return try_random_(t, g); },
      [](Tensor& t, const Generator& g) { t.random_(g); });
}

TEST_P(Random, RandomWithinBounds) {
  const auto within = [](const std::vector<at::ScalarType>& types, int64_t from, int64_t to) {
    SCOPED_TRACE(testing::Message() << from << " to " << to);
    expect_same_for_all(
        Sampler::kRandomRange, types, 0,
        [&](const Tensor& t, const Generator& g) { return try_random_(t, from, to, g); },
        [&](Tensor& t, const Generator& g) { t.random_(from, to, g); });
  };
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max(), kLeast = std::numeric_limits<int64_t>::lowest();
  within(kAll, 0, 1);
  within(kAll, 0, 2);
  within({at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kChar, at::kShort, at::kLong}, -100, 27);
  within({at::kFloat, at::kDouble, at::kInt, at::kLong}, -(1 << 24), 1 << 24);
  within({at::kDouble, at::kInt, at::kLong}, 0, (1 << 28) - 1);
  within({at::kDouble, at::kInt, at::kLong}, 3, (1 << 28) + 3);
  within({at::kDouble, at::kInt, at::kLong}, -(1LL << 31), (1LL << 31));
  within({at::kDouble, at::kLong}, -(1LL << 53), 1LL << 53);
  within({at::kLong}, kMost - 100, kMost);
  within({at::kLong}, kLeast, kMost);
}

// Every divisor rounds its reciprocal otherwise.
TEST_P(Random, RemaindersOfManyRanges) {
  std::mt19937 choose(1);
  for (int i = 0; i < 300; ++i) {
    const int64_t to = 1 + static_cast<int64_t>(choose() >> (4 + choose() % 28));
    expect_same(
        at::zeros({3000}, at::kLong), i, i % 5,
        [&](const Tensor& t, const Generator& g) { return try_random_(t, 0, to, g); },
        [&](Tensor& t, const Generator& g) { t.random_(0, to, g); });
  }
}

TEST_P(Random, DimensionsInAnyOrder) {
  const auto base = at::zeros({3, 4, 5, 6});
  for (const auto& like : {base.permute({2, 0, 3, 1}), base.contiguous(at::MemoryFormat::ChannelsLast),
                           at::zeros({5, 1, 7}).permute({1, 2, 0}), at::zeros({2, 3}).as_strided({2, 1, 3}, {1, 0, 2}),
                           at::zeros({64}).slice(0, 10, 60), base.slice(0, 1, 3), at::zeros({})}) {
    if (!is_declined(Sampler::kBernoulli, at::kFloat))
      expect_same(
          like, 1, 3, [](const Tensor& t, const Generator& g) { return try_bernoulli_(t, 0.3, g); },
          [](Tensor& t, const Generator& g) { t.bernoulli_(0.3, g); });
    expect_same(
        like, 2, 3, [](const Tensor& t, const Generator& g) { return try_uniform_(t, 0, 1, g); },
        [](Tensor& t, const Generator& g) { t.uniform_(0, 1, g); });
    expect_same(
        like, 3, 3, [](const Tensor& t, const Generator& g) { return try_random_(t, 0, 10, g); },
        [](Tensor& t, const Generator& g) { t.random_(0, 10, g); });
  }
}

// One sampler after another from one generator, with those declined between them: eager's normal_ of few elements keeps
// a sample for the next.
TEST_P(Random, SamplersInTurn) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    auto ours = generator_after(seed, 0), theirs = generator_after(seed, 0);
    std::mt19937 choose(static_cast<uint32_t>(seed));
    for (int step = 0; step < 12; ++step) {
      const auto type = kFloating[choose() % kFloating.size()];
      auto a = at::zeros({static_cast<int64_t>(choose() % 900)}, type), b = a.clone();
      switch (choose() % 5) {
        case 0:
          if (!try_bernoulli_(a, 0.25, ours)) a.bernoulli_(0.25, ours);
          b.bernoulli_(0.25, theirs);
          break;
        case 1:
          if (!try_uniform_(a, -1, 3, ours)) a.uniform_(-1, 3, ours);
          b.uniform_(-1, 3, theirs);
          break;
        case 2:
          if (!try_normal_(a, 0, 2, ours)) a.normal_(0, 2, ours);
          b.normal_(0, 2, theirs);
          break;
        case 3:
          a = a.slice(0, 0, 9);
          b = b.slice(0, 0, 9);
          if (!try_normal_(a, 0, 2, ours)) a.normal_(0, 2, ours);
          b.normal_(0, 2, theirs);
          break;
        default:
          if (!try_random_(a, 0, 50, ours)) a.random_(0, 50, ours);
          b.random_(0, 50, theirs);
      }
      ASSERT_TRUE(same_bytes(a.contiguous(), b.contiguous())) << "seed " << seed << ", step " << step;
      ASSERT_TRUE(ours.get_state().equal(theirs.get_state())) << "seed " << seed << ", step " << step;
    }
  }
}

// MXCSR decides what becomes of denormal numbers, here as there.
TEST_P(Random, FlushedDenormalNumbers) {
  if (!at::globalContext().setFlushDenormal(true)) GTEST_SKIP();
  expect_same_for_all(
      Sampler::kBernoulli, {at::kFloat}, 0,
      [](const Tensor& t, const Generator& g) { return try_bernoulli_(t, 1e-310, g); },
      [](Tensor& t, const Generator& g) { t.bernoulli_(1e-310, g); });
  for (const auto& [from, to] : {std::pair{0.0, 1e-5}, {1e-40, 3e-39}, {-1e-38, 2e-38}, {0.0, 1e-309}})
    expect_same_for_all(
        Sampler::kUniform, kFloating, 0,
        [&, from = from, to = to](const Tensor& t, const Generator& g) { return try_uniform_(t, from, to, g); },
        [&, from = from, to = to](Tensor& t, const Generator& g) { t.uniform_(from, to, g); });
  expect_same_for_all(
      Sampler::kNormal, kFloating, 16, [](const Tensor& t, const Generator& g) { return try_normal_(t, 0, 1e-38, g); },
      [](Tensor& t, const Generator& g) { t.normal_(0, 1e-38, g); });
  at::globalContext().setFlushDenormal(false);
}

constexpr int64_t kMany = 300001;  // so many that two threads draw them

void expect_many_are_the_same() {
  const auto sample = [](Sampler sampler, const Tensor& like, const Own& own, const Eager& eager) {
    if (is_declined(sampler, like.scalar_type())) return;
    for (const int64_t drawn : {0, 1, 623}) expect_same(like, 5, drawn, own, eager);
  };
  const Tensor floats = at::ones({kMany}), doubles = at::ones({kMany}, at::kDouble), half = at::ones({kMany}, at::kBFloat16);
  const Tensor p = at::linspace(0, 1, kMany);
  sample(Sampler::kBernoulli, floats, [](const Tensor& t, const Generator& g) { return try_bernoulli_(t, 0.9, g); },
         [](Tensor& t, const Generator& g) { t.bernoulli_(0.9, g); });
  sample(Sampler::kBernoulliEach, floats, [&](const Tensor& t, const Generator& g) { return try_bernoulli_(t, p, g); },
         [&](Tensor& t, const Generator& g) { t.bernoulli_(p, g); });
  for (const Tensor& like : {floats, doubles, half}) {
    sample(Sampler::kUniform, like, [](const Tensor& t, const Generator& g) { return try_uniform_(t, -1, 2, g); },
           [](Tensor& t, const Generator& g) { t.uniform_(-1, 2, g); });
    sample(Sampler::kNormal, like, [](const Tensor& t, const Generator& g) { return try_normal_(t, 0, 1, g); },
           [](Tensor& t, const Generator& g) { t.normal_(0, 1, g); });
  }
  sample(Sampler::kRandomRange, at::ones({kMany}, at::kInt),
         [](const Tensor& t, const Generator& g) { return try_random_(t, 3, 1000, g); },
         [](Tensor& t, const Generator& g) { t.random_(3, 1000, g); });
}

// By both ways of sharing a loop, and where nobody helps.
TEST_P(Random, ManyByTwoThreads) {
  const int threads = at::get_num_threads();
  at::set_num_threads(2);
  expect_many_are_the_same();
  at::set_num_threads(threads);
  {
    const HelpedBoard board;
    expect_many_are_the_same();
  }
  WorkBoard alone([] {});
  alone.set_on(true);
  const BoardScope scope(&alone);
  expect_many_are_the_same();
}

// Workers have a float mode of their own.
TEST_P(Random, ManyFlushedDenormalNumbers) {
  constexpr unsigned kFlushes = 0x8040;
  const int threads = at::get_num_threads();
  at::set_num_threads(2);
  at::ones({1 << 20}).exp();  // they are there, and do not flush
  const unsigned mode = _mm_getcsr();
  _mm_setcsr(mode | kFlushes);
  expect_same(at::ones({kMany}), 4, 1, [](const Tensor& t, const Generator& g) { return try_uniform_(t, -1e-38, 2e-38, g); },
              [](Tensor& t, const Generator& g) { t.uniform_(-1e-38, 2e-38, g); });
  _mm_setcsr(mode);
  at::set_num_threads(threads);
}

TEST_P(Random, TheDefaultGenerator) {
  const auto draw = [](auto sample) {
    at::manual_seed(7);
    auto t = at::zeros({1000});
    sample(t);
    return std::pair{t, at::detail::getDefaultCPUGenerator().get_state()};
  };
  const auto [ours, our_state] = draw([](Tensor& t) { ASSERT_TRUE(try_uniform_(t, 0, 1, std::nullopt)); });
  const auto [theirs, their_state] = draw([](Tensor& t) { t.uniform_(); });
  EXPECT_TRUE(same_bytes(ours, theirs));
  EXPECT_TRUE(our_state.equal(their_state));
}

TEST(RandomDeclines, WhatEagerRefuses) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double p : {-0.1, 1.1, nan})
    expect_declined(at::zeros({100}), [&](const Tensor& t, const Generator& g) { return try_bernoulli_(t, p, g); });
  expect_declined(at::zeros({100}), [](const Tensor& t, const Generator& g) { return try_uniform_(t, 1, 0, g); });
  expect_declined(at::zeros({100}), [&](const Tensor& t, const Generator& g) { return try_uniform_(t, nan, 0, g); });
  expect_declined(at::zeros({100}, at::kHalf),
                  [](const Tensor& t, const Generator& g) { return try_uniform_(t, 0, 1e6, g); });
  expect_declined(at::zeros({100}),
                  [](const Tensor& t, const Generator& g) { return try_uniform_(t, -3e38, 3e38, g); });
  expect_declined(at::zeros({100}), [](const Tensor& t, const Generator& g) { return try_normal_(t, 0, -1, g); });
  expect_declined(at::zeros({100}), [](const Tensor& t, const Generator& g) { return try_random_(t, 3, 3, g); });
  expect_declined(at::zeros({100}, at::kByte),
                  [](const Tensor& t, const Generator& g) { return try_random_(t, 0, 257, g); });
  expect_declined(at::zeros({100}, at::kLong),
                  [](const Tensor& t, const Generator& g) { return try_uniform_(t, 0, 1, g); });
  expect_declined(at::zeros({3}), [&](const Tensor& t, const Generator& g) {
    return try_bernoulli_(t, at::tensor({0.5, 0.5, nan}), g);
  });
}

TEST(RandomDeclines, TensorsThatAreNotPlain) {
  const Own bernoulli = [](const Tensor& t, const Generator& g) { return try_bernoulli_(t, 0.5, g); };
  expect_declined(at::zeros({10, 10}).slice(1, 0, 5), bernoulli);
  expect_declined(at::zeros({10}).expand({4, 10}), bernoulli);
  expect_declined(at::zeros({10}, at::kComplexFloat), bernoulli);
  expect_declined(at::_neg_view(at::zeros({10})), bernoulli);
  expect_declined(at::zeros({40}, at::kFloat).slice(0, 0, 15),
                  [](const Tensor& t, const Generator& g) { return try_normal_(t, 0, 1, g); });
  expect_declined(at::zeros({8, 8}).t(), [](const Tensor& t, const Generator& g) { return try_normal_(t, 0, 1, g); });
  EXPECT_FALSE(try_bernoulli_(at::empty({10}, at::TensorOptions().device(at::kMeta)), 0.5, std::nullopt));
  EXPECT_FALSE(try_bernoulli_(Tensor(), 0.5, std::nullopt));
}

// These have one way in every build of PyTorch: declining would hide that they are wrong.
TEST(RandomDeclines, NothingThatHasOnlyOneWay) {
  for (const auto type : kFloating) EXPECT_FALSE(is_declined(Sampler::kUniform, type)) << type;
  for (const auto type : kAll) EXPECT_FALSE(is_declined(Sampler::kRandomRange, type)) << type;
}

INSTANTIATE_TEST_SUITE_P(Sets, Random,
                         testing::Values(InstructionSet::kBaseline, InstructionSet::kAvx2, InstructionSet::kAvx512));

}  // namespace
}  // namespace lockstep::dynamic
