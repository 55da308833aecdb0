// Whatever is said to be in range must not raise; what raises must not be said to be in range.
#include "coexec/value_check.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

namespace lockstep::coexec {
namespace {

using Args = std::vector<c10::IValue>;

const graph::OpInfo& op(const char* name) {
  const auto* info = graph::find_op_info(name);
  EXPECT_NE(info, nullptr) << name;
  return *info;
}

bool fine(const char* name, const Args& args) { return values_in_range(op(name), args); }

bool raises(const char* name, Args args) {
  try {
    op(name).handle.callBoxed(&args);
    return false;
  } catch (const std::exception&) {
    return true;
  }
}

at::Tensor longs(std::vector<int64_t> values) { return at::tensor(values, at::kLong); }

TEST(ValueCheck, Embedding) {
  const auto weight = at::rand({5, 3});
  auto args = [&](std::vector<int64_t> index) { return Args{weight, longs(index), int64_t{-1}, false, false}; };
  EXPECT_TRUE(fine("aten::embedding", args({0, 4, 2})));
  EXPECT_TRUE(fine("aten::embedding", args({})));
  for (int64_t bad : {int64_t{5}, int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
    EXPECT_FALSE(fine("aten::embedding", args({0, bad}))) << bad;
    EXPECT_TRUE(raises("aten::embedding", args({0, bad}))) << bad;
  }
}

TEST(ValueCheck, IndexSelectAndGatherTakeNoNegativeIndices) {
  const auto self = at::rand({4, 6});
  EXPECT_TRUE(fine("aten::index_select", {self, int64_t{1}, longs({0, 5})}));
  EXPECT_TRUE(fine("aten::index_select", {self, int64_t{-1}, longs({5})}));
  EXPECT_FALSE(fine("aten::index_select", {self, int64_t{0}, longs({5})}));
  EXPECT_FALSE(fine("aten::index_select", {self, int64_t{0}, longs({-1})}));
  EXPECT_TRUE(fine("aten::gather", {self, int64_t{0}, longs({3}).view({1, 1}), false}));
  EXPECT_FALSE(fine("aten::gather", {self, int64_t{0}, longs({4}).view({1, 1}), false}));
}

TEST(ValueCheck, ScatterLooksAtTheRightDimension) {
  const auto self = at::rand({2, 6});
  const auto index = longs({5}).view({1, 1});
  EXPECT_TRUE(fine("aten::scatter.value", {self, int64_t{1}, index, 1.0}));
  EXPECT_FALSE(fine("aten::scatter.value", {self, int64_t{0}, index, 1.0}));
  EXPECT_TRUE(raises("aten::scatter.value", {self, int64_t{0}, index, 1.0}));
}

TEST(ValueCheck, AdvancedIndexingCountsFromBothEnds) {
  const auto self = at::rand({3, 4});
  auto args = [&](std::vector<std::optional<at::Tensor>> indices) {
    c10::List<std::optional<at::Tensor>> list;
    for (auto& index : indices) list.push_back(index);
    return Args{self, list};
  };
  EXPECT_TRUE(fine("aten::index.Tensor", args({longs({-3, 2})})));
  EXPECT_TRUE(fine("aten::index.Tensor", args({std::nullopt, longs({3})})));
  EXPECT_TRUE(fine("aten::index.Tensor", args({longs({2}), longs({3})})));
  EXPECT_FALSE(fine("aten::index.Tensor", args({longs({3})})));
  EXPECT_FALSE(fine("aten::index.Tensor", args({std::nullopt, longs({-5})})));
  EXPECT_FALSE(fine("aten::index.Tensor", args({longs({0}), longs({0}), longs({0})})));  // too many
}

TEST(ValueCheck, OneNumberFitsIntoHoweverManyPlacesAMaskChooses) {
  const auto self = at::rand({3, 4});
  const auto mask = at::rand({3}) > 0.5;
  const auto args = [&](std::vector<std::optional<at::Tensor>> indices, const at::Tensor& values) {
    c10::List<std::optional<at::Tensor>> list;
    for (auto& index : indices) list.push_back(index);
    return Args{self, list, values, false};
  };
  const auto number = at::scalar_tensor(1.0);
  EXPECT_TRUE(fine("aten::index_put_", args({mask}, number)));
  EXPECT_TRUE(fine("aten::index_put_", args({std::nullopt, at::ones({4}, at::kBool)}, number)));
  EXPECT_TRUE(fine("aten::index_put_", args({at::ones({3, 4}, at::kBool)}, number)));
  EXPECT_FALSE(fine("aten::index_put_", args({mask}, at::rand({2, 4})))) << "as many rows as are true";
  EXPECT_FALSE(fine("aten::index_put_", args({mask, at::ones({4}, at::kBool)}, number))) << "as many in both";
  EXPECT_FALSE(fine("aten::index_put_", args({mask, longs({0, 1})}, number)));
  EXPECT_FALSE(fine("aten::index_put_", args({at::ones({4}, at::kBool)}, number)));
  EXPECT_TRUE(raises("aten::index_put_", args({at::ones({4}, at::kBool)}, number)));
  EXPECT_FALSE(is_deciding(op("aten::index_put_"), mask));
  EXPECT_TRUE(is_deciding(op("aten::index_put_"), longs({0})));
}

TEST(ValueCheck, ClassLabelsKnowTheIgnoredOne) {
  const auto scores = at::rand({3, 5});
  auto args = [&](std::vector<int64_t> labels) {
    return Args{scores, longs(labels), c10::IValue(), int64_t{1}, int64_t{-100}};
  };
  EXPECT_TRUE(fine("aten::nll_loss_forward", args({0, 4, -100})));
  EXPECT_FALSE(fine("aten::nll_loss_forward", args({0, 5, 1})));
  EXPECT_FALSE(fine("aten::nll_loss_forward", args({0, -1, 1})));
  EXPECT_TRUE(raises("aten::nll_loss_forward", args({0, 5, 1})));
  const Args backward{at::ones({}), scores, longs({0, 7, 1}), c10::IValue(), int64_t{1}, int64_t{7}, at::ones({})};
  EXPECT_TRUE(fine("aten::nll_loss_backward", backward));
}

TEST(ValueCheck, Probabilities) {
  auto args = [](double p) { return Args{at::zeros({3}), p, c10::IValue()}; };
  EXPECT_TRUE(fine("aten::bernoulli_.float", args(0)));
  EXPECT_TRUE(fine("aten::bernoulli_.float", args(1)));
  EXPECT_FALSE(fine("aten::bernoulli_.float", args(1.5)));
  EXPECT_FALSE(fine("aten::bernoulli_.float", args(-0.1)));
  EXPECT_FALSE(fine("aten::bernoulli_.float", args(std::numeric_limits<double>::quiet_NaN())));
}

TEST(ValueCheck, IntegerDivisionMayRaise) {
  EXPECT_FALSE(fine("aten::remainder.Tensor", {longs({1}), longs({0})}));
  EXPECT_TRUE(raises("aten::remainder.Tensor", {longs({1}), longs({0})}));
}

TEST(ValueCheck, WhatCannotBeLookedAtIsNotInRange) {
  const auto weight = at::rand({100, 2});
  const auto strided = at::arange(20, at::kLong).slice(0, 0, 20, 2);
  EXPECT_FALSE(fine("aten::embedding", {weight, strided, int64_t{-1}, false, false}));
  const auto many = at::zeros({(1 << 20) + 1}, at::kLong);
  EXPECT_FALSE(fine("aten::embedding", {weight, many, int64_t{-1}, false, false}));
  EXPECT_FALSE(fine("aten::multinomial", {at::rand({3}), int64_t{1}, false, c10::IValue()}));
}

TEST(ValueCheck, OnlyIndicesAndLabelsDecide) {
  EXPECT_TRUE(is_deciding(op("aten::embedding"), longs({1})));
  EXPECT_FALSE(is_deciding(op("aten::embedding"), at::rand({1})));
  EXPECT_FALSE(is_deciding(op("aten::embedding"), at::Tensor()));
  EXPECT_FALSE(is_deciding(op("aten::add.Tensor"), longs({1})));
}

}  // namespace
}  // namespace lockstep::coexec
