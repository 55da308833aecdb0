// What is inferred against what the op makes: layouts on other sizes, and where nothing may be inferred.
#include "dynamic/shape_inference.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>

namespace lockstep::dynamic {
namespace {

using graph::Layout;
using graph::Signature;
using Args = std::vector<c10::IValue>;

const graph::OpInfo& op_named(const char* name) { return *graph::find_op_info(name); }

Signature signature_of(const graph::OpInfo& op, const Args& args) {
  Signature signature;
  signature.op = &op;
  signature.words = {0};
  for (const auto& arg : args) {
    if (arg.isTensor()) signature.inputs.push_back(graph::layout_of(arg.toTensor()));
    if (arg.isList() && !arg.isIntList())
      for (const auto& item : arg.toListRef())
        signature.inputs.push_back(item.isTensor() ? graph::layout_of(item.toTensor()) : graph::Layout{});
  }
  return signature;
}

std::vector<Layout> layouts_by_running(const graph::OpInfo& op, const Args& args) {
  torch::jit::Stack stack(args.begin(), args.end());
  op.handle.callBoxed(&stack);
  std::vector<Layout> layouts;
  for (size_t r = 0; r < op.returns.size(); ++r) {
    if (op.returns[r].alias_arg >= 0) continue;
    auto layout = graph::layout_of(stack[r].toTensor());
    layout.storage_group = static_cast<int>(layouts.size());
    layouts.push_back(std::move(layout));
  }
  return layouts;
}

struct Case {
  const char* op;
  std::function<Args(int64_t n)> make;
};

c10::IValue indices(std::vector<std::optional<at::Tensor>> each) {
  c10::List<std::optional<at::Tensor>> list;
  for (auto& one : each) list.push_back(std::move(one));
  return list;
}

Args softmax_args(int64_t n) { return {at::rand({n, 5}), int64_t{-1}, false}; }

const std::vector<Case>& cases() {
  const static std::vector<Case> all = {
      {"aten::add.Tensor", [](int64_t n) { return Args{at::rand({n, 4}), at::rand({n, 4}), 1}; }},
      {"aten::add.Tensor", [](int64_t n) { return Args{at::rand({n, 4}), at::rand({4}), 1}; }},
      {"aten::add.Tensor", [](int64_t n) { return Args{at::rand({4, n}).t(), at::rand({4, n}).t(), 1}; }},
      {"aten::add_.Tensor", [](int64_t n) { return Args{at::rand({n, 4}), at::rand({n, 1}), 1}; }},
      {"aten::mul.Tensor", [](int64_t n) { return Args{at::rand({n}), at::scalar_tensor(2.0), }; }},
      {"aten::mul.Tensor", [](int64_t n) { return Args{at::rand({2, n, 3, 3}).contiguous(at::MemoryFormat::ChannelsLast), at::rand({2, n, 3, 3})}; }},
      {"aten::relu", [](int64_t n) { return Args{at::rand({n, 4})}; }},
      {"aten::abs", [](int64_t n) { return Args{at::rand({n, 4})}; }},
      {"aten::gelu", [](int64_t n) { return Args{at::rand({n, 4}), "none"}; }},
      {"aten::gt.Scalar", [](int64_t n) { return Args{at::rand({n, 4}), 0.5}; }},
      {"aten::where.self", [](int64_t n) { return Args{at::rand({n, 4}) > 0.5, at::rand({n, 4}), at::rand({n, 4})}; }},
      {"aten::threshold_backward", [](int64_t n) { return Args{at::rand({n, 4}), at::rand({n, 4}), 0}; }},
      {"aten::mm", [](int64_t n) { return Args{at::rand({n, 4}), at::rand({4, n})}; }},
      {"aten::mm", [](int64_t n) { return Args{at::rand({4, n}).t(), at::rand({4, 6})}; }},
      {"aten::addmm", [](int64_t n) { return Args{at::rand({6}), at::rand({n, 4}), at::rand({6, 4}).t(), 1, 1}; }},
      {"aten::bmm", [](int64_t n) { return Args{at::rand({n, 4, 2}), at::rand({n, 2, n})}; }},
      {"aten::sum.dim_IntList", [](int64_t n) { return Args{at::rand({n, 4}), std::vector<int64_t>{0}, true, c10::IValue()}; }},
      {"aten::mean.dim", [](int64_t n) { return Args{at::rand({n, 4}), std::vector<int64_t>{1}, false, c10::IValue()}; }},
      {"aten::_index_put_impl_", [](int64_t n) { return Args{at::rand({n + 2, 4}), indices({at::arange(n)}), at::rand({n, 4}), true, true}; }},
      {"aten::_index_put_impl_", [](int64_t n) { return Args{at::rand({9, n}), indices({at::arange(3), at::zeros({3}, at::kLong)}), at::rand({}), false, true}; }},
      {"aten::index_put_", [](int64_t n) { return Args{at::rand({n, 4}), indices({std::nullopt, at::arange(2)}), at::rand({n, 1}), false}; }},
      {"aten::_softmax", &softmax_args},
      {"aten::_log_softmax", &softmax_args},
      {"aten::_softmax_backward_data", [](int64_t n) { return Args{at::rand({n, 5}), at::rand({n, 5}), int64_t{-1}, static_cast<int64_t>(at::kFloat)}; }},
      {"aten::cat", [](int64_t n) { return Args{std::vector<at::Tensor>{at::rand({n, 2}), at::rand({3, 2})}, int64_t{0}}; }},
      {"aten::sum", [](int64_t n) { return Args{at::rand({n, 4}), c10::IValue()}; }},
      {"aten::mean", [](int64_t n) { return Args{at::rand({n}), c10::IValue()}; }},
      {"aten::max", [](int64_t n) { return Args{at::rand({4, n}).t()}; }},
      {"aten::any", [](int64_t n) { return Args{at::rand({n}) > 0.5}; }},
      {"aten::embedding", [](int64_t n) { return Args{at::rand({9, 4}), at::zeros({n, 3}, at::kLong), int64_t{-1}, false, false}; }},
      {"aten::embedding_dense_backward", [](int64_t n) { return Args{at::rand({n, 4}), at::zeros({n}, at::kLong), int64_t{9}, int64_t{-1}, false}; }},
      {"aten::index_select", [](int64_t n) { return Args{at::rand({4, 9}).t(), int64_t{-2}, at::zeros({n}, at::kLong)}; }},
      {"aten::stack", [](int64_t n) { return Args{std::vector<at::Tensor>{at::rand({n, 2}), at::rand({n, 2})}, int64_t{1}}; }},
      {"aten::slice_backward", [](int64_t n) { return Args{at::rand({n, 2}), std::vector<int64_t>{40, 2}, int64_t{0}, int64_t{0}, n, int64_t{1}}; }},
      {"aten::select_backward", [](int64_t n) { return Args{at::rand({n}), std::vector<int64_t>{n, 5}, int64_t{1}, int64_t{2}}; }},
      {"aten::new_zeros", [](int64_t n) { return Args{at::rand({2}), std::vector<int64_t>{n, 5}, c10::IValue(), c10::IValue(), c10::IValue(), c10::IValue()}; }},
      {"aten::zeros_like", [](int64_t n) { return Args{at::rand({n, 3}), c10::IValue(), c10::IValue(), c10::IValue(), c10::IValue(), c10::IValue()}; }},
      {"aten::_to_copy", [](int64_t n) { return Args{at::rand({n, 3}), static_cast<int64_t>(at::kDouble), c10::IValue(), c10::IValue(), c10::IValue(), false, c10::IValue()}; }},
      {"aten::index.Tensor", [](int64_t n) { return Args{at::rand({9, 4}), indices({at::zeros({n}, at::kLong)})}; }},
      {"aten::index.Tensor", [](int64_t n) { return Args{at::rand({4, 9}).t(), indices({at::zeros({n, 2}, at::kLong)})}; }},
      {"aten::index.Tensor", [](int64_t n) { return Args{at::rand({9, n, 4}), indices({{}, at::zeros({5}, at::kLong)})}; }},
      {"aten::index.Tensor", [](int64_t n) { return Args{at::rand({9, 7}), indices({at::zeros({n}, at::kLong), at::zeros({n}, at::kLong)})}; }},
      {"aten::gather", [](int64_t n) { return Args{at::rand({n, 4}), int64_t{1}, at::zeros({n, 2}, at::kLong), false}; }},
      {"aten::index_add", [](int64_t n) { return Args{at::rand({8, 4}), int64_t{0}, at::zeros({n}, at::kLong), at::rand({n, 4}), 1}; }},
      {"aten::index_add_", [](int64_t n) { return Args{at::rand({8, 4}), int64_t{0}, at::zeros({n}, at::kLong), at::rand({n, 4}), 1}; }},
  };
  return all;
}

std::vector<bool> nothing_varies(const graph::OpInfo& op) { return std::vector<bool>(op.args.size(), false); }

TEST(ShapeInference, SaysWhatTheOpMakes) {
  for (const auto& one : cases()) {
    const auto& op = op_named(one.op);
    auto known = signature_of(op, one.make(5));
    known.outputs = layouts_by_running(op, one.make(5));
    known.version_bumps.assign(known.inputs.size(), 1);
    for (const int64_t n : {1, 2, 3, 7, 32}) {
      const auto args = one.make(n);
      auto learned = signature_of(op, args);
      ASSERT_TRUE(infer_results(learned, known, args, nothing_varies(op))) << one.op << " " << n;
      const auto ran = layouts_by_running(op, args);
      ASSERT_EQ(learned.outputs.size(), ran.size()) << one.op;
      for (size_t i = 0; i < ran.size(); ++i) {
        EXPECT_TRUE(learned.outputs[i].same_geometry(ran[i]))
            << one.op << " " << n << ": " << learned.outputs[i].str() << " and " << ran[i].str();
        EXPECT_EQ(learned.outputs[i].storage_bytes, ran[i].storage_bytes) << one.op << " " << n;
        EXPECT_EQ(learned.outputs[i].storage_group, ran[i].storage_group);
      }
      EXPECT_EQ(learned.version_bumps, known.version_bumps);
    }
  }
}

bool is_inferred(const char* name, const Args& before, const Args& now, std::vector<bool> varies = {}) {
  const auto& op = op_named(name);
  auto known = signature_of(op, before), learned = signature_of(op, now);
  known.outputs = layouts_by_running(op, before);
  if (varies.empty()) varies = nothing_varies(op);
  return infer_results(learned, known, now, varies);
}

TEST(ShapeInference, SaysNothingWhereItIsNotCertain) {
  const auto f = [](std::vector<int64_t> sizes) { return at::rand(sizes); };
  const auto i = [](std::vector<int64_t> sizes) { return at::zeros(sizes, at::kLong); };
  EXPECT_TRUE(is_inferred("aten::mm", {f({2, 3}), f({3, 2})}, {f({4, 3}), f({3, 2})}));
  EXPECT_FALSE(is_inferred("aten::mm", {f({2, 3}), f({3, 2})}, {f({4, 3}), f({5, 2})})) << "it will raise";
  EXPECT_FALSE(is_inferred("aten::mul.Tensor", {f({2}), f({2})}, {f({3}), i({3})})) << "another type";
  EXPECT_FALSE(is_inferred("aten::mul.Tensor", {f({2}), f({2})}, {f({3, 1}), f({3})})) << "another rank";
  EXPECT_FALSE(is_inferred("aten::add_.Tensor", {f({2}), f({2}), 1}, {f({1}), f({3}), 1})) << "it will raise";
  EXPECT_FALSE(is_inferred("aten::bernoulli", {f({2}), c10::IValue()}, {f({3}), c10::IValue()})) << "it draws";
  EXPECT_TRUE(is_inferred("aten::bernoulli_.float", {f({2}), 0.5, c10::IValue()}, {f({3}), 0.5, c10::IValue()}))
      << "it draws, and nothing comes out";
  const auto put = [](const at::Tensor& index, const at::Tensor& values) {
    return Args{at::rand({4, 4}), indices({index}), values, false};
  };
  EXPECT_FALSE(is_inferred("aten::index_put_", put(at::arange(2), f({2, 4})), put(at::arange(3), f({2, 4})))) << "it will raise";
  EXPECT_FALSE(is_inferred("aten::index_put_", put(at::arange(2), f({2, 4})), put(at::arange(3), i({3, 4})))) << "another type";
  EXPECT_FALSE(is_inferred("aten::index_put_", put(at::ones({4}, at::kBool), f({4, 4})), put(at::ones({4}, at::kBool), f({1, 4}))))
      << "how many are true";
  EXPECT_FALSE(is_inferred("aten::sum", {f({2}), c10::IValue()}, {f({3}), c10::IValue()}, {false, true})) << "another type";
  EXPECT_FALSE(is_inferred("aten::max", {f({2})}, {f({0})})) << "it will raise";
  const auto spread = at::rand({1, 4}).expand({3, 4});
  EXPECT_FALSE(is_inferred("aten::index_put_", put(at::arange(2), f({2, 4})), {spread, indices({at::arange(3)}), f({3, 4}), false}))
      << "it warns";
  auto written = signature_of(op_named("aten::add_.Tensor"), {f({2, 4}), f({2, 4}), 1}), again = written;
  again.inputs[0] = graph::layout_of(spread);
  again.inputs[1] = graph::layout_of(f({3, 4}));
  EXPECT_FALSE(infer_results(again, written, {spread, f({3, 4}), 1}, {false, false, false})) << "it will raise";
  EXPECT_FALSE(is_inferred("aten::nonzero", {f({2})}, {f({3})})) << "it depends on data";
  EXPECT_FALSE(is_inferred("aten::clone", {f({2, 2}), c10::IValue()}, {f({3, 2}), c10::IValue()}, {false, true}))
      << "the memory format varies";
  EXPECT_FALSE(is_inferred("aten::bitwise_and.Scalar", {i({2}), 1}, {i({3}), 1})) << "a scalar may decide on the type";
}

TEST(ShapeInference, WhatAnOpWarnedOfRunsAgain) {
  const auto& op = op_named("aten::relu");
  const Args args = {at::rand({3})};
  auto known = signature_of(op, {at::rand({2})}), learned = signature_of(op, args);
  known.outputs = layouts_by_running(op, {at::rand({2})});
  known.warns = true;
  EXPECT_FALSE(infer_results(learned, known, args, nothing_varies(op)));
}

}  // namespace
}  // namespace lockstep::dynamic
