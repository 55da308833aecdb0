// The norms of many tensors against PyTorch's own kernel and float64.
#include "dynamic/kernels/foreach_loops.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace lockstep::dynamic {
namespace {

using at::Tensor;
using c10::IValue;

std::vector<Tensor> norms_of(const std::vector<Tensor>& tensors) {
  torch::jit::Stack stack{tensors, at::Scalar(2.0), IValue()};
  EXPECT_TRUE(try_foreach_norm(stack));
  EXPECT_EQ(stack.size(), 1u);
  return stack[0].toTensorVector();
}

TEST(ForeachNorm, AgreesWithDouble) {
  at::manual_seed(0);
  const std::vector<Tensor> tensors{at::randn({3}), at::randn({200, 301}), at::randn({0}), at::randn({}),
                                    at::randn({40, 50}).t(), at::randn({70000}) * 1e-12};
  const auto norms = norms_of(tensors);
  ASSERT_EQ(norms.size(), tensors.size());
  for (size_t i = 0; i < norms.size(); ++i) {
    EXPECT_EQ(norms[i].dim(), 0);
    const double exact = at::norm(tensors[i].to(at::kDouble)).item<double>();
    EXPECT_NEAR(norms[i].item<float>(), exact, 2e-7 * exact) << i;
  }
}

TEST(ForeachNorm, WhatIsNotFiniteIsAsPyTorchs) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<Tensor> tensors{at::tensor({1.0f, infinity}), at::tensor({infinity, std::nanf("")}),
                                    at::full({50}, 1e30f)};
  const auto norms = norms_of(tensors), expected = at::_foreach_norm(tensors, 2.0);
  for (size_t i = 0; i < norms.size(); ++i) EXPECT_TRUE(at::allclose(norms[i], expected[i], 0, 0, /*equal_nan=*/true)) << i;
}

TEST(ForeachNorm, BitsDoNotDependOnTheNumberOfThreads) {
  const std::vector<Tensor> tensors{at::randn({300, 301}), at::randn({77777}), at::randn({5})};
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const auto alone = norms_of(tensors);
  at::set_num_threads(2);
  const auto shared = norms_of(tensors);
  at::set_num_threads(before);
  for (size_t i = 0; i < alone.size(); ++i) EXPECT_TRUE(alone[i].equal(shared[i]));
}

TEST(ForeachScale, BitsOfPyTorch) {
  at::manual_seed(1);
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float factor : {0.37f, 0.0f, -1.0f, infinity, std::nanf("")}) {
    const std::vector<Tensor> own{at::randn({3}), at::randn({200, 301}), at::randn({0}), at::randn({}), at::randn({40, 50}).t(),
                                  at::tensor({infinity, -0.0f, 1e-40f}), at::randn({70000})};
    std::vector<Tensor> expected;
    for (const auto& tensor : own) expected.push_back(tensor.clone());
    torch::jit::Stack stack{own, at::scalar_tensor(factor)};
    ASSERT_TRUE(try_foreach_scale(stack));
    EXPECT_TRUE(stack.empty());
    at::_foreach_mul_(expected, at::scalar_tensor(factor));
    for (size_t i = 0; i < own.size(); ++i)
      EXPECT_TRUE(own[i].contiguous().view(at::kInt).equal(expected[i].contiguous().view(at::kInt))) << i << " " << factor;
  }
}

TEST(ForeachScale, LeavesToPyTorchWhatItDoesNotKnow) {
  const auto refuses = [](const std::vector<Tensor>& tensors, const Tensor& number) {
    torch::jit::Stack stack{tensors, number};
    return !try_foreach_scale(stack) && stack.size() == 2;
  };
  const auto x = at::ones({8}), two = at::scalar_tensor(2.0f);
  EXPECT_FALSE(refuses({x}, two));
  EXPECT_TRUE(refuses({x, x}, two)) << "twice, one after the other";
  EXPECT_TRUE(refuses({x.slice(0, 0, 5), x.slice(0, 4, 8)}, two));
  EXPECT_TRUE(refuses({x}, x[2])) << "it changes on the way";
  EXPECT_TRUE(refuses({x.to(at::kDouble)}, two));
  EXPECT_TRUE(refuses({x}, two.to(at::kDouble)));
  EXPECT_TRUE(refuses({x}, x.slice(0, 0, 1)));
  EXPECT_TRUE(refuses({at::ones({1}).expand({4})}, two));
}

TEST(ForeachNorm, LeavesToPyTorchWhatItDoesNotKnow) {
  const auto refuses = [](const std::vector<Tensor>& tensors, const at::Scalar& order, const IValue& dtype) {
    torch::jit::Stack stack{tensors, order, dtype};
    return !try_foreach_norm(stack) && stack.size() == 3;
  };
  const auto x = at::randn({4, 6});
  EXPECT_TRUE(refuses({}, 2, {}));  // it says that there must be one
  EXPECT_TRUE(refuses({x}, 1, {}));
  EXPECT_TRUE(refuses({x}, 2, at::kDouble));
  EXPECT_TRUE(refuses({x, x.to(at::kDouble)}, 2, {}));
  EXPECT_TRUE(refuses({x.slice(1, 0, 6, 2)}, 2, {}));
  EXPECT_TRUE(refuses({x[0].expand({3, 6})}, 2, {}));
}

}  // namespace
}  // namespace lockstep::dynamic
