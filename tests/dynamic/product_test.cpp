#include "dynamic/kernels/product.h"

#include <ATen/ATen.h>
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

TEST_F(Products, LeavesWhatItDoesNotKnow) {
  const auto x = at::randn({200, 200});
  auto takes = [](const at::Tensor& left, const at::Tensor& right) {
    torch::jit::Stack stack{left, right};
    const bool taken = try_mm(stack);
    EXPECT_EQ(stack.size(), taken ? 1u : 2u);
    return taken;
  };
  EXPECT_TRUE(takes(x, x));
  EXPECT_FALSE(takes(x.slice(0, 0, 8), x)) << "too small";
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
