// Padding and the gradients of slices and selections, bit for bit against PyTorch's own kernels.
#include "dynamic/kernels/padding.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>

namespace lockstep::dynamic {
namespace {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;
using Ints = c10::List<int64_t>;

const at::ScalarType kTypes[] = {at::kFloat, at::kBool, at::kHalf, at::kLong, at::kDouble, at::kComplexDouble};

Tensor values(at::IntArrayRef sizes, at::ScalarType type) { return (at::randn(sizes) * 5).to(type); }

// A tensor that is not dense beside the one that is.
std::vector<Tensor> layouts(at::IntArrayRef sizes, at::ScalarType type) {
  const auto plain = values(sizes, type);
  std::vector<int64_t> wider(sizes.begin(), sizes.end());
  wider.back() *= 2;
  return {plain, values(wider, type).slice(-1, 0, wider.back(), 2), plain.transpose(0, -1).contiguous().transpose(0, -1)};
}

void expect_same(const char* name, bool (*own)(Stack&), const Stack& arguments) {
  Stack ours = arguments, theirs = arguments;
  ASSERT_TRUE(own(ours)) << name;
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(&theirs);
  ASSERT_EQ(ours.size(), 1u);
  const auto &result = ours[0].toTensor(), &expected = theirs[0].toTensor();
  ASSERT_EQ(result.sizes(), expected.sizes()) << name;
  EXPECT_EQ(result.strides(), expected.strides()) << name;
  EXPECT_EQ(result.scalar_type(), expected.scalar_type()) << name;
  if (result.numel() == 0) return;
  EXPECT_EQ(std::memcmp(result.const_data_ptr(), expected.const_data_ptr(), result.nbytes()), 0) << name;
}

TEST(Padding, IsAsPyTorchs) {
  at::manual_seed(0);
  for (const auto type : kTypes)
    for (const auto& inner : layouts({3, 4, 5}, type))
      for (const Ints& pad : {Ints({1, 0}), Ints({0, 2}), Ints({2, 3, 0, 1}), Ints({0, 0, 1, 2}), Ints({0, 0, 0, 0, 2, 1})})
        for (const double value : {0.0, 1.0})
          expect_same("aten::constant_pad_nd", &try_constant_pad, {inner, pad, at::Scalar(value)});
}

TEST(Padding, LongRowsAreCutIntoPieces) {
  for (const Ints& pad : {Ints({1, 0}), Ints({5, 40000}), Ints({0, 0, 1, 1})})
    expect_same("aten::constant_pad_nd", &try_constant_pad, {values({3, 70001}, at::kFloat), pad, at::Scalar(-0.0)});
}

TEST(Padding, NothingIsPaddedToo) {
  expect_same("aten::constant_pad_nd", &try_constant_pad, {values({2, 0}, at::kFloat), Ints({1, 2}), at::Scalar(3)});
  expect_same("aten::constant_pad_nd", &try_constant_pad, {values({0, 2}, at::kFloat), Ints({1, 2}), at::Scalar(3)});
}

TEST(Padding, GradientsOfSlices) {
  at::manual_seed(0);
  struct Slice {
    int64_t start, end, step, count;
  };
  constexpr int64_t kEnd = std::numeric_limits<int64_t>::max();
  for (const auto type : kTypes)
    for (const auto [start, end, step, count] :
         {Slice{0, kEnd, 1, 6}, {1, 4, 1, 3}, {-2, kEnd, 1, 2}, {0, kEnd, 2, 3}, {1, -1, 3, 2}, {4, 2, 1, 0}})
      for (int64_t dim = -3; dim < 3; ++dim) {
        std::vector<int64_t> sizes{6, 6, 6}, part = sizes;
        part[dim < 0 ? dim + 3 : dim] = count;
        for (const auto& gradient : layouts(part, type))
          expect_same("aten::slice_backward", &try_slice_backward, {gradient, Ints({6, 6, 6}), dim, start, end, step});
      }
}

TEST(Padding, GradientsOfSelections) {
  at::manual_seed(0);
  for (const auto type : kTypes)
    for (int64_t dim = -3; dim < 3; ++dim)
      for (const int64_t index : {0, 2, -1})
        for (const auto& gradient : layouts({5, 5}, type))
          expect_same("aten::select_backward", &try_select_backward, {gradient, Ints({5, 5, 5}), dim, index});
  expect_same("aten::select_backward", &try_select_backward, {at::scalar_tensor(2.5), Ints({4}), int64_t{0}, int64_t{3}});
}

TEST(Padding, LeavesToPyTorchWhatItDoesNotKnow) {
  const auto x = at::randn({2, 3, 4, 5});
  const auto refuses = [](bool (*own)(Stack&), Stack stack) {
    const size_t count = stack.size();
    return !own(stack) && stack.size() == count;
  };
  const at::Scalar zero(0);
  EXPECT_TRUE(refuses(&try_constant_pad, {x, Ints({-1, 0}), zero}));
  EXPECT_TRUE(refuses(&try_constant_pad, {x, Ints({0, 0}), zero}));
  EXPECT_TRUE(refuses(&try_constant_pad, {x, Ints({1, 1, 1}), zero}));
  EXPECT_TRUE(refuses(&try_constant_pad, {x[0][0][0], Ints({1, 1, 1, 1}), zero}));
  EXPECT_TRUE(refuses(&try_constant_pad, {x.contiguous(at::MemoryFormat::ChannelsLast), Ints({1, 1}), zero}));
  EXPECT_TRUE(refuses(&try_constant_pad, {x.to_sparse(), Ints({1, 1}), zero}));
  EXPECT_TRUE(refuses(&try_slice_backward, {x, Ints({2, 3, 4, 9}), int64_t{3}, int64_t{0}, int64_t{4}, int64_t{1}}));
  EXPECT_TRUE(refuses(&try_select_backward, {x, Ints({2, 3, 4, 5}), int64_t{0}, int64_t{0}}));
  EXPECT_TRUE(refuses(&try_select_backward, {x[0], Ints({2, 3, 4, 5}), int64_t{0}, int64_t{2}}));
}

// More pieces than there are items in one of them.
TEST(Padding, OneVeryLongRow) {
  const int64_t size = int64_t{16384} * 16387;
  const auto x = at::full({size}, 7, at::kByte);
  Stack stack{x, Ints({1, 0}), 3};
  ASSERT_TRUE(try_constant_pad(stack));
  const auto& result = stack[0].toTensor();
  EXPECT_EQ(result[0].item<int>(), 3);
  EXPECT_TRUE(at::equal(result.slice(0, 1), x));
}

// Zeros of both signs, and what is no number.
Tensor out_of_the_ordinary(at::IntArrayRef sizes, at::ScalarType type) {
  const auto tensor = values(sizes, type);
  const auto flat = tensor.view(-1);
  const double kinds[] = {-0.0, 0.0, std::numeric_limits<double>::infinity(), std::nan("")};
  for (int64_t i = 0; i < flat.numel(); ++i)
    if (i % 3 != 0) flat[i] = kinds[i % 7 == 0 ? 2 + i % 2 : i % 2];
  return tensor;
}

bool has_minus_zero(const Tensor& tensor) { return tensor.eq(0).logical_and(tensor.signbit()).any().item<bool>(); }

// Two sums one after the other, the second one with what the first one has told of the total.
void expect_sums(PartKind kind, const char* name, const std::vector<Stack>& parts, const Tensor& start) {
  auto total = start.clone(), expected = start.clone();
  bool has_none = false;
  for (const auto& arguments : parts) {
    const auto done = try_add_part(kind, arguments, total, has_none);
    ASSERT_TRUE(done.is_done) << name;
    Stack made = arguments;
    c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(&made);
    expected.add_(made[0].toTensor());
    EXPECT_EQ(total.isnan().logical_not().logical_and(total.ne(expected)).any().item<bool>(), false) << name;
    EXPECT_TRUE(total.signbit().logical_and(total.eq(0)).equal(expected.signbit().logical_and(expected.eq(0)))) << name;
    EXPECT_TRUE(total.isnan().equal(expected.isnan())) << name;
    if (done.has_no_minus_zero) EXPECT_FALSE(has_minus_zero(total)) << name;
    has_none = done.has_no_minus_zero;
  }
}

TEST(PartSums, AreThoseOfTheWholeToTheSignOfZero) {
  at::manual_seed(0);
  constexpr int64_t kEnd = std::numeric_limits<int64_t>::max();
  for (const auto type : {at::kFloat, at::kDouble})
    for (const auto& start : {out_of_the_ordinary({6, 6, 6}, type), at::zeros({6, 6, 6}, type), at::full({6, 6, 6}, -0.0, type)}) {
      for (int64_t dim = -3; dim < 3; ++dim) {
        std::vector<Stack> selections, slices;
        for (const int64_t index : {3, 3, -1})
          for (const auto& gradient : {out_of_the_ordinary({6, 6}, type), out_of_the_ordinary({6, 6}, type).t()})
            selections.push_back({gradient, Ints({6, 6, 6}), dim, index});
        std::vector<int64_t> part{6, 6, 6};
        for (const auto& [first, end, step, count] : {std::array<int64_t, 4>{1, 4, 1, 3}, {0, kEnd, 2, 3}, {4, 2, 1, 0}, {1, -1, 3, 2}}) {
          part[dim < 0 ? dim + 3 : dim] = count;
          slices.push_back({out_of_the_ordinary(part, type), Ints({6, 6, 6}), dim, first, end, step});
        }
        expect_sums(PartKind::kSelection, "aten::select_backward", selections, start);
        expect_sums(PartKind::kSlice, "aten::slice_backward", slices, start);
      }
    }
}

TEST(PartSums, LongRowsAreCutIntoPieces) {
  at::manual_seed(0);
  const auto start = values({3, 70001}, at::kFloat);
  expect_sums(PartKind::kSlice, "aten::slice_backward",
              {{values({3, 50001}, at::kFloat), Ints({3, 70001}), int64_t{1}, int64_t{20000}, int64_t{70001}, int64_t{1}},
               {values({3, 23334}, at::kFloat), Ints({3, 70001}), int64_t{1}, int64_t{0}, int64_t{70001}, int64_t{3}}},
              start);
  expect_sums(PartKind::kSelection, "aten::select_backward",
              {{values({70001}, at::kFloat), Ints({3, 70001}), int64_t{0}, int64_t{1}},
               {values({70001}, at::kFloat), Ints({3, 70001}), int64_t{0}, int64_t{2}}},
              start);
}

TEST(PartSums, OfOtherTypesAndSizesNothingIsTouched) {
  const Stack arguments{values({6, 6}, at::kFloat), Ints({6, 5, 6}), int64_t{1}, int64_t{2}};
  EXPECT_TRUE(try_add_part(PartKind::kSelection, arguments, at::zeros({6, 5, 6}), false).is_done);
  EXPECT_FALSE(try_add_part(PartKind::kSelection, arguments, at::zeros({6, 5, 6}, at::kDouble), false).is_done);
  EXPECT_FALSE(try_add_part(PartKind::kSelection, arguments, at::zeros({6, 4, 6}), false).is_done);
  const Stack whole_numbers{values({6, 6}, at::kLong), Ints({6, 5, 6}), int64_t{1}, int64_t{2}};
  EXPECT_FALSE(try_add_part(PartKind::kSelection, whole_numbers, at::zeros({6, 5, 6}, at::kLong), false).is_done);
}

}  // namespace
}  // namespace lockstep::dynamic
