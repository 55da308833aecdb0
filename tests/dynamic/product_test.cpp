#include "dynamic/kernels/product.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "dynamic/kernels/kernel_choice.h"

namespace lockstep::dynamic {
namespace {

struct Products : testing::Test {
  void SetUp() override {
    setenv("LOCKSTEP_CACHE", "", 1);
    forget_choices();
    at::manual_seed(0);
  }
};

constexpr int kEnough = 6;  // calls, so that each way was taken and the choice is used

at::Tensor matrix(int64_t rows, int64_t columns, bool turned) {
  return turned ? at::randn({columns, rows}).t() : at::randn({rows, columns});
}

void expect_near(const at::Tensor& own, const at::Tensor& exact) {
  ASSERT_EQ(own.sizes(), exact.sizes());
  EXPECT_TRUE(own.is_contiguous());
  EXPECT_LE((own.to(at::kDouble) - exact).abs().max().item<double>(), 1e-5 * exact.abs().max().item<double>());
}

TEST_F(Products, BothWaysAgreeWhateverTheLayouts) {
  for (const bool left_turned : {false, true}) {
    for (const bool right_turned : {false, true}) {
      const auto left = matrix(150, 210, left_turned), right = matrix(210, 190, right_turned), bias = at::randn({190});
      const auto exact = left.to(at::kDouble).mm(right.to(at::kDouble));
      for (int call = 0; call < kEnough; ++call) {
        torch::jit::Stack stack{left, right};
        ASSERT_TRUE(try_mm(stack));
        ASSERT_EQ(stack.size(), 1u);
        expect_near(stack[0].toTensor(), exact);
        torch::jit::Stack with_bias{bias, left, right, 1, 1};
        ASSERT_TRUE(try_addmm(with_bias));
        expect_near(with_bias[0].toTensor(), exact + bias.to(at::kDouble));
      }
    }
  }
}

// Each way on every shape: rows and columns that fill no register, tile or block.
TEST_F(Products, SkinnyOnes) {
  for (const int64_t rows : {1, 7, 33}) {
    for (const auto& [depth, columns] : {std::pair<int64_t, int64_t>{700, 500}, {200, 2001}, {37, 7200}, {3000, 100}}) {
      for (const bool left_turned : {false, true}) {
        for (const bool right_turned : {false, true}) {
          const auto left = matrix(rows, depth, left_turned), right = matrix(depth, columns, right_turned);
          const auto exact = left.to(at::kDouble).mm(right.to(at::kDouble));
          for (const int way : {0, 1, 2}) {
            forced_way = way;
            torch::jit::Stack stack{left, right};
            if (try_mm(stack)) expect_near(stack[0].toTensor(), exact);
          }
          forced_way = -1;
        }
      }
    }
  }
}

TEST_F(Products, ThreadsChangeNoBitsOfStrips) {
  const auto left = matrix(30, 400, false), right = matrix(400, 330, false), turned = matrix(400, 330, true);
  forced_way = 2;
  const int before = at::get_num_threads();
  std::vector<at::Tensor> results;
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    for (const auto& other : {right, turned}) {
      torch::jit::Stack stack{left, other};
      ASSERT_TRUE(try_mm(stack));
      results.push_back(stack[0].toTensor());
    }
  }
  at::set_num_threads(before);
  forced_way = -1;
  for (size_t i = 2; i < results.size(); ++i) EXPECT_TRUE(at::equal(results[i], results[i % 2]));
}

TEST_F(Products, LeavesWhatItDoesNotKnow) {
  const auto x = at::randn({200, 200});
  auto takes = [](const at::Tensor& left, const at::Tensor& right) {
    torch::jit::Stack stack{left, right};
    const bool taken = try_mm(stack);
    EXPECT_EQ(stack.size(), taken ? 1u : 2u);
    return taken;
  };
  EXPECT_TRUE(takes(x, x));
  EXPECT_FALSE(takes(x.slice(0, 0, 4), x)) << "too small";
  EXPECT_FALSE(takes(x, x.slice(0, 0, 100))) << "does not fit: eager says so";
  EXPECT_FALSE(takes(x.to(at::kDouble), x.to(at::kDouble)));
  EXPECT_FALSE(takes(at::randn({200, 400}).slice(1, 0, 400, 2), x)) << "neither rows nor columns are dense";
  auto takes_bias = [&](const at::Tensor& bias, const c10::Scalar& beta) {
    torch::jit::Stack stack{bias, x, x, beta, 1};
    return try_addmm(stack);
  };
  EXPECT_TRUE(takes_bias(at::randn({200}), 1));
  EXPECT_FALSE(takes_bias(at::randn({200}), 0.5));
  EXPECT_FALSE(takes_bias(at::randn({200, 200}), 1));
  at::globalContext().setDeterministicAlgorithms(true, false);
  EXPECT_FALSE(takes(x, x));
  at::globalContext().setDeterministicAlgorithms(false, false);
}

}  // namespace
}  // namespace lockstep::dynamic
