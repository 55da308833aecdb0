// Variances, deviations and norms against PyTorch's own kernels in float64.
#include "dynamic/kernels/reductions.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace lockstep::dynamic {
namespace {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;
using Ints = c10::List<int64_t>;

struct Case {
  const char* name;
  std::vector<int64_t> sizes;
  IValue dims;
};

const Case kCases[] = {
    {"channels", {3, 20, 9, 7}, Ints({1})},
    {"pixels", {3, 20, 9, 7}, Ints({2, 3})},
    {"pixels_in_the_middle", {3, 9, 7, 20}, Ints({2, 1})},
    {"samples", {70, 33}, Ints({0})},
    {"many_samples", {1100, 3}, Ints({-2})},
    {"rows", {70, 33}, Ints({-1})},
    {"one_long_row", {1, 5001}, Ints({1})},
    {"long_columns", {5003, 2, 5}, Ints({0})},
    {"wide", {3, 9, 2500}, Ints({1})},
    {"all", {40, 50}, IValue()},
    {"all_by_name", {40, 50}, Ints({0, 1})},
    {"with_one_item", {30, 1, 600}, Ints({1, 0})},
};

struct Reductions : testing::TestWithParam<Case> {
  Tensor input;
  void SetUp() override {
    at::manual_seed(0);
    input = at::randn(GetParam().sizes) * 3 + 50;  // far from zero: a sum of squares alone would lose the variance
  }
  at::OptionalIntArrayRef dims() const {
    if (GetParam().dims.isNone()) return {};
    kept_ = GetParam().dims.toIntVector();
    return at::OptionalIntArrayRef(kept_);
  }
  mutable std::vector<int64_t> kept_;
};

void expect_near(const Stack& own, const Tensor& exact, const Tensor& eager) {
  ASSERT_EQ(own.size(), 1u);
  const auto& result = own[0].toTensor();
  ASSERT_EQ(result.sizes(), eager.sizes());
  EXPECT_EQ(result.strides(), eager.strides());
  EXPECT_EQ(result.scalar_type(), eager.scalar_type());
  EXPECT_TRUE(at::allclose(result.to(at::kDouble), exact, 2e-6, 0));
}

TEST_P(Reductions, AgreeWithDouble) {
  const auto exactly = input.to(at::kDouble);
  for (const bool keeps_dims : {false, true}) {
    for (const IValue& correction : {IValue(), IValue(0), IValue(1), IValue(0.5)}) {
      const auto given = correction.isNone() ? std::nullopt : std::optional(correction.toScalar());
      Stack variance{input, GetParam().dims, correction, keeps_dims}, deviation = variance;
      ASSERT_TRUE(try_variance(variance));
      expect_near(variance, at::var(exactly, dims(), given, keeps_dims), at::var(input, dims(), given, keeps_dims));
      ASSERT_TRUE(try_deviation(deviation));
      expect_near(deviation, at::std(exactly, dims(), given, keeps_dims), at::std(input, dims(), given, keeps_dims));
    }
    Stack norm{input, 2, GetParam().dims, keeps_dims, IValue()};
    ASSERT_TRUE(try_vector_norm(norm));
    expect_near(norm, at::linalg_vector_norm(exactly, 2, dims(), keeps_dims), at::linalg_vector_norm(input, 2, dims(), keeps_dims));
  }
}

TEST_P(Reductions, BitsDoNotDependOnTheNumberOfThreads) {
  const int before = at::get_num_threads();
  std::vector<Tensor> results;
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    Stack stack{input, GetParam().dims, IValue(), false};
    ASSERT_TRUE(try_variance(stack));
    results.push_back(stack[0].toTensor());
  }
  at::set_num_threads(before);
  EXPECT_TRUE(results[0].equal(results[1]));
}

INSTANTIATE_TEST_SUITE_P(Cases, Reductions, testing::ValuesIn(kCases), [](const auto& info) { return info.param.name; });

TEST(ReductionValues, LeavesToPyTorchWhatSquaresDoNotHold) {
  at::manual_seed(0);
  auto input = at::randn({20, 30, 8});
  input[3][4][5] = std::numeric_limits<float>::infinity();
  input[7][2][1] = std::nanf("");
  const auto tiny = at::randn({20, 30, 8}) * 1e-22f, huge = at::randn({20, 30, 8}) * 1e19f;
  for (const auto& values : {input, tiny, huge})
    for (const Ints& dims : {Ints({0}), Ints({1}), Ints({1, 2})}) {  // PyTorch's kernels have more room
      Stack variance{values, dims, 1, false}, deviation = variance, norm{values, 2, dims, false, IValue()};
      EXPECT_FALSE(try_variance(variance));
      EXPECT_FALSE(try_deviation(deviation));
      EXPECT_FALSE(try_vector_norm(norm));
      EXPECT_EQ(variance.size(), 4u);
    }
}

TEST(ReductionValues, EqualOnesHaveNoVariance) {
  for (const auto& sizes : std::vector<std::vector<int64_t>>{{999, 64}, {64, 999}})
    for (const int64_t dim : {0, 1}) {
      Stack stack{at::full(sizes, 0.1f), Ints({dim}), 1, false};
      ASSERT_TRUE(try_deviation(stack));
      EXPECT_TRUE(stack[0].toTensor().eq(0).all().item<bool>());
    }
}

// Columns are added up row after row: so many that float32 alone would lose digits.
TEST(ReductionValues, LongColumnsAreAccurate) {
  at::manual_seed(0);
  for (const int64_t rows : {80, 256, 2048}) {
    const auto input = (at::randn({1, 300}) + 3).repeat({rows, 1}) * at::tensor({0.5f, 1.0f}).repeat(rows / 2).view({rows, 1});
    Stack stack{input, Ints({0}), 1, false};
    ASSERT_TRUE(try_variance(stack));
    const auto exact = at::var(input.to(at::kDouble), Ints({0}).vec(), 1, false);
    EXPECT_LT(((stack[0].toTensor().to(at::kDouble) - exact).abs() / exact).max().item<double>(), 4e-7) << rows;
  }
}

TEST(ReductionValues, FarFromZeroTheyAreAsAccurate) {
  at::manual_seed(0);
  for (const double mean : {1e3, 1e5, 1e6})
    for (const int64_t dim : {0, 1}) {
      const auto input = at::randn({300, 400}) + mean;
      Stack stack{input, Ints({dim}), 1, false};
      ASSERT_TRUE(try_deviation(stack));
      const std::vector<int64_t> list{dim};
      EXPECT_TRUE(at::allclose(stack[0].toTensor().to(at::kDouble), at::std(input.to(at::kDouble), list, 1, false), 5e-7, 0)) << mean;
    }
}

TEST(ReductionValues, LeavesToPyTorchWhatItDoesNotKnow) {
  const auto x = at::randn({20, 30, 8});
  const auto refuses = [](bool (*own)(Stack&), Stack stack) {
    const size_t count = stack.size();
    return !own(stack) && stack.size() == count;
  };
  EXPECT_FALSE(refuses(&try_variance, {x, Ints({1}), 1, false}));
  EXPECT_TRUE(refuses(&try_variance, {x, Ints({0, 2}), 1, false}));
  EXPECT_TRUE(refuses(&try_variance, {x, Ints({1, 1}), 1, false}));
  EXPECT_TRUE(refuses(&try_variance, {x, Ints({3}), 1, false}));
  EXPECT_TRUE(refuses(&try_variance, {x, Ints({1}), 30, false}));
  EXPECT_TRUE(refuses(&try_variance, {x.to(at::kDouble), Ints({1}), 1, false}));
  EXPECT_TRUE(refuses(&try_variance, {x.transpose(0, 1), Ints({1}), 1, false}));
  EXPECT_TRUE(refuses(&try_variance, {at::randn({4, 5}), Ints({1}), 1, false}));
  EXPECT_TRUE(refuses(&try_variance, {at::randn({4, 500}), Ints({0}), 1, false}));  // short ones
  EXPECT_TRUE(refuses(&try_vector_norm, {at::randn({500, 16}), 2, Ints({1}), false, IValue()}));
  EXPECT_TRUE(refuses(&try_vector_norm, {x, 1, Ints({1}), false, IValue()}));
  EXPECT_TRUE(refuses(&try_vector_norm, {x, 2, Ints({1}), false, at::kDouble}));
  at::globalContext().setDeterministicAlgorithms(true, false);
  EXPECT_TRUE(refuses(&try_variance, {x, Ints({1}), 1, false}));
  at::globalContext().setDeterministicAlgorithms(false, false);
}

}  // namespace
}  // namespace lockstep::dynamic
