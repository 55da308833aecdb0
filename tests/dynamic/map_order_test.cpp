// Maps from one order to the other.
#include "dynamic/kernels/map_order.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace lockstep::dynamic {
namespace {

constexpr auto kPlanes = at::MemoryFormat::Contiguous, kInnermost = at::MemoryFormat::ChannelsLast;

// Sides around the sizes of blocks, squares and bands.
constexpr int64_t kSides[] = {1, 2, 3, 4, 5, 15, 16, 17, 33, 255, 256, 257, 600};

TEST(MapOrder, TurnsMatricesOfAllItems) {
  for (const auto type : {at::kByte, at::kHalf, at::kFloat, at::kDouble, at::kComplexDouble})
    for (const int64_t rows : kSides)
      for (const int64_t columns : kSides)
        for (const bool in_parallel : {false, true}) {
          const auto from = at::arange(2 * rows * columns).remainder(251).to(type).view({2, rows, columns});
          const auto to = at::empty({2, columns, rows}, from.options());
          turn_matrices(from.const_data_ptr(), to.mutable_data_ptr(), from.itemsize(), 2, rows, columns, in_parallel);
          ASSERT_TRUE(at::equal(to, from.transpose(1, 2))) << type << " " << rows << " " << columns;
        }
}

TEST(MapOrder, BothWays) {
  for (const auto type : {at::kFloat, at::kDouble, at::kLong}) {
    const auto planes = at::arange(3 * 5 * 37 * 41).view({3, 5, 37, 41}).to(type);
    const auto innermost = map_in_order(planes, kInnermost);
    EXPECT_TRUE(innermost.is_contiguous(kInnermost));
    EXPECT_TRUE(at::equal(innermost, planes));
    const auto back = map_in_order(innermost, kPlanes);
    EXPECT_TRUE(back.is_contiguous());
    EXPECT_TRUE(at::equal(back, planes));
  }
}

TEST(MapOrder, WhatIsInNeitherOrder) {
  const auto map = at::randn({3, 5, 7, 8}).transpose(2, 3);
  for (const auto order : {kPlanes, kInnermost}) {
    const auto ordered = map_in_order(map, order);
    EXPECT_TRUE(ordered.is_contiguous(order));
    EXPECT_TRUE(at::equal(ordered, map));
  }
}

TEST(MapOrder, ItselfWhereNothingIsToDo) {
  const auto map = at::randn({3, 5, 7, 8});
  EXPECT_TRUE(map_in_order(map, kPlanes).is_same(map));
}

}  // namespace
}  // namespace lockstep::dynamic
