// Tensors one beside the other, bit for bit against PyTorch's own kernels.
#include "dynamic/kernels/concatenation.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include <cstring>

namespace lockstep::dynamic {
namespace {

using at::Tensor;
using torch::jit::Stack;
using Tensors = std::vector<Tensor>;

const at::ScalarType kTypes[] = {at::kFloat, at::kBool, at::kHalf, at::kLong, at::kComplexDouble};

Tensor values(at::IntArrayRef sizes, at::ScalarType type) { return (at::randn(sizes) * 5).to(type); }

void expect_same(const char* name, bool (*own)(Stack&), const Tensors& tensors, int64_t dim) {
  Stack ours{tensors, dim}, theirs{tensors, dim};
  ASSERT_TRUE(own(ours)) << name << " in " << dim;
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(&theirs);
  ASSERT_EQ(ours.size(), 1u);
  const auto &result = ours[0].toTensor(), &expected = theirs[0].toTensor();
  ASSERT_EQ(result.sizes(), expected.sizes()) << name << " in " << dim;
  EXPECT_EQ(result.strides(), expected.strides()) << name << " in " << dim;
  EXPECT_EQ(result.scalar_type(), expected.scalar_type()) << name;
  EXPECT_EQ(std::memcmp(result.const_data_ptr(), expected.const_data_ptr(), result.nbytes()), 0) << name << " in " << dim;
}

TEST(Concatenation, StacksInEachDim) {
  at::manual_seed(0);
  for (const auto type : kTypes) {
    for (int64_t dim = -4; dim < 4; ++dim)
      expect_same("aten::stack", &try_stack, {values({2, 3, 4}, type), values({2, 3, 4}, type), values({2, 3, 4}, type)}, dim);
    expect_same("aten::stack", &try_stack, {values({}, type), values({}, type)}, 0);
    expect_same("aten::stack", &try_stack, {values({1, 5, 1}, type)}, 1);
  }
}

TEST(Concatenation, JoinsInEachDim) {
  at::manual_seed(0);
  for (const auto type : kTypes)
    for (int64_t dim = -3; dim < 3; ++dim) {
      std::vector<int64_t> longer{2, 3, 4};
      longer[dim < 0 ? dim + 3 : dim] += 2;
      expect_same("aten::cat", &try_cat, {values({2, 3, 4}, type), values(longer, type), values({2, 3, 4}, type)}, dim);
    }
  expect_same("aten::cat", &try_cat, {values({3}, at::kFloat)}, 0);
  expect_same("aten::cat", &try_cat, {values({2, 1, 3, 3}, at::kFloat), values({2, 4, 3, 3}, at::kFloat)}, 1);
}

// What is left to PyTorch's kernels: other types beside each other, other orders of memory, nothing, much, and mistakes.
TEST(Concatenation, LeavesTheRest) {
  const auto map = values({2, 3, 4, 4}, at::kFloat);
  const auto declines = [](bool (*own)(Stack&), const Tensors& tensors, int64_t dim) {
    Stack stack{tensors, dim};
    return !own(stack) && stack.size() == 2;
  };
  EXPECT_TRUE(declines(&try_cat, {map, map.to(at::kDouble)}, 0));
  EXPECT_TRUE(declines(&try_cat, {map, map.contiguous(at::MemoryFormat::ChannelsLast)}, 0));
  EXPECT_TRUE(declines(&try_cat, {map, map.transpose(0, 1)}, 0));
  EXPECT_TRUE(declines(&try_cat, {at::empty({0}), values({2, 2}, at::kFloat)}, 0));
  EXPECT_TRUE(declines(&try_cat, {values({2, 2}, at::kFloat), values({3, 3}, at::kFloat)}, 0));
  EXPECT_TRUE(declines(&try_cat, {values({2}, at::kFloat)}, 1));
  EXPECT_TRUE(declines(&try_cat, {values({}, at::kFloat)}, 0));
  EXPECT_TRUE(declines(&try_stack, {values({2}, at::kFloat), values({3}, at::kFloat)}, 0));
  EXPECT_TRUE(declines(&try_stack, {}, 0));
  EXPECT_TRUE(declines(&try_cat, {values({1 << 17}, at::kFloat)}, 0));
}

}  // namespace
}  // namespace lockstep::dynamic
