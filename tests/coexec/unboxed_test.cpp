// Ops that come without boxes: what passes the session is what eager computes, and the graph learns of them what it
// learns of others.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>

#include "coexec/session.h"
#include "graph/op_info.h"
#include "tests/support/test_host.h"
#include "tracer/hook.h"

namespace lockstep::coexec {
namespace {

using support::at_line;
using support::Call;

void call(Function& function, const std::function<void()>& body, bool in_place = false) {
  Call call(function, in_place);
  body();
  call.end();
}

const graph::Node* node_of(const Function& function, std::string_view op) {
  for (const auto& node : function.graph.nodes())
    if (node->op && node->op->name == op) return node.get();
  return nullptr;
}

TEST(Unboxed, TheTableHasOrdinaryOpsOnly) {
  int count = 0;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op || !op->hasKernelForDispatchKey(tracer::kHookKey)) continue;
    ++count;
    const auto& info = graph::op_info(*op);
    using graph::OpKind;
    EXPECT_TRUE(info.kind == OpKind::kView || info.kind == OpKind::kAllocate || info.kind == OpKind::kCompute) << info.name;
    EXPECT_FALSE(info.draws || info.dynamic_shape || info.bool_index_is_dynamic || info.returns_out) << info.name;
    if (info.kind == OpKind::kCompute) {
      for (const auto& slot : info.returns) EXPECT_TRUE(slot.is_tensor && !slot.is_list) << info.name;
    }
  }
  EXPECT_GT(count, 100);
}

TEST(Unboxed, NumbersAndSizesThatChangeAreFeeds) {
  Function function;
  const auto x = at::rand({4, 6});
  int64_t rows = 4;
  double factor = 2;
  std::optional<int64_t> dim = 0;
  at::Tensor sum, fixed;
  const auto body = [&] {
    at_line(1);
    auto y = x.view({rows, 24 / rows});
    at_line(2);
    y = y.add(y, factor);
    at_line(3);
    sum = dim ? y.sum({*dim}) : y.sum(at::OptionalIntArrayRef());
    at_line(4);
    fixed = y.transpose(0, 1);
  };
  const auto is_right = [&] {
    const auto y = x.view({rows, 24 / rows}) * (1 + factor);
    return at::allclose(sum, dim ? y.sum({*dim}) : y.sum()) && at::allclose(fixed, y.t());
  };
  for (int i = 0; i < 2; ++i) call(function, body);
  const auto varies = [&](std::string_view op, size_t argument) { return node_of(function, op)->varies[argument]; };
  EXPECT_FALSE(varies("aten::view", 1));
  EXPECT_FALSE(varies("aten::add.Tensor", 2));
  EXPECT_FALSE(varies("aten::sum.dim_IntList", 1));
  factor = 3;
  call(function, body);
  EXPECT_TRUE(is_right());
  EXPECT_TRUE(varies("aten::add.Tensor", 2));
  EXPECT_FALSE(varies("aten::view", 1));
  rows = 2;
  call(function, body);
  EXPECT_TRUE(is_right());
  EXPECT_TRUE(varies("aten::view", 1));
  EXPECT_FALSE(varies("aten::sum.dim_IntList", 1));
  dim.reset();
  call(function, body);
  EXPECT_TRUE(is_right());
  EXPECT_TRUE(varies("aten::sum.dim_IntList", 1));
  EXPECT_FALSE(varies("aten::transpose.int", 1));
  EXPECT_EQ(function.counters.divergences, 0u);
  EXPECT_EQ(function.counters.traced_calls, 1u);
}

TEST(Unboxed, ListsOfOtherLengths) {
  Function function;
  const auto x = at::rand({2, 3});
  at::Tensor joined;
  for (const bool in_place : {false, true})
    for (int count = 1; count < 5; ++count) {
      const std::vector<at::Tensor> parts(count, x);
      call(
          function,
          [&] {
            at_line(1);
            joined = at::cat(parts, 1);
          },
          in_place);
      EXPECT_TRUE(at::equal(joined, x.repeat({1, count}))) << count;
    }
  EXPECT_EQ(function.graph.op_node_count(), 1u);
}

// Optional tensors that are missing, results that are not made, several results.
TEST(Unboxed, WhatIsMissingStaysMissing) {
  Function function;
  const auto x = at::rand({4, 8}), grad = at::rand({4, 8}), weight = at::rand({8});
  for (const bool in_place : {false, false, false, true}) {
    at::Tensor y, mean, rstd, plain, grad_x, grad_weight, grad_bias;
    call(
        function,
        [&] {
          at_line(1);
          std::tie(plain, std::ignore, std::ignore) = at::native_layer_norm(x, {8}, {}, {}, 1e-5);
          at_line(2);
          std::tie(y, mean, rstd) = at::native_layer_norm(x, {8}, weight, {}, 1e-5);
          at_line(3);
          std::tie(grad_x, grad_weight, grad_bias) =
              at::native_layer_norm_backward(grad, x, {8}, mean, rstd, weight, {}, {true, false, false});
        },
        in_place);
    EXPECT_TRUE(at::equal(plain, at::layer_norm(x, {8})));
    EXPECT_TRUE(at::equal(y, at::layer_norm(x, {8}, weight)));
    EXPECT_EQ(mean.sizes(), at::IntArrayRef({4, 1}));
    EXPECT_TRUE(grad_x.defined());
    EXPECT_FALSE(grad_weight.defined());
    EXPECT_FALSE(grad_bias.defined());
  }
}

TEST(Unboxed, WhatIsWrittenComesBack) {
  Function function;
  auto x = at::zeros({3});
  const auto version = x._version();
  for (int i = 0; i < 3; ++i)
    call(function, [&] {
      at_line(1);
      at::Tensor& back = x.add_(1);
      EXPECT_EQ(&back, &x);
    });
  EXPECT_TRUE(at::equal(x, at::full({3}, 3.0)));
  EXPECT_EQ(x._version(), version + 3);
}

TEST(Unboxed, AnErrorComesWhereItWasAsked) {
  Function function;
  const auto x = at::rand({4, 6});
  int64_t rows = 4;
  at::Tensor y;
  const auto body = [&] {
    at_line(1);
    y = x.add(1);
    at_line(2);
    y = y.view({rows, 6});
  };
  call(function, body);
  for (const bool in_place : {false, true}) {
    rows = 5;
    EXPECT_THROW(call(function, body, in_place), c10::Error);
    EXPECT_TRUE(at::equal(y, x + 1));
    rows = 4;
    call(function, body, in_place);
    EXPECT_TRUE(at::equal(y, x + 1));
  }
}

}  // namespace
}  // namespace lockstep::coexec
