// Attention and its gradients by our own loops, against PyTorch's kernel in float64, and its layouts.
#include "dynamic/kernels/attention.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "dynamic/kernels/kernel_choice.h"

namespace lockstep::dynamic {
namespace {

using at::Tensor;
using torch::jit::Stack;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

enum class Mask { kNone, kByKey, kByKeyOfSample, kByPair, kByHead, kSpread };

struct Case {
  const char* name;
  int64_t batch, heads, queries, keys, width;
  bool is_causal = false;
  Mask mask = Mask::kNone;
  std::optional<double> scale = std::nullopt;
};

const Case kCases[] = {
    {"blocks_and_a_rest", 2, 3, 101, 101, 32},
    {"other_lengths", 2, 3, 37, 90, 32},
    {"causal", 2, 3, 101, 101, 32, true},
    {"causal_with_more_keys", 1, 2, 50, 130, 48, true},
    {"causal_with_fewer_keys", 1, 2, 130, 50, 48, true},
    {"odd_width", 2, 2, 70, 75, 27},
    {"narrow", 4, 4, 100, 100, 5},
    {"wide", 1, 2, 40, 40, 160},
    {"few_queries", 2, 4, 5, 200, 80},
    {"many_keys", 1, 1, 20, 1300, 24},
    {"more_keys_than_a_block_has_room_for", 1, 1, 40, 3500, 8},
    {"mask_by_key", 2, 3, 60, 61, 32, false, Mask::kByKey},
    {"mask_by_key_of_sample", 2, 3, 60, 61, 32, false, Mask::kByKeyOfSample},
    {"mask_by_pair", 2, 3, 60, 61, 32, false, Mask::kByPair},
    {"mask_by_head", 2, 3, 60, 61, 32, false, Mask::kByHead},
    {"spread_mask", 2, 3, 60, 61, 32, false, Mask::kSpread},
    {"causal_and_masked", 2, 3, 60, 61, 32, true, Mask::kByPair},
    {"scaled", 2, 3, 60, 61, 32, false, Mask::kNone, 0.7},
    {"very_wide", 1, 2, 40, 40, 1100},
    {"scaled_down", 2, 3, 60, 61, 32, false, Mask::kNone, -0.3},
};

struct Attention : testing::TestWithParam<Case> {
  Tensor query, key, value, gradient;
  c10::IValue mask, scale;

  void SetUp() override {
    at::manual_seed(0);
    forced_way = 1;
    const auto& c = GetParam();
    query = at::randn({c.batch, c.heads, c.queries, c.width});
    key = at::randn({c.batch, c.heads, c.keys, c.width});
    value = at::randn({c.batch, c.heads, c.keys, c.width});
    gradient = at::randn({c.batch, c.heads, c.queries, c.width});
    if (c.scale) scale = *c.scale;
    switch (c.mask) {
      case Mask::kNone: break;
      case Mask::kByKey: mask = at::randn({1, c.keys}); break;
      case Mask::kByKeyOfSample: mask = at::randn({c.batch, 1, 1, c.keys}); break;
      case Mask::kByPair: mask = at::randn({c.queries, c.keys}); break;
      case Mask::kByHead: mask = at::randn({c.batch, c.heads, c.queries, c.keys + 3}).slice(3, 0, c.keys); break;
      case Mask::kSpread: mask = at::randn({c.batch, 1, 1, c.keys}).expand({c.batch, c.heads, c.queries, c.keys}); break;
    }
  }
  void TearDown() override { forced_way = -1; }

  Stack forward_of(const Tensor& q, const Tensor& k, const Tensor& v) const {
    return {q, k, v, 0.0, GetParam().is_causal, mask, scale};
  }
  Stack backward_of(const Tensor& g, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& sums) const {
    return {g, q, k, v, out, sums, 0.0, GetParam().is_causal, mask, scale};
  }

  std::optional<Tensor> exact_mask() const {
    return mask.isTensor() ? std::optional(mask.toTensor().to(at::kDouble)) : std::nullopt;
  }
  std::tuple<Tensor, Tensor> exact() const {
    return at::_scaled_dot_product_flash_attention_for_cpu(query.to(at::kDouble), key.to(at::kDouble), value.to(at::kDouble), 0,
                                                           GetParam().is_causal, exact_mask(), scale.toOptional<double>());
  }
};

// As they come, as modules make them, and as parts of one tensor.
std::vector<Tensor> layouts_of(const Tensor& tensor) {
  const auto sizes = tensor.sizes();
  const auto parts = at::zeros({sizes[0], sizes[2], 3, sizes[1], sizes[3]}).select(2, 1).transpose(1, 2);
  parts.copy_(tensor);
  return {tensor, tensor.transpose(1, 2).contiguous().transpose(1, 2), parts};
}

void expect_near(const Tensor& own, const Tensor& exact, double tolerance, const char* what) {
  ASSERT_EQ(own.sizes(), exact.sizes()) << what;
  const double error = (own.to(at::kDouble) - exact).abs().max().item<double>();
  EXPECT_LE(error, tolerance * (1 + exact.abs().max().item<double>())) << what;
}

TEST_P(Attention, AgreesWithDouble) {
  const auto [exact_out, exact_sums] = exact();
  for (size_t layout = 0; layout < 3; ++layout) {
    const auto q = layouts_of(query)[layout], k = layouts_of(key)[layout], v = layouts_of(value)[layout];
    auto stack = forward_of(q, k, v);
    ASSERT_TRUE(try_attention(stack));
    ASSERT_EQ(stack.size(), 2u);
    expect_near(stack[0].toTensor(), exact_out, 2e-6, "output");
    expect_near(stack[1].toTensor(), exact_sums, 2e-6, "logarithms of sums");
    const auto [out, sums] = at::_scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0, GetParam().is_causal, mask.toOptional<Tensor>(), scale.toOptional<double>());
    EXPECT_EQ(stack[0].toTensor().strides(), out.strides());
    EXPECT_EQ(stack[1].toTensor().strides(), sums.strides());
  }
}

TEST_P(Attention, GradientsAgreeWithDouble) {
  const auto [exact_out, exact_sums] = exact();
  const auto [of_query, of_key, of_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      gradient.to(at::kDouble), query.to(at::kDouble), key.to(at::kDouble), value.to(at::kDouble), exact_out, exact_sums, 0,
      GetParam().is_causal, exact_mask(), scale.toOptional<double>());
  for (size_t layout = 0; layout < 3; ++layout)
    for (size_t of_gradient = 0; of_gradient < 4; ++of_gradient) {
      const auto q = layouts_of(query)[layout], k = layouts_of(key)[layout], v = layouts_of(value)[layout];
      // The last one in no order that the kernel takes.
      const auto g = of_gradient < 3 ? layouts_of(gradient)[of_gradient] : gradient.transpose(2, 3).contiguous().transpose(2, 3);
      const auto [out, sums] = at::_scaled_dot_product_flash_attention_for_cpu(
          q, k, v, 0, GetParam().is_causal, mask.toOptional<Tensor>(), scale.toOptional<double>());
      auto stack = backward_of(g, q, k, v, out, sums);
      ASSERT_TRUE(try_attention_backward(stack));
      ASSERT_EQ(stack.size(), 3u);
      expect_near(stack[0].toTensor(), of_query, 4e-6, "query's gradient");
      expect_near(stack[1].toTensor(), of_key, 4e-6, "key's gradient");
      expect_near(stack[2].toTensor(), of_value, 4e-6, "value's gradient");
      const auto theirs = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          g, q, k, v, out, sums, 0, GetParam().is_causal, mask.toOptional<Tensor>(), scale.toOptional<double>());
      EXPECT_EQ(stack[0].toTensor().strides(), std::get<0>(theirs).strides());
      EXPECT_EQ(stack[1].toTensor().strides(), std::get<1>(theirs).strides());
      EXPECT_EQ(stack[2].toTensor().strides(), std::get<2>(theirs).strides());
    }
}

TEST_P(Attention, BitsDoNotDependOnTheNumberOfThreads) {
  const int before = at::get_num_threads();
  std::vector<std::vector<Tensor>> results;
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    auto stack = forward_of(query, key, value);
    ASSERT_TRUE(try_attention(stack));
    auto back = backward_of(gradient, query, key, value, stack[0].toTensor(), stack[1].toTensor());
    ASSERT_TRUE(try_attention_backward(back));
    results.push_back({stack[0].toTensor(), stack[1].toTensor(), back[0].toTensor(), back[1].toTensor(), back[2].toTensor()});
  }
  at::set_num_threads(before);
  for (size_t i = 0; i < results[0].size(); ++i) EXPECT_TRUE(results[0][i].equal(results[1][i])) << i;
}

INSTANTIATE_TEST_SUITE_P(Cases, Attention, testing::ValuesIn(kCases), [](const auto& info) { return info.param.name; });

struct AttentionValues : testing::Test {
  Tensor query, key, value;
  void SetUp() override {
    at::manual_seed(0);
    query = at::randn({1, 2, 64, 32}), key = at::randn({1, 2, 80, 32}), value = at::randn({1, 2, 80, 32});
  }
  void TearDown() override { forced_way = -1; }

  // By way 0, PyTorch's, and by way 1: what comes out, and the gradients.
  std::vector<Tensor> run(int way, const c10::IValue& mask) const {
    forced_way = way;
    Stack stack{query, key, value, 0.0, false, mask, c10::IValue()};
    EXPECT_TRUE(try_attention(stack));
    const auto out = stack[0].toTensor(), sums = stack[1].toTensor();
    Stack back{at::ones_like(out), query, key, value, out, sums, 0.0, false, mask, c10::IValue()};
    EXPECT_TRUE(try_attention_backward(back));
    return {out, sums, back[0].toTensor(), back[1].toTensor(), back[2].toTensor()};
  }
  void expect_as_pytorch(const c10::IValue& mask) const {
    const auto own = run(1, mask), theirs = run(0, mask);
    // Of an infinite score, PyTorch's logarithm is infinite or nan, by where the key lies.
    const auto known = [](const Tensor& tensor) { return at::where(tensor.isinf(), std::nanf(""), tensor); };
    for (size_t i = 0; i < own.size(); ++i)
      EXPECT_TRUE(at::allclose(known(own[i]), known(theirs[i]), 1e-4, 1e-5, /*equal_nan=*/true)) << i;
  }
};

TEST_F(AttentionValues, HiddenKeysCountForNothing) {
  auto mask = at::zeros({64, 80});
  mask.slice(1, 50).fill_(-kInfinity);
  mask[7].fill_(-kInfinity);  // a query that sees no key: 0, not nan
  expect_as_pytorch(mask);
  EXPECT_TRUE(run(1, mask)[0].select(2, 7).eq(0).all().item<bool>());
  expect_as_pytorch(at::full({1, 80}, -kInfinity));
}

TEST_F(AttentionValues, NanAndInfinityComeOutWherePyTorchHasThem) {
  query.select(2, 3).fill_(std::numeric_limits<float>::quiet_NaN());
  query[0][1][20][4] = kInfinity;
  key[0][0][70][2] = -kInfinity;
  expect_as_pytorch(c10::IValue());
  auto mask = at::zeros({64, 80});
  mask[5].fill_(-kInfinity);
  mask[5][79] = std::numeric_limits<float>::quiet_NaN();
  mask[9][2] = kInfinity;
  expect_as_pytorch(mask);
}

TEST_F(AttentionValues, LargeScoresDoNotOverflow) {
  query *= 300;
  const auto own = run(1, c10::IValue());
  for (const auto& result : own) EXPECT_TRUE(result.isfinite().all().item<bool>());
  query /= 300, query *= 1e-30;  // all weights alike
  EXPECT_TRUE(at::allclose(run(1, c10::IValue())[0], value.mean(2, true).expand({1, 2, 64, 32}), 1e-5, 1e-6));
}

TEST_F(AttentionValues, LeavesToPyTorchWhatItDoesNotKnow) {
  forced_way = 1;
  const auto refuses = [](const Tensor& q, const Tensor& k, const Tensor& v, double dropout, const c10::IValue& mask) {
    Stack stack{q, k, v, dropout, false, mask, c10::IValue()};
    return !try_attention(stack) && stack.size() == 7;
  };
  EXPECT_FALSE(refuses(query, key, value, 0, c10::IValue()));
  EXPECT_TRUE(refuses(query, key, value, 0.1, c10::IValue()));
  EXPECT_TRUE(refuses(query.to(at::kDouble), key, value, 0, c10::IValue()));
  EXPECT_TRUE(refuses(query, key.slice(2, 0, 79), value, 0, c10::IValue()));
  EXPECT_TRUE(refuses(query, key, value.slice(3, 0, 16), 0, c10::IValue()));
  EXPECT_TRUE(refuses(query.slice(1, 0, 1), key, value, 0, c10::IValue()));
  EXPECT_TRUE(refuses(query.transpose(2, 3).contiguous().transpose(2, 3), key, value, 0, c10::IValue()));
  EXPECT_TRUE(refuses(query.slice(2, 0, 2), key, value, 0, c10::IValue()));  // few queries fill no register
  const auto short_key = at::randn({1, 200, 15, 32});  // PyTorch makes 0 of nan
  EXPECT_TRUE(refuses(at::randn({1, 200, 64, 32}), short_key, short_key, 0, c10::IValue()));
  EXPECT_TRUE(refuses(query, key, value, 0, at::zeros({64, 80}, at::kDouble)));
  EXPECT_TRUE(refuses(query, key, value, 0, at::zeros({64, 1})));
  EXPECT_TRUE(refuses(query, key, value, 0, at::zeros({80, 64}).t()));
  EXPECT_TRUE(refuses(query, key, value, 0, at::zeros({3, 1, 64, 80})));
  EXPECT_TRUE(refuses(query, key, value, 0, at::zeros({63, 80})));
  for (const double scale : {0.0, -0.5}) {  // PyTorch scales what it has hidden
    Stack causal{query, key, value, 0.0, true, c10::IValue(), scale};
    EXPECT_FALSE(try_attention(causal));
  }
  at::globalContext().setDeterministicAlgorithms(true, false);
  EXPECT_TRUE(refuses(query, key, value, 0, c10::IValue()));
  at::globalContext().setDeterministicAlgorithms(false, false);
}

// PyTorch may be told in two ways how to multiply, and one of its questions is an error where they differ.
TEST_F(AttentionValues, SettingsOfPrecision) {
  forced_way = 1;
  auto& context = at::globalContext();
  const auto handles = [&] {
    Stack stack{query, key, value, 0.0, false, c10::IValue(), c10::IValue()};
    return try_attention(stack);
  };
  const auto set = [&](at::Float32Backend backend, at::Float32Precision precision) {
    context.setFloat32Precision(backend, at::Float32Op::MATMUL, precision);
  };
  set(at::Float32Backend::CUDA, at::Float32Precision::TF32);
  EXPECT_TRUE(handles()) << "another device's";
  set(at::Float32Backend::CUDA, at::Float32Precision::IEEE);
  set(at::Float32Backend::MKLDNN, at::Float32Precision::BF16);
  EXPECT_FALSE(handles());
  set(at::Float32Backend::MKLDNN, at::Float32Precision::IEEE);
  EXPECT_TRUE(handles());
}

}  // namespace
}  // namespace lockstep::dynamic
