// What is counted and logged of tensors' memory: all threads, both allocators, blocks older than the log.
#include "dynamic/vm/memory_log.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <thread>

#include "dynamic/vm/allocator.h"

namespace lockstep::dynamic {
namespace {

TEST(MemoryCount, CountsWhatIsAskedForInsideAndOutsideOfThePool) {
  install_pool();
  auto before = at::empty({1000});  // not counted, neither made nor freed
  count_memory(true);
  EXPECT_EQ(memory_count().live_bytes, 0u);
  auto outside = at::empty({100});
  at::Tensor inside;
  {
    PoolScope scope;
    inside = at::empty({50});
  }
  before = at::Tensor();
  EXPECT_EQ(memory_count().live_bytes, 600u);
  std::thread([tensor = std::move(outside)] {}).join();
  EXPECT_EQ(memory_count().live_bytes, 200u);
  count_memory(false);
  outside = at::empty({100});
  inside = at::Tensor();  // counted blocks are remembered until they die
  EXPECT_EQ(memory_count().live_bytes, 0u);
  EXPECT_EQ(memory_count().peak_bytes, 600u);
}

TEST(MemoryLog, KnowsTheLifeOfEachBlock) {
  install_pool();
  at::Tensor older;
  {
    PoolScope scope;
    older = at::empty({10});
  }
  const void* older_data = older.storage().data();
  graph::Node node;
  start_memory_log();
  at::Tensor kept;
  {
    const AllocationScope op(&node);
    kept = at::empty({100});
    at::empty({7});  // gone before the op returns
  }
  auto dropped = at::empty({50});
  dropped = at::Tensor();
  older = at::Tensor();
  const auto log = stop_memory_log();
  ASSERT_EQ(log.blocks.size(), 4u);
  const auto &first = log.blocks[0], &workspace = log.blocks[1], &second = log.blocks[2], &last = log.blocks[3];
  EXPECT_EQ(first.bytes, 400u);
  EXPECT_EQ(first.node, &node);
  EXPECT_EQ(first.data, kept.storage().data());
  EXPECT_EQ(first.end, 0u);
  EXPECT_EQ(workspace.bytes, 28u);
  EXPECT_TRUE(workspace.is_workspace);
  EXPECT_EQ(second.bytes, 200u);
  EXPECT_EQ(second.node, nullptr);
  EXPECT_FALSE(second.is_workspace);
  EXPECT_GT(second.end, second.begin);
  EXPECT_EQ(last.bytes, 0u);  // older than the log
  EXPECT_EQ(last.data, older_data);
  EXPECT_GE(log.end, last.end);
  EXPECT_TRUE(stop_memory_log().blocks.empty());
}

TEST(MemoryLog, WhatAnotherThreadAsksForAsPartOfAnOpIsThatOps) {
  install_pool();
  graph::Node node;
  start_memory_log();
  at::Tensor kept;
  {
    const AllocationScope op(&node);
    const auto asker = AllocationScope::asker();
    std::thread([&] {
      const AllocationScope part(asker);
      kept = at::empty({100});
      at::empty({7});
    }).join();
  }
  EXPECT_EQ(AllocationScope::asker().op, 0u);
  const auto log = stop_memory_log();
  ASSERT_EQ(log.blocks.size(), 2u);
  for (const auto& block : log.blocks) EXPECT_EQ(block.node, &node);
  EXPECT_FALSE(log.blocks[0].is_workspace);
  EXPECT_TRUE(log.blocks[1].is_workspace);
}

// One op's result is another op's operand, and dies in it.
TEST(MemoryLog, AWorkspaceIsOfOneOp) {
  install_pool();
  graph::Node node;
  start_memory_log();
  at::Tensor result;
  {
    const AllocationScope op(&node);
    result = at::empty({100});
  }
  {
    const AllocationScope op(&node);
    result = at::Tensor();
  }
  const auto log = stop_memory_log();
  ASSERT_EQ(log.blocks.size(), 1u);
  EXPECT_GT(log.blocks[0].end, 0u);
  EXPECT_FALSE(log.blocks[0].is_workspace);
}

}  // namespace
}  // namespace lockstep::dynamic
