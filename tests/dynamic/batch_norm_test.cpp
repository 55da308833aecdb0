// Batch norm in training and its gradients against PyTorch's own kernel in float64.
#include "dynamic/kernels/batch_norm.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace lockstep::dynamic {
namespace {

struct Case {
  const char* name;
  std::vector<int64_t> sizes;
  bool affine, running;
};

// One pixel a channel is summed by column, several rows at once where they are short, with rows left over.
const Case kCases[] = {
    {"planes", {3, 5, 7, 6}, true, true},
    {"large_planes", {2, 3, 80, 70}, true, true},
    {"one_sample", {1, 4, 9, 9}, true, true},
    {"bare", {3, 5, 7, 6}, false, false},
    {"no_running", {4, 3, 5, 5}, true, false},
    {"lines", {4, 6, 11}, true, true},
    {"volumes", {2, 3, 4, 5, 6}, true, true},
    {"rows", {9, 5}, true, true},
    {"many_rows", {5003, 24}, true, true},
    {"wide_rows", {37, 300}, true, true},
    {"few_narrow_rows", {2, 3}, true, true},
    {"rows_as_maps", {700, 12, 1, 1}, true, true},
    {"planes_past_the_cache", {2, 67, 253, 250}, true, true},
    {"rows_past_the_cache", {130001, 67}, true, true},
};

struct BatchNorm : testing::TestWithParam<Case> {
  at::Tensor input, gradient, weight, bias, mean, variance;
  static constexpr double kMomentum = 0.1, kEps = 1e-5;

  void SetUp() override {
    at::manual_seed(0);
    const auto& c = GetParam();
    input = at::randn(c.sizes) * 3 + 100;  // far from zero: a sum of squares alone would lose the variance
    gradient = at::randn(c.sizes);
    if (c.affine) weight = at::randn({c.sizes[1]}), bias = at::randn({c.sizes[1]});
    if (c.running) mean = at::randn({c.sizes[1]}), variance = at::rand({c.sizes[1]}) + 0.5;
  }
};

at::Tensor exactly(const at::Tensor& tensor) { return tensor.defined() ? tensor.to(at::kDouble) : tensor; }

void expect_near(const at::Tensor& own, const at::Tensor& exact, double tolerance, const char* what) {
  ASSERT_EQ(own.sizes(), exact.sizes()) << what;
  EXPECT_TRUE(own.is_contiguous()) << what;
  const double error = (own.to(at::kDouble) - exact).abs().max().item<double>();
  EXPECT_LE(error, tolerance * (1 + exact.abs().max().item<double>())) << what;
}

TEST_P(BatchNorm, AgreesWithDouble) {
  const auto exact_mean = exactly(mean), exact_variance = exactly(variance);
  const auto exact = at::native_batch_norm(exactly(input), exactly(weight), exactly(bias), exact_mean, exact_variance, true,
                                           kMomentum, kEps);
  torch::jit::Stack stack{input, weight, bias, mean, variance, true, kMomentum, kEps};
  ASSERT_TRUE(try_batch_norm(stack));
  ASSERT_EQ(stack.size(), 3u);
  expect_near(stack[0].toTensor(), std::get<0>(exact), 1e-5, "output");
  expect_near(stack[1].toTensor(), std::get<1>(exact), 1e-6, "mean");
  expect_near(stack[2].toTensor(), std::get<2>(exact), 1e-5, "inverse deviation");
  if (mean.defined()) {
    expect_near(mean, exact_mean, 1e-6, "running mean");
    expect_near(variance, exact_variance, 1e-5, "running variance");
  }
}

TEST_P(BatchNorm, GradientsAgreeWithDouble) {
  const auto forward = at::native_batch_norm(input, weight, bias, {}, {}, true, kMomentum, kEps);
  const auto &save_mean = std::get<1>(forward), &save_inverse = std::get<2>(forward);
  const auto exact = at::native_batch_norm_backward(exactly(gradient), exactly(input), exactly(weight), {}, {},
                                                    exactly(save_mean), exactly(save_inverse), true, kEps,
                                                    {true, true, true});
  for (const bool wants_input : {true, false}) {
    c10::List<bool> mask({wants_input, true, !wants_input});
    torch::jit::Stack stack{gradient, input, weight, at::Tensor(), at::Tensor(), save_mean, save_inverse, true, kEps, mask};
    ASSERT_TRUE(try_batch_norm_backward(stack));
    ASSERT_EQ(stack.size(), 3u);
    EXPECT_EQ(stack[0].toTensor().defined(), wants_input);
    EXPECT_EQ(stack[2].toTensor().defined(), !wants_input);
    if (wants_input) expect_near(stack[0].toTensor(), std::get<0>(exact), 2e-5, "input's gradient");
    expect_near(stack[1].toTensor(), std::get<1>(exact), 2e-5, "weight's gradient");
    if (!wants_input) expect_near(stack[2].toTensor(), std::get<2>(exact), 2e-5, "bias's gradient");
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, BatchNorm, testing::ValuesIn(kCases), [](const auto& info) { return info.param.name; });

// Where rows are read once, squares are taken about the mean of the first ones.
TEST(BatchNormRows, AreExactWhereTheFirstAreFarFromTheRest) {
  auto input = at::randn({4000, 70}) * 0.01 + 100;
  input.narrow(0, 0, 300).zero_();
  for (const auto& rows : {input, input.narrow(0, 3000, 1000), at::randn({4000, 7}) * 1e-3 - 1}) {
    torch::jit::Stack stack{rows.contiguous(), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor(), true, 0.1, 1e-9};
    ASSERT_TRUE(try_batch_norm(stack));
    const auto exact = at::native_batch_norm(exactly(rows), {}, {}, {}, {}, true, 0.1, 1e-9);
    expect_near(stack[2].toTensor(), std::get<2>(exact), 1e-5, "inverse deviation");
  }
}

// With nan where PyTorch has nan.
void expect_as_in_eager(const at::Tensor& input) {
  torch::jit::Stack stack{input, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor(), true, 0.1, 1e-5};
  ASSERT_TRUE(try_batch_norm(stack));
  const auto exact = at::native_batch_norm(input, {}, {}, {}, {}, true, 0.1, 1e-5);
  EXPECT_TRUE(at::allclose(stack[0].toTensor(), std::get<0>(exact), 1e-5, 1e-6, true));
  EXPECT_TRUE(at::allclose(stack[1].toTensor(), std::get<1>(exact), 1e-5, 1e-6, true));
  EXPECT_TRUE(at::allclose(stack[2].toTensor(), std::get<2>(exact), 1e-5, 1e-6, true));
}

TEST(BatchNormRows, HaveInfiniteMeansWherePyTorchHas) {
  auto input = at::randn({600, 3});
  input.select(1, 0).select(0, 5).fill_(INFINITY);
  input.select(1, 1).select(0, 500).fill_(-INFINITY);
  input.select(1, 2).select(0, 7).fill_(NAN);
  expect_as_in_eager(input);
}

// Of equal values the mean is their value and the variance zero; of values far from zero both are as exact as elsewhere.
TEST(BatchNormPlanes, AreExactFarFromZero) {
  const auto noise = at::randn({2, 3, 64, 64});
  for (const double level : {100.1, 1e5 + .3}) {
    const auto equal = at::full({2, 3, 64, 64}, level);
    torch::jit::Stack stack{equal, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor(), true, 0.1, 1e-5};
    ASSERT_TRUE(try_batch_norm(stack));
    EXPECT_TRUE(stack[0].toTensor().eq(0).all().item<bool>()) << level;
    EXPECT_TRUE(stack[1].toTensor().eq(static_cast<float>(level)).all().item<bool>()) << level;
    const auto apart = noise + level;
    stack = {apart, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor(), true, 0.1, 1e-5};
    ASSERT_TRUE(try_batch_norm(stack));
    const auto exact = at::native_batch_norm(exactly(apart), {}, {}, {}, {}, true, 0.1, 1e-5);
    expect_near(stack[1].toTensor(), std::get<1>(exact), 1e-7, "mean");
    expect_near(stack[2].toTensor(), std::get<2>(exact), 1e-6, "inverse deviation");
  }
}

// Squares are taken about the mean of the first values, and once more where that is not near all.
TEST(BatchNormPlanes, AreExactWhereTheFirstValuesAreFarFromTheRest) {
  at::manual_seed(0);
  auto input = at::randn({8, 2, 320, 320}) * 0.01 + 100;
  input.select(0, 0).select(1, 0).zero_();
  for (const auto& planes : {input, input.narrow(2, 8, 32), at::randn({5, 2, 3, 3}) * 1e-3 - 1}) {
    torch::jit::Stack stack{planes.contiguous(), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor(), true, 0.1, 1e-9};
    ASSERT_TRUE(try_batch_norm(stack));
    const auto exact = at::native_batch_norm(exactly(planes), {}, {}, {}, {}, true, 0.1, 1e-9);
    expect_near(stack[1].toTensor(), std::get<1>(exact), 1e-7, "mean");
    expect_near(stack[2].toTensor(), std::get<2>(exact), 2e-6, "inverse deviation");
  }
}

TEST(BatchNormPlanes, HaveInfiniteMeansWherePyTorchHas) {
  auto input = at::randn({2, 3, 30, 30});
  input.select(1, 0).select(0, 0).select(0, 0).fill_(INFINITY);
  input.select(1, 1).select(0, 1).select(0, 29).fill_(-INFINITY);
  expect_as_in_eager(input);
}

TEST(BatchNormTable, LeavesToPyTorchWhatItDoesNotKnow) {
  const auto x = at::randn({2, 3, 4, 4});
  const auto refuses = [](const at::Tensor& input, const at::Tensor& weight, bool training) {
    torch::jit::Stack stack{input, weight, at::Tensor(), at::Tensor(), at::Tensor(), training, 0.1, 1e-5};
    return !try_batch_norm(stack) && stack.size() == 8;
  };
  EXPECT_TRUE(refuses(x, {}, false));
  EXPECT_TRUE(refuses(x.to(at::kDouble), {}, true));
  EXPECT_TRUE(refuses(x.contiguous(at::MemoryFormat::ChannelsLast), {}, true));
  EXPECT_TRUE(refuses(x, at::ones({4}), true));
  EXPECT_TRUE(refuses(x, at::ones({3}, at::kBFloat16), true));
  EXPECT_TRUE(refuses(at::randn({1, 3}), {}, true));  // one value a channel has no variance
  EXPECT_TRUE(refuses(at::randn({0, 3, 4, 4}), {}, true));
  torch::jit::Stack aliased{x, at::Tensor(), at::Tensor(), x.view(-1).slice(0, 0, 3), at::ones({3}), true, 0.1, 1e-5};
  EXPECT_FALSE(try_batch_norm(aliased)) << "the running mean is a part of the input";
}

}  // namespace
}  // namespace lockstep::dynamic
