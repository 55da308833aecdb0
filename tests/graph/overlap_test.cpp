#include "graph/overlap.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

namespace lockstep::graph {
namespace {

Part part_of(const at::Tensor& tensor) { return {tensor.sizes(), tensor.strides(), tensor.storage_offset()}; }

bool are_apart(const at::Tensor& one, const at::Tensor& other) { return graph::are_apart(part_of(one), part_of(other)); }

std::set<int64_t> places(const at::Tensor& tensor) {
  const auto numbers = at::arange(4096).as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset()).contiguous();
  const auto* data = numbers.const_data_ptr<int64_t>();
  return {data, data + numbers.numel()};
}

bool have_common(const at::Tensor& one, const at::Tensor& other) {
  const auto its = places(other);
  const auto own = places(one);
  return std::any_of(own.begin(), own.end(), [&](int64_t place) { return its.count(place) > 0; });
}

TEST(Overlap, ChunksAndSlicesAreApart) {
  const auto x = at::zeros({6, 12, 10});
  for (int64_t dim = 0; dim < 3; ++dim) {
    const auto chunks = x.chunk(3, dim);
    EXPECT_TRUE(are_apart(chunks[0], chunks[1]) && are_apart(chunks[2], chunks[0])) << dim;
    EXPECT_TRUE(are_apart(chunks[0].transpose(0, 1), chunks[1].transpose(0, 1)));
    EXPECT_TRUE(are_apart(chunks[0].select(dim, 0).unsqueeze(dim).expand(chunks[1].sizes()), chunks[1]));
    EXPECT_TRUE(are_apart(x.select(dim, 2), x.slice(dim, 3)));
    EXPECT_FALSE(are_apart(chunks[0], x));
    EXPECT_FALSE(are_apart(x.slice(dim, 0, 4), x.slice(dim, 3)));
    EXPECT_FALSE(are_apart(chunks[1], chunks[1]));
  }
  EXPECT_TRUE(are_apart(x[0], x[1][3]));
  EXPECT_TRUE(are_apart(x[0][2], x[0][3]));
  EXPECT_TRUE(are_apart(x.slice(2, 0, 0), x));
  EXPECT_FALSE(are_apart(x[0], x[0][3]));
  EXPECT_FALSE(are_apart(x.flatten()[7], x[0][0]));
}

TEST(Overlap, WhatIsApartHasNothingInCommon) {
  std::mt19937 random(3);
  const auto number = [&](int64_t from, int64_t to) { return std::uniform_int_distribution<int64_t>(from, to)(random); };
  const auto view = [&] {
    std::vector<int64_t> sizes, strides;
    for (int64_t dims = number(0, 3); dims > 0; --dims) {
      sizes.push_back(number(0, 9) == 0 ? 0 : number(1, 4));
      const int64_t common[] = {1, 4, 12, 24};
      strides.push_back(number(0, 3) ? common[number(0, 3)] : number(0, 30));
    }
    return at::zeros({4096}).as_strided(sizes, strides, number(0, 60));
  };
  int apart = 0, missed = 0;
  for (int round = 0; round < 20000; ++round) {
    const auto one = view(), other = view();
    const bool have = have_common(one, other);
    if (!are_apart(one, other)) {
      missed += !have;
      continue;
    }
    ++apart;
    ASSERT_FALSE(have) << one.sizes() << one.strides() << one.storage_offset() << ' ' << other.sizes() << other.strides()
                       << other.storage_offset();
  }
  EXPECT_GT(apart, missed / 2);
}

}  // namespace
}  // namespace lockstep::graph
