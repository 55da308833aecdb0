// What is light, and that light kernels leave the workers alone.
#include "dynamic/vm/kernel_work.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <utility>

#include <thread>

#include "dynamic/vm/executor.h"
#include "dynamic/threads/thread_team.h"
#include "tests/support/event_case.h"
#include "tests/support/test_ops.h"
#include "tests/support/thread_count.h"

namespace lockstep::dynamic {
namespace {

using Case = EventCase;
using support::thread_count;

bool is_light_op(const char* name, std::vector<c10::IValue> args) { return is_light(Case(name, std::move(args)).event); }

TEST(KernelWork, ElementsCount) {
  EXPECT_TRUE(is_light_op("aten::add.Tensor", {at::rand({100, 100}), at::rand({100}), 1.0}));
  EXPECT_FALSE(is_light_op("aten::add.Tensor", {at::rand({1000, 1000}), at::rand({1000}), 1.0}));
  EXPECT_FALSE(is_light_op("aten::sum", {at::rand({1000, 1000}), c10::IValue()}));  // the largest tensor does
}

TEST(KernelWork, TensorsOfListsCountTogether) {
  const std::vector<at::Tensor> few(10, at::rand({100})), many(10, at::rand({300, 300}));
  EXPECT_TRUE(is_light_op("aten::_foreach_add_.Scalar", {few, 1.0}));
  EXPECT_FALSE(is_light_op("aten::_foreach_add_.Scalar", {many, 1.0}));
}

TEST(KernelWork, ProductsCountMultiplications) {
  EXPECT_TRUE(is_light_op("aten::mm", {at::rand({32, 128}), at::rand({128, 256})}));
  EXPECT_FALSE(is_light_op("aten::mm", {at::rand({256, 256}), at::rand({256, 256})}));
  EXPECT_FALSE(is_light_op("aten::addmm", {at::rand({512}), at::rand({64, 512}), at::rand({512, 512}), 1, 1}));
  const std::vector<int64_t> one{1, 1}, none{0, 0};
  const auto convolution = [&](int64_t size) {
    return std::vector<c10::IValue>{at::rand({4, 16, size, size}), at::rand({16, 16, 3, 3}), c10::IValue(), one, one, one,
                                    false, none, int64_t{1}};
  };
  EXPECT_TRUE(is_light_op("aten::convolution", convolution(8)));
  EXPECT_FALSE(is_light_op("aten::convolution", convolution(64)));
}

TEST(KernelWork, WhatGrowsFasterThanItsTensorsIsNeverLight) {
  EXPECT_FALSE(is_light_op("aten::linalg_eigh", {at::eye(4), std::string_view("L")}));
}

// Threads that this process has gained when `run` has returned, on a thread without workers.
template <class Run>
int gained_threads(Run run) {
  int gained = 0;
  std::thread([&] {
    at::set_num_threads(2);
    const int before = thread_count();
    run();
    gained = thread_count() - before;
    release_thread_team();
  }).join();
  at::set_num_threads(1);
  return gained;
}

TEST(KernelWork, KernelsOfOneThreadMakeNoTeam) {
  const auto x = at::rand({1 << 20}), square = at::rand({400, 400});
  const auto kernels = [&] {
    x.add(1);
    square.mm(square);
  };
  EXPECT_EQ(gained_threads(kernels), 1) << "then this test says nothing";
  EXPECT_EQ(gained_threads([&] {
              const OneThreadScope alone(true);
              EXPECT_EQ(at::get_num_threads(), 1);
              kernels();
            }),
            0);
  EXPECT_EQ(gained_threads([&] {
              { const OneThreadScope alone(true); }
              EXPECT_EQ(at::get_num_threads(), 2);
              square.mm(square);
            }),
            1);
  EXPECT_EQ(gained_threads([&] {
              const OneThreadScope off(false);
              square.mm(square);
            }),
            1);
}

TEST(KernelWork, EventsThatSpareWorkersMakeNoTeamWhereTheyAreLight) {
  const std::pair<Workers, int64_t> largest_alone[] = {
      {Workers::kAsEager, 0}, {Workers::kAwake, 40}, {Workers::kAsleep, 100}};
  for (const auto& [workers, alone] : largest_alone) {
    for (const int64_t size : {40, 100, 400}) {
      Case product("aten::mm", {at::rand({size, size}), at::rand({size, size})});
      product.event.workers = workers;
      EXPECT_EQ(runs_alone(product.event), size <= alone) << static_cast<int>(workers) << ' ' << size;
      if (size > 40)  // whether the BLAS shares the least is its own affair
        EXPECT_EQ(gained_threads([&] { product.run(); }), size <= alone ? 0 : 1) << static_cast<int>(workers) << ' ' << size;
    }
  }
}

}  // namespace
}  // namespace lockstep::dynamic
