// What the outside can see: exposed storages, foreign memory, other threads.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <functional>
#include <thread>
#include <vector>

#include "coexec/session.h"
#include "tests/support/test_host.h"
#include "tests/support/test_ops.h"

namespace lockstep::coexec {
namespace {

using support::at_line;
using support::Call;

void run(Function& function, const std::function<void()>& body) {
  Call call(function);
  body();
  call.end();
}

TEST(Doors, ARawPointerSeesEachWriteBeforeTheLeaderGoesOn) {
  Function function;
  const auto x = at::zeros({1024});
  for (int i = 0; i < 4; ++i) {
    run(function, [&] {
      at_line(1);
      auto y = x.add(1);
      auto* raw = static_cast<float*>(y.storage().mutable_data());
      EXPECT_EQ(raw[100], 1);
      at_line(2);
      y.add_(1);
      EXPECT_EQ(raw[100], 2);  // asked means done
      raw[100] = 50;
      at_line(3);
      auto z = y.mul(2);
      raw[100] = 0;  // after the op was asked: too late to matter
      at_line(4);
      EXPECT_EQ(z.select(0, 100).item<float>(), 100);
    });
  }
}

TEST(Doors, ABufferMayBeOverwrittenRightAfterTheOpWasAsked) {
  Function function;
  std::vector<float> buffer(1024, 1);
  for (int i = 0; i < 4; ++i) {
    std::fill(buffer.begin(), buffer.end(), static_cast<float>(i));
    at::Tensor y;
    run(function, [&] {
      auto x = at::from_blob(buffer.data(), {1024});
      at_line(1);
      y = x.mul(2);
      std::fill(buffer.begin(), buffer.end(), 99.0f);
      at_line(2);
      x.add_(1);
      EXPECT_EQ(buffer[5], 100);
    });
    EXPECT_TRUE(at::equal(y, at::full({1024}, 2.0 * i)));
  }
}

// A tensor with a pending write in place, reached through its memory by someone who knows it.
TEST(Doors, TakingThePointerWaitsForPendingWrites) {
  Function function;
  auto state = at::zeros({1024});
  const auto x = at::ones({1024});
  auto body = [&] {
    at_line(1);
    auto y = support::gate(x);
    at_line(2);
    state.add_(y);
  };
  run(function, body);
  Call call(function);
  support::ClosedGate closed;
  body();
  support::test_host().on_next_wait([] { support::open_gate(); });
  EXPECT_EQ(static_cast<float*>(state.storage().mutable_data())[7], 2);
  call.end();
}

TEST(Doors, AnotherThreadWaitsForWhatWasAsked) {
  Function function;
  const auto x = at::rand({1024});
  at::Tensor y;
  auto body = [&] {
    at_line(1);
    y = support::gate(x).add(1);
  };
  run(function, body);
  Call call(function);
  support::ClosedGate closed;
  body();
  at::Tensor seen;
  std::thread other([&] {
    tracer::enable_foreign(true);
    seen = y.mul(2);
    tracer::enable_foreign(false);
  });
  support::open_gate();
  other.join();
  EXPECT_TRUE(at::equal(seen, x.add(1).mul(2)));
  call.end();
}

// Threads with functions of their own, and tensors that die on another thread than the one that made them.
TEST(Doors, EachThreadHasASessionOfItsOwn) {
  support::session();
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      Function function;
      const auto x = at::full({1024}, 1.0 + t);
      at::Tensor kept;
      for (int i = 0; i < 30; ++i) {
        run(function, [&] {
          at_line(1);
          auto y = x.add(i);
          at_line(2);
          kept = y.mul(2);
          at_line(3);
          if (y.select(0, 0).item<double>() != 1.0 + t + i) ++wrong;
        });
        if (!at::equal(kept, x.add(i).mul(2))) ++wrong;
      }
      std::thread([dying = std::move(kept)]() mutable { dying = at::Tensor(); }).join();
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

// A value made in one thread's call is used, unfinished, in another one's.
TEST(Doors, AnotherSessionsPlaceholderIsFinishedFirst) {
  Function mine, others;
  const auto x = at::rand({1024});
  at::Tensor shared;
  auto body = [&] {
    at_line(1);
    shared = support::gate(x).add(1);
  };
  run(mine, body);
  std::thread([&] { run(others, [&] { at_line(5); shared.mul(2); }); }).join();
  Call call(mine);
  support::ClosedGate closed;
  body();
  at::Tensor result;
  std::thread other([&] {
    run(others, [&] {
      at_line(5);
      result = shared.mul(2);
    });
  });
  support::open_gate();
  other.join();
  EXPECT_TRUE(at::equal(result, x.add(1).mul(2)));
  call.end();
}

// One thread is about to take a tensor over while the other one, which may read it still, asks for one more op.
TEST(Doors, AStorageIsTakenOverWithWhatItsOwnerAskedForMeanwhile) {
  Function mine, others;
  const auto start = at::rand({1024});
  at::Tensor shared, result;
  auto make = [&] {
    at_line(1);
    shared = start.add(1);
  };
  auto use = [&] {
    at_line(2);
    result = support::gate(start).add(shared);
  };
  auto write = [&] {
    at_line(5);
    const auto read = shared.mul(2);
    at_line(6);
    shared.add_(1);
  };
  for (int i = 0; i < 3; ++i) {
    run(mine, [&] { make(), use(); });
    run(others, write);
  }
  for (int round = 0; round < 20; ++round) {
    Call call(mine);
    make();
    auto& channel = support::session().runner().channel();
    while (!channel.is_done(channel.asked())) std::this_thread::yield();  // and nobody has published it
    links_lock.lock();  // what the other thread needs on its way
    std::atomic<bool> begins{false};
    std::thread other([&] {
      support::session();
      begins = true;
      run(others, write);
    });
    while (!begins) std::this_thread::yield();
    for (int i = 0; i < 1000; ++i) std::this_thread::yield();
    support::ClosedGate closed;
    use();
    links_lock.unlock();
    for (int i = 0; i < 1000; ++i) std::this_thread::yield();
    support::open_gate();
    other.join();
    call.end();
    ASSERT_TRUE(at::equal(result, start.add(start.add(1)))) << round;
    ASSERT_TRUE(at::equal(shared, start.add(2)));
  }
}

// Parameters that several threads read at the same time, each in a function of its own: from the first use on.
TEST(Doors, ThreadsShareTensors) {
  support::session();
  for (int round = 0; round < 10; ++round) {
    std::vector<at::Tensor> shared;
    for (int i = 0; i < 8; ++i) shared.push_back(at::full({1024}, i));
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        Function function;
        for (int call = 0; call < 20; ++call) {
          at::Tensor sum;
          run(function, [&] {
            at_line(1);
            sum = shared[0].add(t);
            for (const auto& tensor : shared) {
              at_line(2);
              sum = sum.add(tensor);
            }
          });
          if (!at::equal(sum, at::full({1024}, 28.0 + t))) ++wrong;
        }
      });
    for (auto& thread : threads) thread.join();
    ASSERT_EQ(wrong.load(), 0);
  }
}

// As many calls at once as there are threads; afterwards most of their runners are in nobody's way.
TEST(Doors, RunnersEndWithTheThreadsThatHadThem) {
  constexpr int kThreads = 6, kStaying = 2;
  const auto running = [] {
    const auto all = Session::all();
    return std::count_if(all.begin(), all.end(), [](Session* session) { return session->runner().is_running(); });
  };
  support::session();
  for (int round = 0; round < 3; ++round) {
    std::atomic<int> right{0};
    std::barrier all_begin(kThreads);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t)
      threads.emplace_back([&, t] {
        Function function;
        all_begin.arrive_and_wait();
        for (int call = 0; call < 5; ++call) {
          at::Tensor sum;
          run(function, [&] {
            at_line(1);
            sum = at::full({1024}, t).add(1);
          });
          right += at::equal(sum, at::full({1024}, t + 1.0));
        }
        EXPECT_TRUE(support::session().runner().is_running());
        all_begin.arrive_and_wait();
      });
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(right.load(), 5 * kThreads);
    EXPECT_LE(running(), 1 + kStaying) << "this thread's and those";
  }
}

TEST(Doors, TensorsDropOnOtherThreadsWhileTheyArePending) {
  Function function;
  const auto x = at::rand({1024});
  for (int round = 0; round < 20; ++round) {
    std::vector<at::Tensor> made;
    Call call(function);
    for (int i = 0; i < 50; ++i) {
      at_line(1);
      made.push_back(x.add(i));
    }
    std::thread other([dying = std::move(made)]() mutable { dying.clear(); });
    at_line(2);
    auto y = x.mul(2);
    call.end();
    other.join();
    EXPECT_TRUE(at::equal(y, x.mul(2)));
  }
}

}  // namespace
}  // namespace lockstep::coexec
