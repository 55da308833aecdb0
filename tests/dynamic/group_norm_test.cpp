// Group norm and its gradients, in both orders of the maps, against PyTorch's own kernel in float64.
#include "dynamic/kernels/group_norm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

namespace lockstep::dynamic {
namespace {

struct Case {
  const char* name;
  std::vector<int64_t> sizes;
  int64_t groups;
  bool affine;
};

// Channels innermost lie in parts, and in rows of several pixels where they are few, with pixels left over.
const Case kCases[] = {
    {"maps", {3, 6, 7, 5}, 2, true},
    {"large_maps", {2, 32, 70, 61}, 8, true},
    {"many_channels", {2, 300, 9, 13}, 100, true},
    {"one_group", {2, 5, 8, 9}, 1, true},
    {"a_group_each", {2, 5, 8, 9}, 5, true},
    {"bare", {3, 6, 7, 5}, 3, false},
    {"one_channel", {4, 1, 6, 6}, 1, true},
    {"one_pixel", {5, 12, 1, 1}, 4, true},
    {"lines", {4, 6, 11}, 3, true},
    {"rows", {7, 24}, 4, true},
    {"volumes", {2, 4, 3, 5, 6}, 2, true},
};

struct GroupNorm : testing::TestWithParam<Case> {
  at::Tensor input, gradient, weight, bias;
  static constexpr double kEps = 1e-5;

  void SetUp() override {
    at::manual_seed(0);
    const auto& c = GetParam();
    input = at::randn(c.sizes) * 3 + 100;  // far from zero: a sum of squares alone would lose the variance
    gradient = at::randn(c.sizes);
    if (c.affine) weight = at::randn({c.sizes[1]}), bias = at::randn({c.sizes[1]});
  }
  int64_t samples() const { return input.size(0); }
  int64_t channels() const { return input.size(1); }
  int64_t pixels() const { return input.numel() / (samples() * channels()); }
  // In planes, and with channels innermost where maps have them so.
  std::vector<at::MemoryFormat> orders() const {
    if (input.dim() != 4) return {at::MemoryFormat::Contiguous};
    return {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast};
  }
};

at::Tensor exactly(const at::Tensor& tensor) { return tensor.defined() ? tensor.to(at::kDouble) : tensor; }

void expect_near(const at::Tensor& own, const at::Tensor& exact, double tolerance, const char* what) {
  ASSERT_EQ(own.sizes(), exact.sizes()) << what;
  const double error = (own.to(at::kDouble) - exact).abs().max().item<double>();
  EXPECT_LE(error, tolerance * (1 + exact.abs().max().item<double>())) << what;
}

TEST_P(GroupNorm, AgreesWithDouble) {
  const int64_t groups = GetParam().groups;
  const auto exact = at::native_group_norm(exactly(input), exactly(weight), exactly(bias), samples(), channels(), pixels(),
                                           groups, kEps);
  for (const auto order : orders()) {
    const auto map = input.contiguous(order);
    torch::jit::Stack stack{map, weight, bias, samples(), channels(), pixels(), groups, kEps};
    ASSERT_TRUE(try_group_norm(stack, /*in_any_order=*/true));
    ASSERT_EQ(stack.size(), 3u);
    expect_near(stack[0].toTensor(), std::get<0>(exact), 1e-5, "output");
    EXPECT_EQ(stack[0].toTensor().strides(), map.strides());
    expect_near(stack[1].toTensor(), std::get<1>(exact), 1e-6, "mean");
    expect_near(stack[2].toTensor(), std::get<2>(exact), 1e-5, "inverse deviation");
  }
}

TEST_P(GroupNorm, GradientsAgreeWithDouble) {
  const int64_t groups = GetParam().groups;
  const auto [out, mean, inverse] = at::native_group_norm(input, weight, bias, samples(), channels(), pixels(), groups, kEps);
  const auto ones = at::ones({channels()}, at::kDouble);  // PyTorch's kernel wants a weight if its gradient is wanted
  const auto exact = at::native_group_norm_backward(exactly(gradient), exactly(input), exactly(mean), exactly(inverse),
                                                    weight.defined() ? exactly(weight) : ones, samples(), channels(), pixels(), groups,
                                                    {true, true, true});
  for (const auto order : orders())
    for (const auto order_of_gradient : orders())
      for (const bool wants_input : {true, false}) {
        const auto map = input.contiguous(order);
        c10::List<bool> mask({wants_input, true, !wants_input});
        torch::jit::Stack stack{gradient.contiguous(order_of_gradient), map, mean, inverse, weight, samples(), channels(),
                                pixels(), groups, mask};
        ASSERT_TRUE(try_group_norm_backward(stack, /*in_any_order=*/true));
        ASSERT_EQ(stack.size(), 3u);
        EXPECT_EQ(stack[0].toTensor().defined(), wants_input);
        EXPECT_EQ(stack[2].toTensor().defined(), !wants_input);
        if (wants_input) {
          expect_near(stack[0].toTensor(), std::get<0>(exact), 2e-5, "input's gradient");
          EXPECT_EQ(stack[0].toTensor().strides(), map.strides());
        }
        expect_near(stack[1].toTensor(), std::get<1>(exact), 2e-5, "weight's gradient");
        if (!wants_input) expect_near(stack[2].toTensor(), std::get<2>(exact), 2e-5, "bias's gradient");
      }
}

TEST_P(GroupNorm, BitsDoNotDependOnTheNumberOfThreads) {
  const int64_t groups = GetParam().groups;
  const int before = at::get_num_threads();
  std::vector<at::Tensor> outputs, gradients;
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    torch::jit::Stack stack{input, weight, bias, samples(), channels(), pixels(), groups, kEps};
    ASSERT_TRUE(try_group_norm(stack));
    torch::jit::Stack back{gradient, input, stack[1], stack[2], weight, samples(), channels(), pixels(), groups,
                           c10::List<bool>({true, true, true})};
    ASSERT_TRUE(try_group_norm_backward(back));
    outputs.push_back(stack[0].toTensor());
    gradients.push_back(back[1].toTensor());
  }
  at::set_num_threads(before);
  EXPECT_TRUE(outputs[0].equal(outputs[1]));
  EXPECT_TRUE(gradients[0].equal(gradients[1]));
}

INSTANTIATE_TEST_SUITE_P(Cases, GroupNorm, testing::ValuesIn(kCases), [](const auto& info) { return info.param.name; });

// Of equal values the mean is their value and the variance zero; of values far from zero both are as exact as elsewhere.
TEST(GroupNormPlanes, AreExactFarFromZero) {
  const auto noise = at::randn({2, 4, 32, 32});
  const int64_t pixels = 32 * 32;
  for (const double level : {100.1, 1e5 + .3}) {
    const auto equal = at::full({2, 4, 32, 32}, level);
    torch::jit::Stack stack{equal, at::Tensor(), at::Tensor(), int64_t{2}, int64_t{4}, pixels, int64_t{2}, 1e-5};
    ASSERT_TRUE(try_group_norm(stack));
    EXPECT_TRUE(stack[0].toTensor().eq(0).all().item<bool>()) << level;
    const auto apart = noise + level;
    stack = {apart, at::Tensor(), at::Tensor(), int64_t{2}, int64_t{4}, pixels, int64_t{2}, 1e-5};
    ASSERT_TRUE(try_group_norm(stack));
    const auto exact = at::native_group_norm(exactly(apart), {}, {}, 2, 4, pixels, 2, 1e-5);
    expect_near(stack[2].toTensor(), std::get<2>(exact), 1e-6, "inverse deviation");
  }
}

// Squares are taken about the mean of the first values, and once more where that is not near all.
TEST(GroupNormPlanes, AreExactWhereTheFirstValuesAreFarFromTheRest) {
  at::manual_seed(0);
  auto input = at::randn({1, 2, 2048, 2048}) * 0.01 + 100;
  input.select(2, 0).narrow(2, 0, 256).zero_();
  const int64_t pixels = 2048 * 2048;
  torch::jit::Stack stack{input, at::Tensor(), at::Tensor(), int64_t{1}, int64_t{2}, pixels, int64_t{1}, 1e-9};
  ASSERT_TRUE(try_group_norm(stack));
  const auto exact = at::native_group_norm(exactly(input), {}, {}, 1, 2, pixels, 1, 1e-9);
  expect_near(stack[2].toTensor(), std::get<2>(exact), 5e-7, "inverse deviation");
}

TEST(GroupNormTable, LeavesToPyTorchWhatItDoesNotKnow) {
  const auto x = at::randn({2, 4, 3, 3});
  const auto refuses = [](const at::Tensor& input, const at::Tensor& weight, int64_t groups, bool in_any_order) {
    torch::jit::Stack stack{input, weight, at::Tensor(), int64_t{2}, int64_t{4}, int64_t{9}, groups, 1e-5};
    return !try_group_norm(stack, in_any_order) && stack.size() == 8;
  };
  EXPECT_FALSE(refuses(x, {}, 2, false));
  EXPECT_TRUE(refuses(x, {}, 3, false));
  EXPECT_TRUE(refuses(x.to(at::kDouble), {}, 2, false));
  EXPECT_TRUE(refuses(x.contiguous(at::MemoryFormat::ChannelsLast), {}, 2, false));
  EXPECT_FALSE(refuses(x.contiguous(at::MemoryFormat::ChannelsLast), {}, 2, true));
  EXPECT_TRUE(refuses(x, at::ones({3}), 2, false));
  EXPECT_TRUE(refuses(x, at::ones({4}, at::kBFloat16), 2, false));
  EXPECT_TRUE(refuses(at::randn({2, 4, 3, 4}), {}, 2, false));
}

TEST(GroupNormTable, DimsOfOneElementHaveTheStridesOfPyTorch) {
  for (const auto& x : {at::randn({1, 3}).slice(1, 0, 2), at::randn({1, 4, 3, 3}).slice(1, 0, 2),
                        at::randn({4, 9, 1}).as_strided({4, 1, 3, 3}, {9, 1, 3, 1})}) {
    const int64_t n = x.size(0), channels = x.size(1), pixels = x.numel() / (n * channels);
    const auto [out, mean, inverse] = at::native_group_norm(x, {}, {}, n, channels, pixels, 1, 1e-5);
    torch::jit::Stack stack{x, at::Tensor(), at::Tensor(), n, channels, pixels, int64_t{1}, 1e-5};
    ASSERT_TRUE(try_group_norm(stack));
    EXPECT_EQ(stack[0].toTensor().strides(), out.strides());
    const auto back = at::native_group_norm_backward(x, x, mean, inverse, {}, n, channels, pixels, 1, {true, false, false});
    torch::jit::Stack own{x, x, mean, inverse, at::Tensor(), n, channels, pixels, int64_t{1},
                          c10::List<bool>({true, false, false})};
    ASSERT_TRUE(try_group_norm_backward(own));
    EXPECT_EQ(own[0].toTensor().strides(), std::get<0>(back).strides());
  }
}

}  // namespace
}  // namespace lockstep::dynamic
