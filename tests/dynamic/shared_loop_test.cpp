#include "dynamic/threads/shared_loop.h"

#include <gtest/gtest.h>
#include <xmmintrin.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/helped_board.h"

namespace lockstep::dynamic {
namespace {

using namespace std::chrono_literals;

struct SharedLoops : testing::Test {
  HelpedBoard board;
};

TEST_F(SharedLoops, EachItemOnce) {
  for (const int64_t count : {0, 1, 2, 7, 8, 9, 100, 1001})
    for (const int64_t grain : {1, 3, 64}) {
      std::vector<std::atomic<int>> seen(count);
      for (int round = 0; round < 50; ++round)
        shared_loop(0, count, grain, [&](int64_t begin, int64_t end) {
          EXPECT_LT(begin, end);
          for (int64_t i = begin; i < end; ++i) seen[i].fetch_add(1);
        });
      for (const auto& times : seen) EXPECT_EQ(times, 50);
    }
}

TEST_F(SharedLoops, WhoWaitsTakesParts) {
  std::atomic<bool> was_there[2] = {false, false};
  shared_loop(0, 8, 1, [&](int64_t, int64_t) {
    ASSERT_LT(number_in_loop(), WorkBoard::kThreads);
    was_there[number_in_loop()] = true;
    EXPECT_EQ(board_of_this_thread(), nullptr) << "a loop inside runs where it is";
    const auto end = std::chrono::steady_clock::now() + 5s;
    while (!(was_there[0] && was_there[1]) && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  });
  EXPECT_TRUE(was_there[0] && was_there[1]);
  while (board.helped() == 0) std::this_thread::yield();
}

// Memory that a loop has for each of its threads is indexed by their numbers.
TEST_F(SharedLoops, LoopsWithinPartsCountFromZero) {
  std::atomic<bool> was_there[2] = {false, false};
  shared_loop(0, 8, 1, [&](int64_t, int64_t) {
    const int number = number_in_loop();
    was_there[number] = true;
    const int threads = loop_threads();
    shared_loop(0, 4, 1, [&](int64_t, int64_t) { EXPECT_LT(number_in_loop(), threads); });
    EXPECT_EQ(number_in_loop(), number);
    const auto end = std::chrono::steady_clock::now() + 5s;
    while (!(was_there[0] && was_there[1]) && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  });
  EXPECT_TRUE(was_there[0] && was_there[1]);
}

// So what one thread wrote in a loop is what it reads in the next one.
TEST_F(SharedLoops, OneTakesPartsFromTheFrontAndTheOtherOneFromTheBack) {
  for (int round = 0; round < 20; ++round) {
    std::vector<int> who(800, -1);
    shared_loop(0, 800, 1, [&](int64_t begin, int64_t end) {
      std::fill(who.begin() + begin, who.begin() + end, number_in_loop());
      std::this_thread::sleep_for(100us);
    });
    EXPECT_TRUE(std::is_sorted(who.begin(), who.end())) << "0 comes first";
    EXPECT_GE(who.front(), 0);
  }
  EXPECT_GT(board.helped(), 0);
}

TEST_F(SharedLoops, RaisesWhatAnyPartRaises) {
  for (const int64_t bad : {0, 5, 7}) {
    const auto run = [&] {
      shared_loop(0, 8, 1, [&](int64_t begin, int64_t) {
        if (begin == bad) throw std::runtime_error("part " + std::to_string(begin));
        std::this_thread::sleep_for(1ms);
      });
    };
    EXPECT_THROW(run(), std::runtime_error);
  }
  std::atomic<int> parts{0};
  shared_loop(0, 8, 1, [&](int64_t, int64_t) { ++parts; });
  EXPECT_EQ(parts, 8) << "and the next loop runs";
}

TEST_F(SharedLoops, HelpersRoundAsWhoTheyHelp) {
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);  // denormals are zero
  std::atomic<int> others{0};
  for (int round = 0; round < 20; ++round)
    shared_loop(0, 8, 1, [&](int64_t, int64_t) {
      if ((_mm_getcsr() & 0x8040) != 0x8040) ++others;
      std::this_thread::sleep_for(100us);
    });
  _mm_setcsr(before);
  EXPECT_EQ(others, 0);
  EXPECT_GT(board.helped(), 0);
}

TEST(SharedLoop, WithoutABoardAsParallelFor) {
  EXPECT_EQ(board_of_this_thread(), nullptr);
  WorkBoard off([] {});
  const BoardScope scope(&off);
  EXPECT_EQ(board_of_this_thread(), nullptr);
  std::atomic<int64_t> sum{0};
  shared_loop(0, 100, 10, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) sum += i;
  });
  EXPECT_EQ(sum, 4950);
}

TEST(SharedLoop, CallsWhoSleeps) {
  std::atomic<int> calls{0};
  WorkBoard board([&] { ++calls; });
  board.set_on(true);
  const BoardScope scope(&board);
  const auto run = [](int64_t parts) { shared_loop(0, parts, 1, [](int64_t, int64_t) {}); };
  run(8);
  EXPECT_EQ(calls, 0) << "nobody sleeps";
  {
    const WorkBoard::SleepScope asleep(board);
    run(8);
    EXPECT_EQ(calls, 1);
    run(2);
    EXPECT_EQ(calls, 1) << "not worth it";
    shared_loop(0, 2, 1, [](int64_t, int64_t) {}, Weight::kHeavy);
    EXPECT_EQ(calls, 2);
  }
  run(8);
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace lockstep::dynamic
