// The channel under one and two threads. A lost wake-up would show as a test that never ends: waits here have a limit of
// ten minutes, far beyond what the runner of the tests allows.
#include "coexec/channel.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "dynamic/threads/cores.h"

namespace lockstep::coexec {
namespace {

using std::chrono::microseconds;
constexpr auto kForEver = std::chrono::minutes(10);

struct Item {
  uint64_t value = 0;
};

uint64_t push(Channel<Item>& channel, uint64_t value) {
  channel.slot_to_fill().value = value;
  return channel.push();
}

TEST(Channel, NumbersEventsFromOne) {
  Channel<Item> channel(4);
  EXPECT_FALSE(channel.has_work());
  EXPECT_EQ(push(channel, 7), 1u);
  EXPECT_EQ(push(channel, 8), 2u);
  EXPECT_EQ(channel.asked(), 2u);
  EXPECT_EQ(channel.done(), 0u);
  EXPECT_TRUE(channel.has_work());
  EXPECT_EQ(channel.front().value, 7u);
  channel.finish_front();
  EXPECT_TRUE(channel.is_done(1));
  EXPECT_FALSE(channel.is_done(2));
  EXPECT_EQ(channel.front().value, 8u);
}

TEST(Channel, IsFullAtItsCapacityAndTakesMoreAfterProgress) {
  Channel<Item> channel(4);
  for (uint64_t i = 0; i < 4; ++i) {
    EXPECT_FALSE(channel.is_full());
    push(channel, i);
  }
  EXPECT_TRUE(channel.is_full());
  channel.finish_front();
  EXPECT_FALSE(channel.is_full());
}

TEST(Channel, WaitEndsAtItsLimitWithoutProgress) {
  Channel<Item> channel(4);
  push(channel, 1);
  EXPECT_FALSE(channel.wait_done(1, microseconds(1)));
  channel.finish_front();
  EXPECT_TRUE(channel.wait_done(1, microseconds(1)));
}

TEST(Channel, StoppedConsumerDoesNotSleep) {
  Channel<Item> channel(4);
  channel.stop();
  channel.wait_for_work(kForEver);
  EXPECT_TRUE(channel.is_stopped());
}

// Consumes until it is stopped, and never sleeps longer than it is told to.
class Consumer {
 public:
  explicit Consumer(Channel<Item>& channel) : channel_(channel), thread_([this] { run(); }) {}
  ~Consumer() {
    channel_.stop();
    thread_.join();
  }
  std::vector<uint64_t> seen;  // read after the end, or below what is done

 private:
  void run() {
    for (;;) {
      if (!channel_.has_work()) {
        if (channel_.is_stopped()) return;
        channel_.wait_for_work(kForEver);
        continue;
      }
      seen.push_back(channel_.front().value);
      channel_.finish_front();
    }
  }
  Channel<Item>& channel_;
  std::thread thread_;
};

TEST(Channel, KeepsOrderThroughManyRounds) {
  Channel<Item> channel(8);
  constexpr uint64_t kCount = 50000;
  std::vector<uint64_t> seen;
  {
    Consumer consumer(channel);
    for (uint64_t i = 1; i <= kCount; ++i) {
      if (channel.is_full()) ASSERT_TRUE(channel.wait_done(channel.asked() - 4, kForEver));
      push(channel, i);
    }
    ASSERT_TRUE(channel.wait_done(kCount, kForEver));
    seen = consumer.seen;
  }
  ASSERT_EQ(seen.size(), kCount);
  for (uint64_t i = 0; i < kCount; ++i) ASSERT_EQ(seen[i], i + 1);
}

// Each round lets the consumer go to sleep and waits for the answer: 20,000 chances to lose a wake-up on either side.
TEST(Channel, LosesNoWakeUpInPingPong) {
  Channel<Item> channel(8);
  Consumer consumer(channel);
  for (uint64_t i = 1; i <= 20000; ++i) {
    const uint64_t number = push(channel, i);
    ASSERT_TRUE(channel.wait_done(number, kForEver));
  }
}

// A foreign thread waits for all that was asked while the leading one waits for an event of its own.
TEST(Channel, WakesEachOfTwoWaiters) {
  Channel<Item> channel(64);
  Consumer consumer(channel);
  std::atomic<uint64_t> asked{0};
  std::atomic<bool> stop{false};
  std::thread foreign([&] {
    while (!stop.load()) {
      const uint64_t number = asked.load();
      if (number) ASSERT_TRUE(channel.wait_done(number, kForEver));
    }
  });
  for (uint64_t i = 1; i <= 20000; ++i) {
    if (channel.is_full()) ASSERT_TRUE(channel.wait_done(channel.asked() - 32, kForEver));
    asked.store(push(channel, i));
    if (i % 3 == 0) ASSERT_TRUE(channel.wait_done(i - (i % 2), kForEver));
  }
  stop.store(true);
  foreign.join();
}

// The same without chance: neither waiter may hide the other's number.
TEST(Channel, ALaterWaiterDoesNotHideAnEarlierOne) {
  Channel<Item> channel(8);
  push(channel, 1);
  push(channel, 2);
  std::atomic<int> awake{0};
  std::thread early([&] {
    EXPECT_TRUE(channel.wait_done(1, kForEver));
    awake.fetch_add(1);
  });
  std::thread late([&] {
    EXPECT_TRUE(channel.wait_done(2, kForEver));
    awake.fetch_add(1);
  });
  for (int i = 0; i < 1000; ++i) std::this_thread::yield();  // most likely both sleep now; right either way
  channel.finish_front();
  early.join();
  channel.finish_front();
  late.join();
  EXPECT_EQ(awake.load(), 2);
}

TEST(Channel, OffersNothingThatIsUnattended) {
  Channel<Item> channel(4);
  channel.set_unattended(true);
  push(channel, 1);
  EXPECT_FALSE(channel.has_work());
  EXPECT_EQ(channel.pending(), 1u);
  channel.finish_front();
  channel.set_unattended(false);
  EXPECT_FALSE(channel.has_work());
  push(channel, 2);
  EXPECT_TRUE(channel.has_work());
}

// The leading thread executes some events itself: the consumer takes none of those, at whatever moment it looks.
TEST(Channel, AConsumerTakesNothingThatIsUnattended) {
  Channel<Item> channel(8);
  const bool has_one_core = dynamic::has_one_core();
  std::atomic<bool> leads{false};  // events are the leading thread's
  std::atomic<int> stolen{0};
  std::atomic<bool> stop{false};
  std::thread consumer([&] {
    while (!stop.load(std::memory_order_relaxed)) {
      if (!channel.has_work()) {
        if (has_one_core) std::this_thread::yield();
        continue;
      }
      stolen.fetch_add(leads.load());
      channel.finish_front();
    }
  });
  for (uint64_t i = 1; i <= 400000 && stolen.load(std::memory_order_relaxed) == 0; ++i) {
    channel.set_unattended(true);
    leads.store(true);
    const uint64_t own = push(channel, i);
    if (channel.done() < own) channel.finish_front();
    leads.store(false);
    channel.set_unattended(false);
    const uint64_t number = push(channel, i);
    while (!channel.is_done(number))
      if (has_one_core) std::this_thread::yield();
  }
  stop.store(true);
  consumer.join();
  EXPECT_EQ(stolen.load(), 0);
  EXPECT_EQ(channel.done(), channel.asked());
}

}  // namespace
}  // namespace lockstep::coexec
