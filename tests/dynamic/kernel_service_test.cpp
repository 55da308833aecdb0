// The thread that compiles beside the run, over fork and exit.
#include "dynamic/fusion/kernel_service.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "dynamic/kernels/kernel_choice.h"

namespace lockstep::dynamic {
namespace {

// Nothing on disk: everything is compiled.
const int no_cache = setenv("LOCKSTEP_CACHE", "", 1);

jit::KernelSpec spec_number(int number) {
  jit::KernelSpec spec;
  spec.sizes = {jit::kSymbolic};
  const int x = spec.add_buffer(jit::DType::kFloat32, jit::Access::kIn, {1});
  const int y = spec.add_buffer(jit::DType::kFloat32, jit::Access::kOut, {1});
  const auto value = spec.unary(jit::Op::k_tanh, spec.load(x));
  spec.store(y, spec.binary(jit::Op::k_mul, value, spec.constant(jit::DType::kFloat32, number)));
  return spec;
}

// The child's exit status; it is killed where it hangs.
template <typename Body>
int run_in_child(Body&& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    body();
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

TEST(KernelService, WhatRunsWhileItCompilesIsNotTypical) {
  auto& service = KernelService::instance();
  const auto before = preparation_ticks.load();
  service.request(spec_number(5000));
  service.wait();
  const auto after = preparation_ticks.load();
  EXPECT_GT(after, before);
  service.request(spec_number(5000));  // it is there
  service.wait();
  EXPECT_EQ(preparation_ticks.load(), after);
}

// In the order of asking, all others would be there first.
TEST(KernelService, CompilesFirstWhatIsMissedMost) {
  auto& service = KernelService::instance();
  std::vector<std::shared_ptr<KernelSlot>> slots;
  for (int i = 0; i < 40; ++i) slots.push_back(service.request(spec_number(6000 + i)));
  slots[20]->miss(10);
  slots.back()->miss(1000);
  service.wait_for(*slots.back());
  const auto is_there = [](const auto& slot) { return slot->find() != nullptr; };
  EXPECT_TRUE(is_there(slots.back()));
  EXPECT_LT(std::count_if(slots.begin(), slots.end(), is_there), 20);
  service.wait();
  EXPECT_EQ(std::count_if(slots.begin(), slots.end(), is_there), 40);
}

// Whichever asks first is still looking into the cache when the others begin to wait.
TEST(KernelService, IsThereForAllWhoWaitForIt) {
  auto& service = KernelService::instance();
  constexpr int kThreads = 4, kRounds = 200;
  std::atomic<int> missing{0}, arrived{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        const auto spec = spec_number(8000 + round);
        ++arrived;
        while (arrived < kThreads * (round + 1)) std::this_thread::yield();
        const auto slot = service.request(spec);
        service.wait_for(*slot);
        missing += slot->find() == nullptr;
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(missing, 0);
}

TEST(KernelService, HasAnEndOfKernels) {
  auto& service = KernelService::instance();
  const auto known = service.request(spec_number(7000));
  service.set_most_kernels(1);
  EXPECT_EQ(service.request(spec_number(7000)), known);
  const auto late = service.request(spec_number(7001));
  EXPECT_TRUE(late->has_failed());
  service.wait_for(*late);
  EXPECT_NE(service.failures().back().find("kernels already"), std::string::npos);
  service.set_most_kernels(KernelService::kMostKernels);
  const auto again = service.request(spec_number(7001));
  service.wait();
  EXPECT_NE(again->find(), nullptr);
}

TEST(KernelService, CompilesInAForkedChildToo) {
  auto& service = KernelService::instance();
  for (int round = 0; round < 20; ++round) {
    const int first = 1 + 10 * round;
    for (int i = 0; i < 3; ++i) service.request(spec_number(first + i));
    usleep(round * 500);  // forks at different points of a compilation
    EXPECT_EQ(run_in_child([&] {
                const auto slot = service.request(spec_number(first + 3));
                service.wait();
                _exit(slot->find() ? 0 : 1);
              }),
              0);
    service.wait();
  }
  const auto slot = service.request(spec_number(1));
  EXPECT_TRUE(slot->find());
}

TEST(KernelService, WaitsInAChildForWhatTheParentHadAsked) {
  auto& service = KernelService::instance();
  for (int i = 0; i < 5; ++i) service.request(spec_number(1000 + i));
  EXPECT_EQ(run_in_child([&] {
              service.wait();
              _exit(service.request(spec_number(1004))->find() ? 0 : 1);
            }),
            0);
  service.wait();
}

TEST(KernelService, StopsBeforeTheProcessExits) {
  for (int round = 0; round < 10; ++round)
    EXPECT_EQ(run_in_child([&] {
                for (int i = 0; i < 5; ++i) KernelService::instance().request(spec_number(2000 + 10 * round + i));
                usleep(round * 1000);
                KernelService::stop();
                std::exit(0);
              }),
              0);
}

}  // namespace
}  // namespace lockstep::dynamic
