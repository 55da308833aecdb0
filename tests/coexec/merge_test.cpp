// Merging through a session: coin flips, loops, recursion, `match`-like choices; what converges and what diverges.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <random>

#include "coexec/session.h"
#include "tests/support/test_host.h"

namespace lockstep::coexec {
namespace {

using support::at_line;
using support::Call;

TEST(Merge, TwelveCoinFlipsConverge) {
  Function function;
  std::mt19937 random(5);
  uint64_t late_divergences = 0;
  for (int call = 0; call < 500; ++call) {
    const unsigned flips = random() % 4096;
    const uint64_t before = function.counters.divergences;
    auto x = at::zeros({2});
    double expected = 0;
    Call in_session(function);
    for (unsigned i = 0; i < 12; ++i) {
      const bool heads = (flips >> i) & 1;
      at_line(10 * i + (heads ? 1 : 2));
      x = heads ? x.add(1) : x.mul(0.5);
      expected = heads ? expected + 1 : expected * 0.5;
    }
    in_session.end();
    ASSERT_EQ(x[1].item<double>(), expected);
    if (call >= 100) late_divergences += function.counters.divergences - before;
  }
  EXPECT_LE(function.counters.traced_calls, 60u);
  EXPECT_EQ(function.graph.op_node_count(), 24u);
  EXPECT_EQ(late_divergences, 0u);
}

TEST(Merge, OneLoopForAnyNumberOfPasses) {
  Function function;
  std::mt19937 random(6);
  size_t nodes = 0;
  for (int call = 0; call < 300; ++call) {
    const int passes = 2 + static_cast<int>(random() % 200);
    auto x = at::zeros({2});
    Call in_session(function);
    for (int i = 0; i < passes; ++i) {
      at_line(1);
      x = x.add(1);
      at_line(2);
      x = x.mul(1);
    }
    at_line(3);
    x = x.sub(0.5);
    in_session.end();
    ASSERT_EQ(x[0].item<double>(), passes - 0.5);
    if (call == 2) nodes = function.graph.op_node_count();
  }
  EXPECT_EQ(function.graph.op_node_count(), nodes);
  EXPECT_EQ(nodes, 3u);
  EXPECT_LE(function.counters.divergences, 2u);
}

TEST(Merge, AWhileOnATensorsValue) {
  Function function;
  for (int call = 0; call < 30; ++call) {
    auto x = at::full({2}, 1.0 + call);
    int passes = 0;
    Call in_session(function);
    for (;;) {
      at_line(1);
      support::position().plain_bool = true;
      const bool more = x.sum().gt(2).item<bool>();
      support::position().plain_bool = false;
      if (!more) break;
      at_line(2);
      x = x.mul(0.5);
      ++passes;
    }
    in_session.end();
    int expected = 0;
    for (double value = 1.0 + call; 2 * value > 2; value *= 0.5) ++expected;
    EXPECT_EQ(passes, expected);
  }
  EXPECT_LE(function.graph.op_node_count(), 4u);
  EXPECT_LE(function.counters.divergences, 2u);
}

// A tree of random shape: leaves and inner nodes, one graph for all of them.
struct Grower {
  std::mt19937 random;
  int left;
  at::Tensor grow(int depth, double* expected) {
    if (depth > 60 || left-- <= 0 || random() % 3 == 0) {
      at_line(1);
      *expected = 1;
      return at::ones({2});
    }
    double a = 0, b = 0;
    auto one = grow(depth + 1, &a);
    auto two = grow(depth + 1, &b);
    at_line(2);
    auto sum = one.add(two);
    at_line(3);
    *expected = 0.5 * (a + b);
    return sum.mul(0.5);
  }
};

TEST(Merge, RecursionOnRandomTreesIsOneGraph) {
  Function function;
  size_t nodes = 0;
  for (unsigned call = 0; call < 300; ++call) {
    Grower grower{std::mt19937(call), 40};
    double expected = 0;
    Call in_session(function);
    auto x = grower.grow(0, &expected);
    in_session.end();
    ASSERT_EQ(x[0].item<float>(), static_cast<float>(expected));
    if (call == 20) nodes = function.graph.op_node_count();
  }
  EXPECT_EQ(function.graph.op_node_count(), nodes);
  EXPECT_LE(function.graph.op_node_count(), 6u);
  EXPECT_LE(function.counters.divergences, 12u);
}

// The same place with other data: h = a if flag else b.
TEST(Merge, AnOperandThatVariesIsNoDivergence) {
  Function function;
  for (int call = 0; call < 8; ++call) {
    at::Tensor y;
    Call in_session(function);
    at_line(1);
    auto a = at::full({2}, 2.0);
    at_line(2);
    auto b = at::full({2}, 3.0);
    const auto& h = call % 2 ? a : b;
    at_line(3);
    y = h.mul(10);
    in_session.end();
    EXPECT_EQ(y[0].item<double>(), call % 2 ? 20 : 30);
  }
  EXPECT_EQ(function.counters.divergences, 0u);
  const auto* node = function.graph.find_node(3, graph::find_op_info("aten::mul.Scalar"));
  ASSERT_NE(node, nullptr);
}

}  // namespace
}  // namespace lockstep::coexec
