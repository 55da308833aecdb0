// Chains of events as one kernel: who joins, what is stored, what may run before.
#include "dynamic/fusion/fuser.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <vector>

#include "tests/support/event_case.h"

namespace lockstep::dynamic {
namespace {

using torch::jit::Stack;

// Nothing on disk: kernels are those of this build.
const int no_cache = setenv("LOCKSTEP_CACHE", "", 1);

struct Chain {
  std::deque<EventCase> cases;
  Fuser fuser;
  at::AutoDispatchBelowADInplaceOrView below;

  // An op over tensors and results of earlier ones: (what it is called with, what the event gets).
  EventCase& ask(const char* op, const Stack& args, const Stack& shown) {
    auto& made = cases.emplace_back(op, args, shown);
    made.event.may_be_fused = true;
    return made;
  }
  EventCase& ask(const char* op, const Stack& args) { return ask(op, args, args); }
  bool join(EventCase& made) { return fuser.try_add(made.event); }
  void run() {
    Event* failed = nullptr;
    fuser.run(failed);
    ASSERT_EQ(failed, nullptr);
  }
};

uint64_t groups() { return fusion_statistics.groups.load(); }

TEST(Fuser, AChainIsOneKernelAndStoresOnlyWhatSomebodyHolds) {
  const auto x = at::randn({50, 40}), y = at::randn({50, 40});
  for (int round = 0; round < 2; ++round) {
    Chain chain;
    auto& product = chain.ask("aten::mul.Tensor", {x, y});
    auto& sum = chain.ask("aten::add.Tensor", {product.expected[0], y, 1}, {product.result(0), y, 1});
    auto& root = chain.ask("aten::abs", {sum.expected[0]}, {sum.result(0)});
    const auto wanted = root.event.outputs[0];
    const uint64_t before = groups();
    for (auto* made : {&product, &sum, &root}) ASSERT_TRUE(chain.join(*made));
    chain.run();
    KernelService::instance().wait();
    EXPECT_EQ(groups(), before + (round > 0));
    EXPECT_TRUE(at::equal(root.result(0), root.expected[0]));
    if (round == 0) continue;
    EXPECT_EQ(product.event.outputs[0]->data(), nullptr) << "nobody wanted it";
    EXPECT_EQ(sum.event.outputs[0]->data(), nullptr);
  }
}

// An exponent that changes with each step is no new kernel.
TEST(Fuser, NumbersThatAPlanIsMadeForAreNoPartOfTheKernel) {
  const auto x = at::rand({50, 40}) + 1;
  const auto run = [&](double number) {
    Chain chain;
    auto& power = chain.ask("aten::pow.Tensor_Scalar", {x, number});
    auto& root = chain.ask("aten::celu", {power.expected[0], number}, {power.result(0), number});
    const auto wanted = root.event.outputs[0];
    ASSERT_TRUE(chain.join(power) && chain.join(root));
    chain.run();
    KernelService::instance().wait();
    EXPECT_TRUE(at::allclose(root.result(0), root.expected[0])) << number;
  };
  const auto compiled = [] { return KernelService::instance().statistics().compiled_count; };
  run(1.3);
  const auto before = compiled();
  for (const double number : {1.4, 1.7, 2.2}) run(number);
  EXPECT_EQ(compiled(), before);
  run(2);
  EXPECT_GT(compiled(), before) << "a square has a kernel of its own";
}

TEST(Fuser, APowerInPlaceIsOfTheTensor) {
  for (int round = 0; round < 2; ++round) {
    const auto x = at::rand({50, 40}), square = x * x;
    Chain chain;
    auto& product = chain.ask("aten::mul.Tensor", {x, x});
    auto& power = chain.ask("aten::pow_.Scalar", {square.clone(), 3}, {product.result(0), 3});
    const auto wanted = product.event.outputs[0];
    const uint64_t before = groups();
    ASSERT_TRUE(chain.join(product) && chain.join(power));
    chain.run();
    KernelService::instance().wait();
    EXPECT_EQ(groups(), before + (round > 0));
    EXPECT_TRUE(at::allclose(product.result(0), square.pow(3)));
  }
}

TEST(Fuser, AResultThatIsHeldIsStored) {
  const auto x = at::randn({64}), y = at::randn({64});
  for (int round = 0; round < 2; ++round) {
    Chain chain;
    auto& product = chain.ask("aten::mul.Tensor", {x, y});
    auto& root = chain.ask("aten::abs", {product.expected[0]}, {product.result(0)});
    const auto held = product.event.outputs[0], wanted = root.event.outputs[0];
    ASSERT_TRUE(chain.join(product) && chain.join(root));
    chain.run();
    KernelService::instance().wait();
    EXPECT_TRUE(at::equal(product.result(0), product.expected[0]));
    EXPECT_TRUE(at::equal(root.result(0), root.expected[0]));
  }
}

// What takes longest op by op is compiled first.
TEST(Fuser, SaysHowLongAGroupRanForWantOfItsKernel) {
  auto& service = KernelService::instance();
  const auto x = at::randn({61, 67});
  Chain before;
  FusedGroup longer;
  std::vector<at::Tensor> held;
  for (int length = 0; length < 30; ++length) {  // others, so that this one is not there yet when it is wanted
    auto& sine = length == 0 ? before.ask("aten::sin", {x})
                             : before.ask("aten::sin", {before.cases.back().expected[0]}, {before.cases.back().result(0)});
    held.push_back(sine.result(0));
    ASSERT_TRUE(longer.try_add(sine.event));
    longer.key();  // finds out which results are wanted
    service.request(create_spec(longer).spec);
  }
  Chain chain;
  auto& product = chain.ask("aten::mul.Tensor", {x, x});
  auto& root = chain.ask("aten::cos", {product.expected[0]}, {product.result(0)});
  const auto wanted = product.event.outputs[0], wanted_too = root.event.outputs[0];
  FusedGroup group;
  ASSERT_TRUE(group.try_add(product.event) && group.try_add(root.event));
  group.key();
  const auto slot = service.request(create_spec(group).spec);
  ASSERT_EQ(slot->missed(), 0u);
  ASSERT_TRUE(chain.join(product) && chain.join(root));
  chain.run();
  EXPECT_GT(slot->missed(), 0u);
  service.wait();
}

// Of an optimizer: in place, over and over on the same memory.
TEST(Fuser, WritesInPlaceInOrder) {
  const auto start = at::randn({100}), gradient = at::randn({100});
  for (int round = 0; round < 2; ++round) {
    auto own = start.clone(), momentum = at::zeros({100});
    auto eager = start.clone(), eager_momentum = at::zeros({100});
    Chain chain;
    std::vector<EventCase*> asked = {
        &chain.ask("aten::mul_.Tensor", {eager, at::scalar_tensor(0.9)}, {own, at::scalar_tensor(0.9)}),
        &chain.ask("aten::add_.Tensor", {eager_momentum, gradient, 1}, {momentum, gradient, 1}),
        &chain.ask("aten::sub_.Tensor", {eager, eager_momentum, 1}, {own, momentum, 1}),
        &chain.ask("aten::mul_.Tensor", {eager_momentum, eager}, {momentum, own}),
    };
    for (auto* made : asked) ASSERT_TRUE(chain.join(*made));
    chain.run();
    KernelService::instance().wait();
    EXPECT_TRUE(at::equal(own, eager));
    EXPECT_TRUE(at::equal(momentum, eager_momentum));
  }
}

TEST(Fuser, AnotherLayoutOfWhatIsWrittenDoesNotJoin) {
  Chain chain;
  const auto x = at::randn({8, 8}), y = at::randn({8, 8});
  ASSERT_TRUE(chain.join(chain.ask("aten::add_.Tensor", {x, y, 1})));
  EXPECT_FALSE(chain.join(chain.ask("aten::mul.Tensor", {x.t(), y})));
  EXPECT_FALSE(chain.join(chain.ask("aten::mul.Tensor", {x.slice(0, 0, 1), y})));
  EXPECT_TRUE(chain.join(chain.ask("aten::mul.Tensor", {x, y.t()})));
  EXPECT_FALSE(chain.join(chain.ask("aten::add_.Tensor", {y, x, 1}))) << "y was read turned";
  EXPECT_FALSE(chain.join(chain.ask("aten::add_.Tensor", {x.slice(0, 0, 4), y.slice(0, 4, 8), 1}))) << "other sizes";
}

TEST(Fuser, OverlappingOperandsOfOneOpDoNotJoin) {
  Chain chain;
  const auto x = at::randn({9});
  auto& shifted = chain.ask("aten::mul.Tensor", {x.slice(0, 0, 8), x.slice(0, 1, 9)});
  EXPECT_TRUE(chain.join(shifted)) << "both are only read";
  chain.fuser.clear();
  const auto y = at::randn({9});
  auto& turned = chain.ask("aten::copy_", {y.slice(0, 0, 8).clone(), y.slice(0, 1, 9), false},
                           {y.slice(0, 0, 8), y.slice(0, 1, 9), false});
  EXPECT_FALSE(chain.join(turned));
}

TEST(Fuser, WhatHasToDoWithTheGroupMayNotRunBeforeIt) {
  Chain chain;
  const auto x = at::randn({6, 6}), y = at::randn({6, 6}), z = at::randn({6, 6});
  auto& sum = chain.ask("aten::add.Tensor", {x, y, 1});
  ASSERT_TRUE(chain.join(sum));
  EXPECT_TRUE(chain.fuser.is_independent(chain.ask("aten::mm", {x, z}).event)) << "reads what the group reads";
  EXPECT_FALSE(chain.fuser.is_independent(chain.ask("aten::mm", {sum.expected[0], z}, {sum.result(0), z}).event));
  EXPECT_FALSE(chain.fuser.is_independent(chain.ask("aten::zero_", {x.clone()}, {x}).event)) << "writes what it reads";
  EXPECT_TRUE(chain.fuser.is_independent(chain.ask("aten::zero_", {z.clone()}, {z}).event));
}

TEST(Fuser, ALoopsRoundsAreGroupsOfTheirOwn) {
  Chain chain;
  const auto x = at::randn({10}), y = at::randn({10});
  auto& first = chain.ask("aten::abs", {x});
  auto& second = chain.ask("aten::abs", {y});
  ASSERT_TRUE(chain.join(first));
  EXPECT_TRUE(chain.join(second)) << "another place in the program";
  second.event.node = &first.node;
  chain.fuser.clear();
  ASSERT_TRUE(chain.join(first));
  EXPECT_FALSE(chain.join(second)) << "the same place again";
  auto& third = chain.ask("aten::abs", {first.expected[0]}, {first.result(0)});
  third.event.node = &first.node;
  EXPECT_TRUE(chain.join(third)) << "it goes on with the result";
}

TEST(Fuser, FoldsOneDimThatIsInnermost) {
  const auto x = at::randn({12, 20}), tall = at::randn({20, 12});
  const auto softmax = [](Chain& chain, const at::Tensor& tensor, int64_t dim) {
    return chain.join(chain.ask("aten::_softmax", {tensor, dim, false}));
  };
  Chain chain;
  ASSERT_TRUE(softmax(chain, x, -1));
  EXPECT_FALSE(softmax(chain, x, 0)) << "not innermost";
  EXPECT_TRUE(softmax(chain, x, 1));
  EXPECT_FALSE(chain.join(chain.ask("aten::_softmax", {at::scalar_tensor(1.5), 0, false})));
  EXPECT_FALSE(softmax(chain, at::randn({12, 4}), 1)) << "short rows";
  chain.fuser.clear();
  ASSERT_TRUE(chain.join(chain.ask("aten::abs", {tall.t()})));
  EXPECT_FALSE(softmax(chain, x, 1)) << "the group walks along the other dim";
}

// Fused or not: the same bits, since each op rounds for itself and numbers come at each run.
TEST(Fuser, GroupingChangesNoBits) {
  const auto x = at::randn({33, 17}), y = at::rand({33, 17}) + 0.5, row = at::randn({17});
  const std::vector<int64_t> sizes{17};
  auto build = [&](Chain& chain, double factor) {
    std::vector<EventCase*> asked;
    asked.push_back(&chain.ask("aten::mul.Tensor", {x, row}));
    asked.push_back(&chain.ask("aten::tanh", {asked[0]->expected[0]}, {asked[0]->result(0)}));
    asked.push_back(&chain.ask("aten::div.Tensor", {asked[1]->expected[0], y}, {asked[1]->result(0), y}));
    asked.push_back(&chain.ask("aten::mul.Scalar", {asked[2]->expected[0], factor}, {asked[2]->result(0), factor}));
    asked.push_back(&chain.ask("aten::add.Tensor", {asked[3]->expected[0], x, 0.7}, {asked[3]->result(0), x, 0.7}));
    asked.push_back(&chain.ask("aten::_softmax", {asked[4]->expected[0], 1, false}, {asked[4]->result(0), 1, false}));
    asked.push_back(&chain.ask("aten::mul.Tensor", {asked[5]->expected[0], y}, {asked[5]->result(0), y}));
    asked.push_back(&chain.ask("aten::native_layer_norm", {asked[6]->expected[0], sizes, row, row, 1e-5},
                               {asked[6]->result(0), sizes, row, row, 1e-5}));
    asked.push_back(&chain.ask("aten::sub.Tensor", {asked[7]->expected[0], asked[7]->expected[1], 1},
                               {asked[7]->result(0), asked[7]->result(1), 1}));
    const std::vector<int64_t> last{-1};
    asked.push_back(&chain.ask("aten::sum.dim_IntList", {asked[8]->expected[0], last, true, {}},
                               {asked[8]->result(0), last, true, {}}));
    asked.push_back(&chain.ask("aten::tanh", {asked[9]->expected[0]}, {asked[9]->result(0)}));
    asked.push_back(&chain.ask("aten::mul.Tensor", {asked[8]->expected[0], asked[10]->expected[0]},
                               {asked[8]->result(0), asked[10]->result(0)}));
    return asked;
  };
  for (const double factor : {0.3, 1.7}) {
    at::Tensor fused, single;
    for (int round = 0; round < 2; ++round) {
      Chain together;
      auto asked = build(together, factor);
      const auto wanted = asked.back()->event.outputs[0];
      for (auto* made : asked) ASSERT_TRUE(together.join(*made));
      together.run();
      KernelService::instance().wait();
      fused = asked.back()->result(0);
      Chain apart;
      auto others = build(apart, factor);
      std::vector<StorageRef> held;
      for (auto* made : others) held.insert(held.end(), made->event.outputs.begin(), made->event.outputs.end());
      for (auto* made : others) {
        ASSERT_TRUE(apart.join(*made));
        apart.run();
        KernelService::instance().wait();
      }
      single = others.back()->result(0);
    }
    EXPECT_TRUE(at::equal(fused, single)) << (fused - single).abs().max();
  }
}

// Who goes on with what rows were folded to, in whichever layout it is read.
TEST(Fuser, OneValueForEachRow) {
  const auto x = at::randn({12, 20}), column = at::randn({12, 1});
  const std::vector<int64_t> dims{1};
  for (const bool keeps : {true, false}) {
    Chain chain;
    auto& square = chain.ask("aten::mul.Tensor", {x, x});
    EXPECT_TRUE(chain.join(square));
    EXPECT_FALSE(chain.join(chain.ask("aten::abs", {column}))) << "nothing is folded yet";
    auto& mean = chain.ask("aten::mean.dim", {square.expected[0], dims, keeps, {}}, {square.result(0), dims, keeps, {}});
    ASSERT_TRUE(chain.join(mean));
    EXPECT_FALSE(chain.join(chain.ask("aten::abs", {column}))) << "has nothing to do with the rows";
    const auto by_row = [keeps](const at::Tensor& tensor) { return keeps ? tensor : tensor.unsqueeze(1); };
    const auto expected = by_row(mean.expected[0]), own = by_row(mean.result(0));
    auto& inverse = chain.ask("aten::rsqrt", {expected}, {own});
    EXPECT_TRUE(chain.join(inverse));
    EXPECT_FALSE(chain.join(chain.ask("aten::add_.Tensor", {column.clone(), expected, 1}, {column, own, 1})))
        << "rows are written that are not the group's own";
    EXPECT_TRUE(chain.join(chain.ask("aten::mul_.Tensor", {expected.clone(), column}, {own, column})));
    EXPECT_TRUE(chain.join(chain.ask("aten::mul.Tensor", {x, inverse.expected[0]}, {x, inverse.result(0)})));
    EXPECT_TRUE(chain.join(chain.ask("aten::div.Tensor", {x, expected.expand({12, 20})}, {x, own.expand({12, 20})})));
    chain.fuser.clear();
  }
}

TEST(Fuser, TotalsAreNotReadInTheirGroup) {
  const auto x = at::randn({40, 70});
  const std::vector<int64_t> rows{0}, columns{1};
  Chain chain;
  auto& product = chain.ask("aten::mul.Tensor", {x, x});
  auto& sum = chain.ask("aten::sum.dim_IntList", {product.expected[0], rows, true, {}}, {product.result(0), rows, true, {}});
  ASSERT_TRUE(chain.join(product) && chain.join(sum));
  auto& less = chain.ask("aten::sub.Tensor", {x, sum.expected[0], 1}, {x, sum.result(0), 1});
  EXPECT_FALSE(chain.join(less)) << "all rows are needed first";
  EXPECT_FALSE(chain.fuser.is_independent(less.event));
  EXPECT_TRUE(chain.join(chain.ask("aten::mean", {product.expected[0], {}}, {product.result(0), {}})));
  EXPECT_TRUE(chain.join(chain.ask("aten::abs", {product.expected[0]}, {product.result(0)})));
  chain.fuser.clear();
  EXPECT_TRUE(chain.join(chain.ask("aten::sum.dim_IntList", {x, columns, false, {}}))) << "by row";
  chain.fuser.clear();
  EXPECT_FALSE(chain.join(chain.ask("aten::sum.dim_IntList", {at::randn({70, 40}).t(), rows, false, {}}))) << "turned";
  EXPECT_FALSE(chain.join(chain.ask("aten::sum.dim_IntList", {at::randn({70, 40}), rows, false, {}}))) << "short rows";
  EXPECT_FALSE(chain.join(chain.ask("aten::sum", {at::randn({2, 20000}), {}}))) << "rows of several blocks";
  ASSERT_TRUE(chain.join(chain.ask("aten::abs", {at::randn({70, 40}).t()})));
  EXPECT_FALSE(chain.join(chain.ask("aten::mean", {x, {}}))) << "the group walks over its rows in another order";
}

// The gradient of a layer norm with what comes before and after it: the bits of each alone, and only what is held.
TEST(Fuser, TotalsHaveTheSameBitsInEachGroup) {
  const auto x = at::randn({300, 80}), g = at::randn({300, 80}), weight = at::rand({80}) + 0.5;
  const std::vector<int64_t> width{80}, rows{0};
  const auto norm = at::native_layer_norm(x, width, weight, weight, 1e-5);
  const auto mean = std::get<1>(norm), rstd = std::get<2>(norm);
  const std::array<bool, 3> mask{true, true, true};
  auto build = [&](Chain& chain) {
    std::vector<EventCase*> asked;
    asked.push_back(&chain.ask("aten::mul.Scalar", {g, 0.3}));
    asked.push_back(&chain.ask("aten::native_layer_norm_backward",
                               {asked[0]->expected[0], x, width, mean, rstd, weight, weight, mask},
                               {asked[0]->result(0), x, width, mean, rstd, weight, weight, mask}));
    asked.push_back(&chain.ask("aten::mul.Tensor", {asked[1]->expected[0], g}, {asked[1]->result(0), g}));
    asked.push_back(&chain.ask("aten::sum.dim_IntList", {asked[2]->expected[0], rows, true, {}},
                               {asked[2]->result(0), rows, true, {}}));
    return asked;
  };
  Chain together, apart;
  auto ones = build(together), others = build(apart);
  for (int round = 0; round < 2; ++round) {
    const auto totals = {ones[1]->event.outputs[1], ones[1]->event.outputs[2], ones[3]->event.outputs[0]};
    std::vector<StorageRef> held;
    for (auto* made : others) held.insert(held.end(), made->event.outputs.begin(), made->event.outputs.end());
    for (auto* made : ones) ASSERT_TRUE(together.join(*made));
    together.run();
    for (auto* made : others) {
      ASSERT_TRUE(apart.join(*made));
      apart.run();
    }
    KernelService::instance().wait();
  }
  for (const auto& [made, result] : {std::pair(1, 1), {1, 2}, {3, 0}}) {
    EXPECT_TRUE(at::equal(ones[made]->result(result), others[made]->result(result)));
    EXPECT_TRUE(at::allclose(ones[made]->result(result), ones[made]->expected[result], 1e-4, 1e-4));
  }
}

}  // namespace
}  // namespace lockstep::dynamic
