// Products, convolutions and attention of bfloat16 and float16 by way of float32: as near to the exact values as one
// rounding allows.
#include "dynamic/kernels/by_float32.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <tuple>

#include "dynamic/kernels/kernel_choice.h"
#include "dynamic/kernels/product.h"

namespace lockstep::dynamic {
namespace {

using torch::jit::Stack;

struct ByFloat32 : testing::TestWithParam<std::tuple<int, at::ScalarType>> {  // the way that is taken, and what for
  void SetUp() override {
    setenv("LOCKSTEP_CACHE", "", 1);
    forget_choices();
    forced_way = std::get<0>(GetParam());
    at::manual_seed(0);
  }
  void TearDown() override { forced_way = -1; }

  at::ScalarType type() const { return std::get<1>(GetParam()); }
  double half_ulp() const { return std::ldexp(1.0, type() == at::kHalf ? -11 : -8); }
  void expect_one_rounding(const char* name, const Stack& arguments);
};
INSTANTIATE_TEST_SUITE_P(Ways, ByFloat32, testing::Combine(testing::Values(0, 1), testing::Values(at::kBFloat16, at::kHalf)));

Stack in_type(Stack stack, at::ScalarType type) {
  for (auto& value : stack)
    if (value.isTensor() && value.toTensor().defined()) value = value.toTensor().to(type);
  return stack;
}

void ByFloat32::expect_one_rounding(const char* name, const Stack& arguments) {
  const auto& op = *graph::find_op_info(name);
  Stack own = in_type(arguments, type()), exact = in_type(own, at::kDouble), eager = own;
  ASSERT_TRUE(try_by_float32(op, find_own_kernel(op), own)) << name;
  op.handle.callBoxed(&exact);
  op.handle.callBoxed(&eager);
  ASSERT_EQ(own.size(), exact.size());
  for (size_t r = 0; r < own.size(); ++r) {
    if (!exact[r].isTensor() || !exact[r].toTensor().defined()) {
      EXPECT_FALSE(own[r].isTensor() && own[r].toTensor().defined());
      continue;
    }
    const auto result = own[r].toTensor(), wanted = exact[r].toTensor();
    EXPECT_EQ(result.scalar_type(), eager[r].toTensor().scalar_type());
    EXPECT_EQ(result.sizes(), wanted.sizes());
    EXPECT_EQ(result.strides(), eager[r].toTensor().strides());
    if (forced_way == 0) {
      EXPECT_TRUE(result.equal(eager[r].toTensor())) << name << r;
      continue;
    }
    const auto most = wanted.abs() * half_ulp() * 1.01 + wanted.abs().max() * 1e-5;  // what float32's sums may add
    EXPECT_TRUE(((result.to(at::kDouble) - wanted).abs() <= most).all().item<bool>()) << name << r;
  }
}

TEST_P(ByFloat32, Products) {
  const auto left = at::randn({60, 170}), right = at::randn({170, 90});
  expect_one_rounding("aten::mm", {left, right});
  expect_one_rounding("aten::mm", {left, at::randn({90, 170}).t()});
  expect_one_rounding("aten::addmm", {at::randn({90}), left, right, 1, 1});
  expect_one_rounding("aten::addmm", {at::randn({60, 90}), left, right, 0.5, 2.0});
  expect_one_rounding("aten::baddbmm", {at::randn({4, 60, 50}), at::randn({4, 60, 70}), at::randn({4, 70, 50}), 1, 0.5});
  expect_one_rounding("aten::bmm", {at::randn({4, 60, 70}), at::randn({4, 70, 50})});
}

TEST_P(ByFloat32, Convolutions) {
  const std::vector<int64_t> one{1, 1}, none{0, 0};
  for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
    const auto input = at::randn({4, 8, 24, 24}).contiguous(format), weight = at::randn({12, 8, 3, 3});
    const auto gradient = at::randn({4, 12, 24, 24}).contiguous(format), bias = at::randn({12});
    expect_one_rounding("aten::convolution", {input, weight, bias, one, one, one, false, none, 1});
    expect_one_rounding("aten::convolution", {input, weight, c10::IValue(), one, one, one, false, none, 1});
    const std::vector<int64_t> bias_sizes{12};
    for (const bool wants_input : {false, true})
      expect_one_rounding("aten::convolution_backward", {gradient, input, weight, bias_sizes, one, one, one, false, none, 1,
                                                         std::vector<bool>{wants_input, true, true}});
  }
}

// Whether the weight's gradient comes back, too, PyTorch's kernels do not agree on.
TEST_P(ByFloat32, TheGradientOfABiasAloneIsLeftToPyTorch) {
  const std::vector<int64_t> one{1, 1}, none{0, 0}, bias_sizes{12};
  const auto& op = *graph::find_op_info("aten::convolution_backward");
  for (const bool wants_input : {false, true}) {
    Stack stack{at::randn({4, 12, 24, 24}).to(type()), at::randn({4, 8, 24, 24}).to(type()), at::randn({12, 8, 3, 3}).to(type()),
                bias_sizes, one, one, one, false, none, 1, std::vector<bool>{wants_input, false, true}};
    EXPECT_FALSE(try_by_float32(op, find_own_kernel(op), stack));
  }
}

TEST_P(ByFloat32, Attention) {
  const auto q = at::randn({2, 4, 64, 16}), k = at::randn({2, 4, 64, 16}), v = at::randn({2, 4, 64, 16}), mask = at::randn({64, 64});
  for (const bool is_causal : {false, true}) {
    const c10::IValue given = is_causal ? c10::IValue() : c10::IValue(mask), scale = 0.3;
    expect_one_rounding("aten::_scaled_dot_product_flash_attention_for_cpu", {q, k, v, 0.0, is_causal, given, scale});
  }
}

// What PyTorch computes from the same operands in float32, with the sums that the forward pass kept.
TEST_P(ByFloat32, GradientOfAttention) {
  const auto heads = [&] { return at::randn({2, 4, 40, 16}).to(type()); };
  const auto q = heads(), k = heads(), v = heads(), gradient = heads();
  const auto [out, sums] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v);
  const auto& op = *graph::find_op_info("aten::_scaled_dot_product_flash_attention_for_cpu_backward");
  Stack own{gradient, q, k, v, out, sums, 0.0, false, c10::IValue(), c10::IValue()};
  Stack exact = in_type(own, at::kFloat);
  ASSERT_TRUE(try_by_float32(op, find_own_kernel(op), own));
  op.handle.callBoxed(&exact);
  for (size_t r = 0; r < 3; ++r) {
    const auto result = own[r].toTensor(), wanted = exact[r].toTensor();
    EXPECT_EQ(result.scalar_type(), type());
    const bool is_widened = forced_way == 1;
    EXPECT_TRUE(at::allclose(result.to(at::kFloat), wanted, is_widened ? half_ulp() : 0.02, is_widened ? 1e-6 : 0.02));
  }
}

TEST_P(ByFloat32, OtherTypesAndFewValuesAreLeftAlone) {
  const auto& op = *graph::find_op_info("aten::mm");
  for (const auto& stack : {Stack{at::randn({200, 200}), at::randn({200, 200})},
                            Stack{at::randn({4, 5}).to(type()), at::randn({5, 6}).to(type())}}) {
    Stack own = stack;
    EXPECT_FALSE(try_by_float32(op, find_own_kernel(op), own));
    EXPECT_EQ(own.size(), 2u);
  }
}

struct ByFloat32Choice : testing::TestWithParam<at::ScalarType> {
  void SetUp() override {
    setenv("LOCKSTEP_CACHE", "", 1);
    forget_choices();
  }
};
INSTANTIATE_TEST_SUITE_P(Types, ByFloat32Choice, testing::Values(at::kBFloat16, at::kHalf));

TEST_P(ByFloat32Choice, SettlesAndStays) {
  const auto type = GetParam();
  if (type == at::kBFloat16 && has_bfloat16_products()) GTEST_SKIP() << "the processor multiplies bfloat16";
  const auto& op = *graph::find_op_info("aten::mm");
  const auto left = at::randn({200, 300}).to(type), right = at::randn({300, 200}).to(type);
  const auto exact = left.to(at::kDouble).mm(right.to(at::kDouble));
  uint64_t prepared = 0;
  const int calls = type == at::kBFloat16 ? 12 : 40;  // where the product of float32 has ways to choose from, too
  for (int call = 0; call < calls; ++call) {
    prepared = preparation_ticks;
    Stack stack{left, right};
    ASSERT_TRUE(try_by_float32(op, find_own_kernel(op), stack));
    EXPECT_LE((stack[0].toTensor().to(at::kDouble) - exact).abs().max().item<double>(), 0x1p-7 * exact.abs().max().item<double>());
  }
  EXPECT_EQ(prepared, preparation_ticks);  // the last call measured nothing
  for (int64_t depth = 300; depth < 320; ++depth) {  // nor do others of about these sizes
    Stack stack{at::randn({200, depth}).to(type), at::randn({depth, 200}).to(type)};
    ASSERT_TRUE(try_by_float32(op, find_own_kernel(op), stack));
  }
  EXPECT_EQ(prepared, preparation_ticks);
  for (const auto& mixed : {Stack{left, right.to(at::kFloat)}, Stack{left.to(at::kFloat), right}}) {
    Stack stack = mixed;
    EXPECT_FALSE(try_by_float32(op, find_own_kernel(op), stack));  // PyTorch's kernel refuses them
  }
}

// Products are left to a processor that multiplies the type, all else is measured.
TEST_P(ByFloat32Choice, LeavesProductsToTheProcessor) {
  const auto type = GetParam();
  const auto takes = [](const char* name, Stack stack) {
    const auto& op = *graph::find_op_info(name);
    return try_by_float32(op, find_own_kernel(op), stack);
  };
  const auto square = at::randn({200, 200}).to(type), heads = at::randn({2, 4, 64, 64}).to(type);
  EXPECT_EQ(takes("aten::mm", {square, square}), type != at::kBFloat16 || !has_bfloat16_products());
  EXPECT_TRUE(takes("aten::_scaled_dot_product_flash_attention_for_cpu",
                    {heads, heads, heads, 0.0, false, c10::IValue(), c10::IValue()}));
}

}  // namespace
}  // namespace lockstep::dynamic
