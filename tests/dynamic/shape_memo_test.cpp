#include "dynamic/shapes/shape_memo.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace lockstep::dynamic {
namespace {

const graph::OpInfo& op(const char* name) { return *graph::find_op_info(name); }

std::unique_ptr<graph::Signature> signature_of(const graph::OpInfo& info, graph::SignatureWords words,
                                               std::optional<uint64_t> hash = {}) {
  auto signature = std::make_unique<graph::Signature>();
  signature->op = &info;
  signature->hash = hash.value_or(graph::hash_words(words));
  signature->words = std::move(words);
  return signature;
}

class ShapeMemoTest : public testing::Test {
 protected:
  void SetUp() override { memo.forget_if_large(0); }
  void TearDown() override { memo.forget_if_large(0); }
  ShapeMemo& memo = ShapeMemo::instance();
};

TEST_F(ShapeMemoTest, FindsWhatWasInserted) {
  const graph::SignatureWords words{1, 2, 3};
  const uint64_t hash = graph::hash_words(words);
  EXPECT_EQ(memo.find(op("aten::add.Tensor"), words, hash), nullptr);
  const auto* inserted = memo.insert(signature_of(op("aten::add.Tensor"), words));
  EXPECT_EQ(memo.find(op("aten::add.Tensor"), words, hash), inserted);
  EXPECT_EQ(memo.find(op("aten::mul.Tensor"), words, hash), nullptr);
  EXPECT_EQ(memo.count(), 1u);
}

TEST_F(ShapeMemoTest, EqualHashesAreToldApartByTheirWords) {
  const auto* first = memo.insert(signature_of(op("aten::add.Tensor"), {1}, 42));
  const auto* second = memo.insert(signature_of(op("aten::add.Tensor"), {2}, 42));
  EXPECT_EQ(memo.find(op("aten::add.Tensor"), {1}, 42), first);
  EXPECT_EQ(memo.find(op("aten::add.Tensor"), {2}, 42), second);
  EXPECT_EQ(memo.find(op("aten::add.Tensor"), {3}, 42), nullptr);
}

TEST_F(ShapeMemoTest, ForgetsBeyondItsBoundAndSaysSo) {
  for (int64_t i = 0; i < 10; ++i) memo.insert(signature_of(op("aten::add.Tensor"), {i}));
  const auto epoch = memo.epoch();
  memo.forget_if_large(10);
  EXPECT_EQ(memo.count(), 10u);
  EXPECT_EQ(memo.epoch(), epoch);
  memo.forget_if_large(9);
  EXPECT_EQ(memo.count(), 0u);
  EXPECT_NE(memo.epoch(), epoch);
}

TEST_F(ShapeMemoTest, PointersStayWhileItGrows) {
  const auto* first = memo.insert(signature_of(op("aten::add.Tensor"), {-1}));
  for (int64_t i = 0; i < 5000; ++i) memo.insert(signature_of(op("aten::add.Tensor"), {i}));
  EXPECT_EQ(first->words, graph::SignatureWords{-1});
}

TEST_F(ShapeMemoTest, ThreadsShareIt) {
  std::vector<std::thread> threads;
  std::atomic<int> missing{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int64_t i = 0; i < 500; ++i) {
        const graph::SignatureWords words{i};
        memo.insert(signature_of(op("aten::add.Tensor"), words));
        const auto* found = memo.find(op("aten::add.Tensor"), words, graph::hash_words(words));
        missing += !found || found->words != words;
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(missing.load(), 0);
}

}  // namespace
}  // namespace lockstep::dynamic
