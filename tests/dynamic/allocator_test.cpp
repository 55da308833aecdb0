// The pool against a model: random sizes, no overlap, alignment, reuse, frees from other threads.
#include "dynamic/vm/allocator.h"

#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <thread>
#include <vector>

namespace lockstep::dynamic {
namespace {

class Model {
 public:
  // False where the block overlaps another one.
  bool add(char* block, size_t bytes) {
    auto after = blocks_.lower_bound(block);
    if (after != blocks_.end() && block + bytes > after->first) return false;
    if (after != blocks_.begin()) {
      auto before = std::prev(after);
      if (before->first + before->second > block) return false;
    }
    blocks_.emplace(block, bytes);
    return true;
  }
  std::pair<char*, size_t> take(std::mt19937& random) {
    auto it = blocks_.begin();
    std::advance(it, random() % blocks_.size());
    auto block = *it;
    blocks_.erase(it);
    return block;
  }
  bool is_empty() const { return blocks_.empty(); }
  size_t count() const { return blocks_.size(); }

 private:
  std::map<char*, size_t> blocks_;
};

size_t random_size(std::mt19937& random) {
  switch (random() % 4) {
    case 0: return 1 + random() % 256;
    case 1: return 1 + random() % 40000;
    case 2: return (random() % 64 + 1) * 4096;
    default: return 1 + random() % 1000000;
  }
}

char mark_of(const char* block) { return static_cast<char>(reinterpret_cast<uintptr_t>(block) >> 6); }

TEST(Pool, RandomSizesNeverOverlapAndKeepTheirContents) {
  auto& pool = Pool::instance();
  std::mt19937 random(1);
  Model model;
  const size_t used_before = pool.statistics().used_bytes;
  for (int step = 0; step < 20000; ++step) {
    if (model.count() < 300 && random() % 5 < 3) {
      const size_t bytes = random_size(random);
      auto* block = static_cast<char*>(pool.allocate(bytes));
      ASSERT_NE(block, nullptr);
      ASSERT_EQ(reinterpret_cast<uintptr_t>(block) % 64, 0u);
      ASSERT_TRUE(pool.owns(block));
      ASSERT_TRUE(model.add(block, bytes)) << bytes;
      block[0] = block[bytes - 1] = mark_of(block);
    } else if (!model.is_empty()) {
      auto [block, bytes] = model.take(random);
      ASSERT_EQ(block[0], mark_of(block));
      ASSERT_EQ(block[bytes - 1], mark_of(block));
      pool.deallocate(block);
    }
  }
  while (!model.is_empty()) pool.deallocate(model.take(random).first);
  EXPECT_EQ(pool.statistics().used_bytes, used_before);
}

TEST(Pool, NeighboursGrowTogetherAgain) {
  auto& pool = Pool::instance();
  constexpr size_t kBytes = 1 << 20;
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(pool.allocate(kBytes));
  for (int i : {0, 2, 4, 6, 1, 3, 5, 7}) pool.deallocate(blocks[i]);
  const size_t reserved = pool.statistics().reserved_bytes;
  void* all = pool.allocate(8 * kBytes);
  EXPECT_EQ(pool.statistics().reserved_bytes, reserved);  // no new addresses: the eight have become one
  pool.deallocate(all);
}

TEST(Pool, SmallBlocksBreakNoLargeOne) {
  auto& pool = Pool::instance();
  constexpr size_t kBytes = 8 << 20, kSmall = 3000, kMedium = 300000, kCount = 500;
  pool.deallocate(pool.allocate(kBytes));
  std::vector<void*> small;
  for (size_t i = 0; i < kCount; ++i) small.push_back(pool.allocate(i % 10 ? kSmall : kMedium));
  const size_t reserved = pool.statistics().reserved_bytes;
  void* large = pool.allocate(kBytes);
  EXPECT_EQ(pool.statistics().reserved_bytes, reserved);
  pool.deallocate(large);
  for (void* block : small) pool.deallocate(block);
}

size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  size_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * 4096;
}

// Blocks in all holes of so many bytes, and one at the end.
std::vector<void*> fill_holes(size_t bytes) {
  auto& pool = Pool::instance();
  std::vector<void*> blocks;
  for (size_t reserved = pool.statistics().reserved_bytes; pool.statistics().reserved_bytes == reserved;)
    blocks.push_back(pool.allocate(bytes));
  return blocks;
}

TEST(Pool, FreeBlocksGiveUpPagesBeforeItGrows) {
  auto& pool = Pool::instance();
  constexpr size_t kBytes = 64 << 20, kLarger = 2 * kBytes;
  auto blocks = fill_holes(kBytes);
  auto* first = static_cast<char*>(pool.allocate(kBytes));
  blocks.push_back(pool.allocate(kBytes));  // so that the first cannot grow
  std::memset(first, 1, kBytes);
  pool.deallocate(first);
  const size_t before = resident_bytes();
  auto* larger = static_cast<char*>(pool.allocate(kLarger));
  std::memset(larger, 1, kLarger);
  EXPECT_LT(resident_bytes(), before + kBytes + (8 << 20));  // one of them, not both
  const size_t reserved = pool.statistics().reserved_bytes;
  auto* again = static_cast<char*>(pool.allocate(kBytes));
  EXPECT_EQ(pool.statistics().reserved_bytes, reserved);  // it is where the first was
  std::memset(again, 2, kBytes);
  EXPECT_EQ(larger[0] + larger[kLarger - 1], 2);
  for (void* block : {again, larger}) pool.deallocate(block);
  for (void* block : blocks) pool.deallocate(block);
}

TEST(Pool, WhatIsFreeAtTheEndGrows) {
  auto& pool = Pool::instance();
  constexpr size_t kBytes = 64 << 20;
  auto blocks = fill_holes(kBytes);
  void* first = pool.allocate(kBytes);  // behind one that is used
  pool.deallocate(first);
  const size_t reserved = pool.statistics().reserved_bytes;
  void* larger = pool.allocate(kBytes + (3 << 20));
  EXPECT_EQ(larger, first);
  EXPECT_EQ(pool.statistics().reserved_bytes, reserved + (3 << 20));
  pool.deallocate(larger);
  for (void* block : blocks) pool.deallocate(block);
}

// Blocks of all sizes have the same addresses after each other: a step's peak is not the sum of the peaks of each size.
TEST(Pool, MediumBlocksComeFromHolesOfLargeOnes) {
  auto& pool = Pool::instance();
  constexpr size_t kMedium = 400000;
  auto blocks = fill_holes(kMedium);  // those that other tests have left
  std::vector<void*> large;
  for (int i = 0; i < 4; ++i) large.push_back(pool.allocate((5 << 20) + i * 4096));
  for (void* block : large) pool.deallocate(block);
  const size_t reserved = pool.statistics().reserved_bytes;
  for (int i = 0; i < 40; ++i) blocks.push_back(pool.allocate(kMedium));
  EXPECT_EQ(pool.statistics().reserved_bytes, reserved);
  for (void* block : blocks) pool.deallocate(block);
}

TEST(Pool, ASteadyStateTakesNoNewAddresses) {
  auto& pool = Pool::instance();
  auto step = [&](unsigned seed) {
    std::mt19937 random(seed);
    std::vector<void*> blocks;
    for (int i = 0; i < 200; ++i) blocks.push_back(pool.allocate(random_size(random)));
    for (void* block : blocks) pool.deallocate(block);
  };
  for (int i = 0; i < 3; ++i) step(7);
  const size_t reserved = pool.statistics().reserved_bytes;
  for (int i = 0; i < 20; ++i) step(7);
  EXPECT_EQ(pool.statistics().reserved_bytes, reserved);
}

TEST(Pool, CountsPeaks) {
  auto& pool = Pool::instance();
  pool.reset_peak();
  const size_t before = pool.statistics().used_bytes;
  void* block = pool.allocate(3 << 20);
  pool.deallocate(block);
  EXPECT_EQ(pool.statistics().used_bytes, before);
  EXPECT_GE(pool.statistics().peak_used_bytes, before + (3 << 20));
  pool.reset_peak();
  EXPECT_EQ(pool.statistics().peak_used_bytes, before);
}

// As PyTorch's own allocator does, so that its error is raised.
TEST(Pool, RefusesWhatTheSystemWouldNotGive) {
  constexpr size_t kBytes = size_t{1} << 38;
  void* direct = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (direct != MAP_FAILED) {
    munmap(direct, kBytes);
    GTEST_SKIP() << "this system promises 256 GiB";
  }
  EXPECT_EQ(Pool::instance().allocate(kBytes), nullptr);
  const PoolScope scope;
  EXPECT_THROW(c10::GetCPUAllocator()->allocate(kBytes), c10::Error);
}

TEST(Pool, ReleasingFreePagesTouchesNoUsedBlock) {
  auto& pool = Pool::instance();
  auto* kept = static_cast<char*>(pool.allocate(1 << 20));
  auto* small = static_cast<char*>(pool.allocate(100));
  void* dropped = pool.allocate(1 << 20);
  std::memset(kept, 5, 1 << 20);
  std::memset(small, 6, 100);
  pool.deallocate(dropped);
  pool.release_free_pages();
  for (size_t i = 0; i < 1 << 20; i += 4096) ASSERT_EQ(kept[i], 5);
  EXPECT_EQ(small[99], 6);
  pool.deallocate(kept);
  pool.deallocate(small);
}

// Each thread frees what another one has allocated.
TEST(Pool, BlocksAreFreedByOtherThreads) {
  auto& pool = Pool::instance();
  const size_t used_before = pool.statistics().used_bytes;
  constexpr int kThreads = 4, kRounds = 20, kBlocks = 100;
  std::vector<std::vector<std::pair<char*, size_t>>> hands(kThreads);
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (int t = 0; t < kThreads; ++t)
      threads.emplace_back([&, t] {
        std::mt19937 random(round * kThreads + t);
        auto& hand = hands[t];
        for (auto [block, bytes] : hand) {
          wrong += block[bytes - 1] != mark_of(block);
          pool.deallocate(block);
        }
        hand.clear();
        for (int i = 0; i < kBlocks; ++i) {
          const size_t bytes = random_size(random) / 8 + 1;
          auto* block = static_cast<char*>(pool.allocate(bytes));
          block[0] = block[bytes - 1] = mark_of(block);
          hand.emplace_back(block, bytes);
        }
      });
    for (auto& thread : threads) thread.join();
    ASSERT_EQ(wrong.load(), 0);
    std::rotate(hands.begin(), hands.begin() + 1, hands.end());
    Model model;
    for (const auto& hand : hands)
      for (auto [block, bytes] : hand) ASSERT_TRUE(model.add(block, bytes));
  }
  for (auto& hand : hands)
    for (auto [block, bytes] : hand) pool.deallocate(block);
  EXPECT_EQ(pool.statistics().used_bytes, used_before);
}

TEST(PoolScope, OnlyThreadsInsideAllocateFromThePool) {
  install_pool();
  auto& pool = Pool::instance();
  EXPECT_FALSE(pool.owns(at::empty({100}).const_data_ptr()));
  at::Tensor inside;
  {
    PoolScope scope;
    {
      PoolScope nested;
    }
    inside = at::empty({100});
    EXPECT_TRUE(pool.owns(inside.const_data_ptr()));
    std::thread([&] { EXPECT_FALSE(pool.owns(at::empty({100}).const_data_ptr())); }).join();
  }
  EXPECT_FALSE(pool.owns(at::empty({100}).const_data_ptr()));
  const size_t used = pool.statistics().used_bytes;
  inside = at::Tensor();  // freed outside of the scope
  EXPECT_LT(pool.statistics().used_bytes, used);
}

TEST(PoolScope, CanBeSwitchedOff) {
  install_pool();
  PoolScope scope;
  auto before = at::empty({100});
  enable_pool(false);
  EXPECT_FALSE(Pool::instance().owns(at::empty({100}).const_data_ptr()));
  before = at::Tensor();  // a block of the pool goes back to the pool all the same
  enable_pool(true);
  EXPECT_TRUE(Pool::instance().owns(at::empty({100}).const_data_ptr()));
}

// Paths of PyTorch that use raw_allocate need the context to be the data.
TEST(PoolScope, RawAllocationsWork) {
  install_pool();
  PoolScope scope;
  auto* allocator = c10::GetCPUAllocator();
  auto pointer = allocator->allocate(1000);
  EXPECT_EQ(pointer.get(), pointer.get_context());
  void* raw = allocator->raw_allocate(1000);
  EXPECT_TRUE(Pool::instance().owns(raw));
  allocator->raw_deallocate(raw);
  EXPECT_EQ(at::empty({0}).storage().nbytes(), 0u);
}

TEST(Pool, IsWholeInAForkedChild) {
  auto& pool = Pool::instance();
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) pool.deallocate(pool.allocate(1 << 20));
  });
  for (int i = 0; i < 300; ++i) {
    void* block = pool.allocate(1 << 20);
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);  // where the other thread held the pool's lock
      pool.deallocate(block);
      _exit(0);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    pool.deallocate(block);
    if (status != 0) break;
  }
  stop = true;
  other.join();
}

TEST(PoolScope, SaysThatFarMoreIsInUseThanEverAtRest) {
  constexpr size_t kBlock = size_t{16} << 20;
  install_pool();
  auto* allocator = c10::GetCPUAllocator();
  std::vector<c10::DataPtr> kept;
  size_t enough = 0;
  {
    const PoolScope pool;
    for (; enough < 1000 && !pool.is_far_ahead(); ++enough) kept.push_back(allocator->allocate(kBlock));
    EXPECT_LT(enough, 1000u);
    EXPECT_GT(enough * kBlock, size_t{64} << 20);
  }
  Pool::instance().note_rest();  // so much is in use, and nothing is ahead
  const PoolScope pool;
  kept.push_back(allocator->allocate(kBlock));
  EXPECT_FALSE(pool.is_far_ahead());
}

}  // namespace
}  // namespace lockstep::dynamic
