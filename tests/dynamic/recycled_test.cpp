#include "dynamic/vm/recycled.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>
#include <vector>

namespace lockstep::dynamic {
namespace {

struct Small : Recycled<Small> {
  uint64_t value = 0;
  uint64_t more[6] = {};
};

struct Base {
  virtual ~Base() = default;
};
struct Derived final : Recycled<Derived>, Base {
  uint64_t values[5] = {};
};

#if !defined(__SANITIZE_ADDRESS__)  // there nothing is recycled

TEST(Recycled, WhatDiesOnAnotherThreadIsMadeAgainHere) {
  std::set<const void*> first, second;
  std::vector<Small*> objects(100);
  for (auto& object : objects) first.insert(object = new Small);
  EXPECT_EQ(first.size(), objects.size());
  std::thread([&] {
    for (auto* object : objects) delete object;
  }).join();
  for (auto& object : objects) {
    second.insert(object = new Small);
    EXPECT_EQ(object->value, 0u);
  }
  EXPECT_EQ(first, second);
  for (auto* object : objects) delete object;
}

TEST(Recycled, AThreadThatEndsLeavesItsMemory) {
  std::set<const void*> first, second;
  std::thread([&] {
    std::vector<Derived*> objects(10);
    for (auto& object : objects) first.insert(object = new Derived);
    for (auto* object : objects) delete static_cast<Base*>(object);  // through the base
  }).join();
  std::vector<Derived*> objects(10);
  for (auto& object : objects) second.insert(object = new Derived);
  EXPECT_EQ(first, second);
  for (auto* object : objects) delete object;
}

#endif

// Each thread makes objects, writes its name into them and hands them to the next one, which checks and drops them.
TEST(Recycled, NoTwoThreadsHaveTheSame) {
  constexpr int kThreads = 4, kRounds = 2000, kAtOnce = 16;
  std::atomic<Small*> hands[kThreads][kAtOnce] = {};
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const uint64_t own = t + 1, before = (t + kThreads - 1) % kThreads + 1;
      for (int round = 0; round < kRounds; ++round) {
        for (int i = 0; i < kAtOnce; ++i) {
          auto* object = new Small;
          object->value = own;
          for (auto& word : object->more) word = own;
          if (auto* unread = hands[t][i].exchange(object)) {
            wrong += unread->value != own;
            delete unread;
          }
          if (auto* given = hands[before - 1][i].exchange(nullptr)) {
            wrong += given->value != before || given->more[5] != before;
            delete given;
          }
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  for (auto& hand : hands)
    for (auto& object : hand) delete object.load();
}

}  // namespace
}  // namespace lockstep::dynamic
