// Calls of a session under a host without an interpreter: tracing, co-execution, divergence, errors, end of call.
#include "coexec/session.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>

#include "dynamic/shapes/shape_memo.h"
#include "tests/support/test_host.h"
#include "tests/support/test_ops.h"

namespace lockstep::coexec {
namespace {

using support::at_line;
using support::Call;
using support::test_host;

const void* data_of(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl()->data(); }

void call(Function& function, const std::function<void()>& body) {
  Call call(function);
  body();
  call.end();
}

TEST(Session, TracesTheFirstCallAndCoExecutesTheSecond) {
  Function function;
  const auto x = at::rand({4, 4});
  at::Tensor z;
  auto body = [&] {
    at_line(1);
    auto y = x.add(1);
    at_line(2);
    z = y.mul(y);
  };
  call(function, body);
  EXPECT_EQ(function.counters.traced_calls, 1u);
  EXPECT_EQ(function.counters.eager_ops, 2u);
  EXPECT_EQ(function.graph.op_node_count(), 2u);
  const auto first = z;
  call(function, body);
  EXPECT_EQ(function.counters.calls, 2u);
  EXPECT_EQ(function.counters.traced_calls, 1u);
  EXPECT_EQ(function.counters.ops, 4u);
  EXPECT_EQ(function.counters.graph_ops, 2u);
  EXPECT_EQ(function.counters.divergences, 0u);
  EXPECT_TRUE(at::equal(z, first));
}

TEST(Session, GivesPlaceholdersWhoseDataComesLater) {
  Function function;
  const auto x = at::rand({8});
  at::Tensor y, z;
  auto body = [&] {
    at_line(1);
    y = support::gate(x);
    at_line(2);
    z = y.view({2, 4}).t().add(1);
  };
  call(function, body);
  {
    Call second(function);
    support::ClosedGate closed;
    body();
    EXPECT_EQ(data_of(y), nullptr);
    EXPECT_EQ(data_of(z), nullptr);
    EXPECT_EQ(z.sizes(), at::IntArrayRef({4, 2}));
    EXPECT_EQ(z.strides(), at::IntArrayRef({1, 4}));
    support::open_gate();
    second.end();
  }
  EXPECT_TRUE(at::equal(y, x));
  EXPECT_TRUE(at::equal(z, x.view({2, 4}).t().add(1)));
}

// Nobody could gain from an event that waits: Python waits for it anyway.
TEST(Session, InPlaceAndStrictAnOpRunsAtOnce) {
  Function function;
  auto x = at::rand({64});
  const auto before = x.clone();
  at::Tensor y, z;
  auto body = [&] {
    at_line(1);
    y = x.mul(2);
    at_line(2);
    z = y.add(1);
    at_line(3);
    x.add_(1);
  };
  call(function, body);
  {
    Call behind(function);
    body();
    behind.end();
  }
  const auto asked = support::session().runner().channel().asked();
  const auto ops = function.counters.graph_ops;
  {
    Call in_place(function, /*in_place=*/true);
    body();
    EXPECT_NE(data_of(y), nullptr);
    in_place.end();
  }
  EXPECT_TRUE(at::equal(z, (before + 2) * 2 + 1));
  EXPECT_TRUE(at::equal(x, before + 3));
  EXPECT_EQ(function.counters.graph_ops, ops + 3);
  EXPECT_EQ(function.counters.divergences, 0u);
  EXPECT_EQ(support::session().runner().channel().asked(), asked);
  call(function, body);  // behind again, on what ran at once
  EXPECT_TRUE(at::equal(z, (before + 3) * 2 + 1));
  using Kind = graph::OperandSource::Kind;
  for (const auto& node : function.graph.nodes())
    for (const auto& operand : node->operands) EXPECT_NE(operand.kind, Kind::kVaries) << node->where;
}

// What ran at once has left no trace of where it came from: a line that is new then knows no sources, and learns them.
TEST(Session, ADivergenceInPlaceLearnsItsSourcesLater) {
  Function function;
  const auto x = at::rand({64});
  at::Tensor z;
  auto body = [&](bool longer) {
    at_line(1);
    auto y = x.mul(2);
    at_line(2);
    z = y.add(1);
    if (!longer) return;
    at_line(3);
    z = z.mul(y);
  };
  call(function, [&] { body(false); });
  {
    Call in_place(function, /*in_place=*/true);
    body(true);
    in_place.end();
  }
  EXPECT_EQ(function.counters.divergences, 1u);
  EXPECT_TRUE(at::equal(z, (x * 2 + 1) * (x * 2)));
  call(function, [&] { body(true); });
  EXPECT_TRUE(at::equal(z, (x * 2 + 1) * (x * 2)));
  using Kind = graph::OperandSource::Kind;
  const auto& last = *function.graph.nodes().back();
  ASSERT_EQ(last.operands.size(), 2u);
  for (const auto& operand : last.operands) EXPECT_EQ(operand.kind, Kind::kNode);
}

TEST(Session, AReaderWaitsOnlyForWhatItReads) {
  Function function;
  const auto x = at::full({8}, 2.0);
  double value = 0;
  at::Tensor later;
  auto body = [&] {
    at_line(1);
    auto early = x.mul(3);
    at_line(2);
    later = support::gate(x);
    at_line(3);
    value = early.select(0, 5).item<double>();
  };
  call(function, body);
  value = 0;
  Call second(function);
  support::ClosedGate closed;
  body();  // would never end if it waited for the gate
  EXPECT_EQ(value, 6);
  EXPECT_EQ(data_of(later), nullptr);
  EXPECT_EQ(function.counters.fetches, 2u);
  support::open_gate();
  second.end();
}

TEST(Session, ADivergenceDrainsAndGoesOnEagerly) {
  Function function;
  const auto x = at::rand({8});
  at::Tensor y, z;
  auto body = [&](bool left) {
    at_line(1);
    y = support::gate(x);
    at_line(left ? 2 : 3);
    z = left ? y.add(1) : y.mul(2);
    at_line(4);
    z = z.add(y);
  };
  call(function, [&] { body(true); });
  {
    support::ClosedGate closed;
    Call second(function);
    test_host().on_next_wait([] { support::open_gate(); });
    body(false);
    EXPECT_NE(data_of(y), nullptr);
    EXPECT_EQ(support::session().phase(), Phase::kTracing);
    second.end();
  }
  EXPECT_TRUE(at::equal(z, x.mul(2).add(x)));
  EXPECT_EQ(function.counters.divergences, 1u);
  ASSERT_EQ(function.divergences.size(), 1u);
  EXPECT_NE(function.divergences[0].expected.find("aten::add"), std::string::npos);
  EXPECT_NE(function.divergences[0].found.find("aten::mul"), std::string::npos);
  for (bool left : {true, false, true}) {
    call(function, [&] { body(left); });
    EXPECT_TRUE(at::equal(z, (left ? x.add(1) : x.mul(2)).add(x)));
  }
  EXPECT_EQ(function.counters.divergences, 1u);
}

// It may end soon; a session goes on.
TEST(Session, TheFirstCallOfAFunctionRejoinsLate) {
  for (const bool is_session : {false, true}) {
    Function function;
    function.is_session = is_session;
    auto x = at::rand({8});
    Call first(function);
    for (int round = 0; round < 100; ++round) {
      at_line(1);
      x = x.add(1);
      at_line(2);
      x = x.mul(0.5);
    }
    EXPECT_EQ(support::session().phase(), is_session ? Phase::kCoExecuting : Phase::kTracing);
    for (int round = 0; round < 9000; ++round) {
      at_line(1);
      x = x.add(1);
      at_line(2);
      x = x.mul(0.5);
    }
    EXPECT_EQ(support::session().phase(), Phase::kCoExecuting);
    first.end();
  }
}

// Each size of an op that nothing can be inferred of is waited for; where all are new, recording is cheaper.
TEST(Session, ACallFullOfUnknownSizesIsRecorded) {
  Function function;
  const auto values = at::rand({64}), sorted = at::arange(64).to(at::kFloat);
  int64_t first = 1;
  int64_t sum = 0;
  auto body = [&] {
    for (int64_t n = first; n < first + 20; ++n) {
      at_line(1);
      const auto part = values.narrow(0, 0, n);
      at_line(2);
      sum += at::searchsorted(sorted, part).size(0);
    }
  };
  call(function, body);
  first = 21;
  Call second(function);
  body();
  EXPECT_EQ(support::session().phase(), Phase::kTracing);
  second.end();
  EXPECT_EQ(sum, (1 + 40) * 40 / 2);
  EXPECT_EQ(function.counters.divergences, 0u);
  call(function, body);  // all known
  EXPECT_EQ(function.counters.traced_calls, 2u);
}

TEST(Session, ATracedCallRejoinsAfterALongKnownStretch) {
  Function function;
  auto x = at::rand({8});
  auto body = [&](bool left) {
    at_line(left ? 1 : 2);
    auto y = x.add(1);
    for (uint64_t line = 10; line < 60; ++line) {
      at_line(line);
      y = y.mul(0.5);
    }
  };
  call(function, [&] { body(true); });
  Call second(function);
  body(false);
  EXPECT_EQ(support::session().phase(), Phase::kCoExecuting);
  second.end();
  EXPECT_GT(function.counters.graph_ops, 0u);
}

TEST(Session, WhatTheCallLeavesBehindIsOrdinary) {
  Function function;
  at::Tensor kept, view;
  const auto x = at::arange(6, at::kFloat);
  auto body = [&] {
    at_line(1);
    kept = x.mul(2);
    at_line(2);
    view = kept.view({2, 3}).t();
    at_line(3);
    view.add_(1);
  };
  for (int i = 0; i < 3; ++i) {
    call(function, body);
    EXPECT_TRUE(at::equal(kept, x.mul(2).add(1)));
    EXPECT_EQ(data_of(kept), data_of(view));
    kept.fill_(7);  // eagerly: the view sees it
    EXPECT_TRUE(at::equal(view, at::full({3, 2}, 7.0)));
    EXPECT_TRUE(kept.storage().use_count() <= 3);
  }
}

TEST(Session, ValuesOfOneCallAreFeedsOfTheNext) {
  Function function;
  auto state = at::zeros({8});
  for (int i = 0; i < 5; ++i)
    call(function, [&] {
      at_line(1);
      state = state.add(1);
      at_line(2);
      state.mul_(2);
    });
  EXPECT_TRUE(at::equal(state, at::full({8}, 62.0)));
  EXPECT_GT(function.counters.feeds, 0u);
}

TEST(Session, NestedBeginsAreOneCall) {
  Function outer, inner;
  const auto x = at::rand({8});
  at::Tensor y, z;
  for (int i = 0; i < 2; ++i) {
    Call call(outer);
    at_line(1);
    y = x.add(1);
    {
      Call nested(inner);
      at_line(2);
      z = y.mul(3);
      nested.end();
      EXPECT_TRUE(support::session().is_active());
      EXPECT_EQ(support::session().function(), &outer);
    }
    at_line(3);
    z = z.add(y);
    call.end();
    EXPECT_FALSE(support::session().is_active());
  }
  EXPECT_EQ(inner.graph.op_node_count(), 0u);
  EXPECT_EQ(outer.graph.op_node_count(), 3u);
  EXPECT_TRUE(at::equal(z, x.add(1).mul(3).add(x.add(1))));
}

TEST(Session, NumbersAndSizesThatChangeAreNoDivergence) {
  Function function;
  for (int i = 1; i < 20; ++i) {
    const auto x = at::rand({i, 3});
    at::Tensor y;
    call(function, [&] {
      at_line(1);
      y = x.add(0.5 * i);
      at_line(2);
      y = y.sum(1, true).expand({i, 3}).contiguous();
    });
    EXPECT_TRUE(at::equal(y, x.add(0.5 * i).sum(1, true).expand({i, 3}).contiguous()));
  }
  EXPECT_EQ(function.counters.divergences, 0u);
  const auto* node = function.graph.entry()->next[0].to;
  EXPECT_EQ(node->op->name, "aten::add.Scalar");
  EXPECT_EQ(function.graph.op_node_count(), 4u);
}

TEST(Session, SizesThatDependOnData) {
  Function function;
  for (int i = 0; i < 6; ++i) {
    const auto x = at::arange(12, at::kFloat).sub(i);
    at::Tensor picked, where;
    call(function, [&] {
      at_line(1);
      auto mask = x.gt(2);
      at_line(2);
      picked = x.masked_select(mask).mul(2);
      at_line(3);
      where = at::nonzero(mask);
    });
    EXPECT_EQ(picked.numel(), 9 - i);
    EXPECT_TRUE(at::equal(picked, x.masked_select(x.gt(2)).mul(2)));
    EXPECT_TRUE(at::equal(where, at::nonzero(x.gt(2))));
  }
  EXPECT_EQ(function.counters.divergences, 0u);
}

TEST(Session, AliasedOperandsAfterSeparateOnes) {
  Function function;
  auto f = [](at::Tensor& a, const at::Tensor& b) {
    at_line(1);
    a.add_(b);
    at_line(2);
    a.narrow(0, 0, 4).copy_(b.narrow(0, 4, 4));
  };
  auto a = at::arange(8, at::kFloat), expected = a.clone();
  const auto b = at::rand({8});
  for (int i = 0; i < 3; ++i) {
    call(function, [&] { f(a, b); });
    f(expected, b);
    call(function, [&] { f(a, a); });
    f(expected, expected);
    EXPECT_TRUE(at::equal(a, expected));
  }
  EXPECT_EQ(function.counters.divergences, 0u);
}

TEST(Session, DrawsAreEagersDraws) {
  Function function;
  auto body = [] {
    at_line(1);
    auto x = at::rand({16});
    at_line(2);
    auto y = at::bernoulli(x.mul(0.5));
    at_line(3);
    return x.add(y).add_(at::empty({16}).normal_());
  };
  for (uint64_t seed = 0; seed < 5; ++seed) {
    at::manual_seed(seed);
    at::Tensor x;
    call(function, [&] { x = body(); });
    const auto after = at::rand({4});
    at::manual_seed(seed);
    EXPECT_TRUE(at::equal(x, body()));
    EXPECT_TRUE(at::equal(after, at::rand({4})));
  }
}

TEST(Session, AFullChannelMakesTheLeaderWait) {
  Function function;
  auto x = at::zeros({1024});
  constexpr int kCount = (1 << 14) + 1000;
  auto body = [&](int count) {
    at_line(1);
    auto y = support::gate(x);
    for (int i = 0; i < count; ++i) {
      at_line(2);
      y.add_(1);
    }
    at_line(3);
    x = y.mul(1);
  };
  call(function, [&] { body(3); });
  support::ClosedGate closed;
  Call second(function);
  test_host().on_next_wait([] { support::open_gate(); });
  body(kCount);
  second.end();
  EXPECT_TRUE(at::equal(x, at::full({1024}, kCount + 3.0)));
  EXPECT_GT(function.counters.waits, 0u);
}

TEST(Session, CodeAtRandomPlacesIsNotRecorded) {
  Function function;
  const auto x = at::rand({8});
  at::Tensor y, aside;
  for (int i = 0; i < 4; ++i) {
    call(function, [&] {
      at_line(1);
      y = x.add(1);
      if (i % 2) {
        support::position().unrecorded = true;
        at_line(99);
        aside = y.mul(2);
        support::position().unrecorded = false;
      }
      at_line(2);
      y.add_(1);
    });
    if (i % 2) {
      EXPECT_TRUE(at::equal(aside, x.add(1).mul(2)));
    }
  }
  EXPECT_EQ(function.graph.op_node_count(), 2u);
  EXPECT_EQ(function.counters.divergences, 0u);
  EXPECT_EQ(function.counters.reasons[static_cast<int>(graph::Reason::interrupted)], 2u);
}

TEST(Session, APlainTruthTestMarksTheEdgeItDecided) {
  Function function;
  for (int i = 0; i < 4; ++i) {
    const auto x = at::full({8}, i % 2 ? 1.0 : -1.0);
    call(function, [&] {
      at_line(1);
      auto sum = x.sum();
      at_line(2);
      support::position().plain_bool = true;
      const bool positive = sum.gt(0).item<bool>();
      support::position().plain_bool = false;
      at_line(positive ? 3 : 4);
      x.add(1);
    });
  }
  const auto* read = function.graph.find_node(2, graph::find_op_info("aten::_local_scalar_dense"));
  ASSERT_NE(read, nullptr);
  EXPECT_TRUE(read->is_plain_bool);
  ASSERT_EQ(read->next.size(), 2u);
  for (const auto& edge : read->next) {
    EXPECT_EQ(edge.after_true, edge.to->location == 3);
    EXPECT_EQ(edge.after_false, edge.to->location == 4);
  }
}

// Signatures are shared by the process and dropped when there are too many: no function may keep one.
TEST(Session, NoFunctionKeepsASignatureThatWasDropped) {
  Function first, second;
  const auto x = at::rand({8});
  auto body = [&] {
    at_line(1);
    auto y = x.add(1);
  };
  call(first, body);
  call(second, body);
  dynamic::ShapeMemo::instance().forget_if_large(0);
  call(first, body);
  Call again(second);
  for (const auto& node : second.graph.nodes()) EXPECT_EQ(node->signature, nullptr);
  body();
  again.end();
}

}  // namespace
}  // namespace lockstep::coexec
