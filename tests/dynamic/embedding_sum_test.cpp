// Gradients of embeddings added to a total, bit for bit against PyTorch's op and its sum.
#include "dynamic/kernels/embedding_sum.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace lockstep::dynamic {
namespace {

using at::Tensor;
using torch::jit::Stack;

// Of a few thousand words, many of them several times, some of them none; with zeros of both signs.
Stack arguments_for(at::ScalarType type, at::ScalarType of_indices, int64_t uses, int64_t padding) {
  auto gradient = at::randn({uses, 24}, type);
  gradient.masked_fill_(gradient.abs() < 0.3, -0.0);
  return {gradient, at::randint(0, 90, {uses}, of_indices), int64_t{120}, padding, false};
}

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.nbytes() == b.nbytes() && std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

bool has_minus_zero(const Tensor& tensor) { return tensor.eq(0).logical_and(tensor.signbit()).any().item<bool>(); }

TEST(EmbeddingSum, IsThatOfTheWholeGradient) {
  at::manual_seed(0);
  for (const auto type : {at::kFloat, at::kDouble})
    for (const auto of_indices : {at::kLong, at::kInt})
      for (const int64_t uses : {0, 1, 70, 3000})
        for (const int64_t padding : {-1, 7}) {
          auto total = at::randn({120, 24}, type);
          total.masked_fill_(total.abs() < 0.3, -0.0);
          auto expected = total.clone();
          bool has_none = false;
          for (int step = 0; step < 3; ++step) {
            const auto stack = arguments_for(type, of_indices, uses, padding);
            expected.add_(at::embedding_dense_backward(stack[0].toTensor(), stack[1].toTensor(), 120, padding, false));
            const auto done = try_add_embedding_gradient(stack, total, has_none);
            ASSERT_TRUE(done.is_done);
            EXPECT_TRUE(same_bytes(total, expected)) << uses << " uses, padding " << padding << ", step " << step;
            EXPECT_TRUE(done.has_no_minus_zero);
            EXPECT_FALSE(has_minus_zero(total));
            has_none = done.has_no_minus_zero;
          }
        }
}

TEST(EmbeddingSum, NanStaysInItsRow) {
  auto stack = arguments_for(at::kFloat, at::kLong, 50, -1);
  stack[0].toTensor()[3].fill_(std::nanf(""));
  stack[0].toTensor()[4].fill_(std::numeric_limits<float>::infinity());
  auto total = at::zeros({120, 24});
  const auto expected = at::embedding_dense_backward(stack[0].toTensor(), stack[1].toTensor(), 120, -1, false);
  ASSERT_TRUE(try_add_embedding_gradient(stack, total, true).is_done);
  EXPECT_TRUE(at::allclose(total, expected, 0, 0, /*equal_nan=*/true));
}

TEST(EmbeddingSum, LeavesWhatItDoesNotKnow) {
  const auto total = at::zeros({120, 24});
  const auto refuses = [&](Stack stack, const Tensor& into) { return !try_add_embedding_gradient(stack, into, true).is_done; };
  const auto known = arguments_for(at::kFloat, at::kLong, 5, -1);
  EXPECT_FALSE(refuses(known, total));
  auto scaled = known, other = known, turned = known;
  scaled[4] = true;
  other[0] = known[0].toTensor().to(at::kHalf);
  turned[0] = at::randn({24, 5}).t();
  EXPECT_TRUE(refuses(scaled, total));
  EXPECT_TRUE(refuses(other, total));
  EXPECT_TRUE(refuses(turned, total));
  EXPECT_TRUE(refuses(known, at::zeros({121, 24})));
  EXPECT_TRUE(refuses(known, at::zeros({120, 24}, at::kDouble)));
  EXPECT_TRUE(total.eq(0).logical_not().any(1).sum().item<int64_t>() <= 5) << "only the first call touched it";
}

}  // namespace
}  // namespace lockstep::dynamic
