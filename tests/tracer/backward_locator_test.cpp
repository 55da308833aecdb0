// Ops of a backward pass are named by the forward event whose autograd node is running.
#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tracer/hook.h"
#include "tracer/location.h"

namespace lockstep::tracer {
namespace {

// Numbers forward ops from 0 and keeps what the locator says of the others.
class Follower final : public OpSink {
 public:
  struct Seen {
    std::string name;
    BackwardLocator::Reading reading;
    std::string node_name;
  };
  Follower() { locator.reset(); }

  void on_op(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) override {
    c10::impl::ExcludeDispatchKeyGuard no_hook(kHookKey);
    if (in_engine) {
      Seen seen{op.schema().name(), locator.read(true, kFunction), ""};
      if (seen.reading.name) seen.node_name = seen.reading.name();
      backward.push_back(seen);
    } else {
      nodes.push_back(std::make_unique<graph::Node>());
      nodes.back()->id = static_cast<uint32_t>(nodes.size() - 1);
      forward.push_back(op.schema().name());
      locator.note_forward(nodes.back().get(), kFunction);
    }
    op.callBoxed(stack);
  }

  static constexpr uint32_t kFunction = 7;
  BackwardLocator locator;
  bool in_engine = false;
  std::vector<std::unique_ptr<graph::Node>> nodes;
  std::vector<std::string> forward;
  std::vector<Seen> backward;
};

struct Step {
  Follower follower;
  at::Tensor weight = at::rand({4, 4}).requires_grad_();

  void run(int layers) {
    listen(&follower);
    auto x = weight;
    for (int i = 0; i < layers; ++i) x = at::tanh(at::mm(x, weight));
    auto loss = x.sum();
    follower.in_engine = true;
    torch::autograd::backward({loss}, {});
    follower.in_engine = false;
    listen(nullptr);
  }
};

TEST(BackwardLocator, NamesTheForwardEvent) {
  Step step;
  step.run(2);
  std::map<std::string, std::string> belongs;  // backward op -> forward op
  for (const auto& seen : step.follower.backward) {
    if (seen.reading.forward_node >= 0) belongs[seen.name] = step.follower.forward[seen.reading.forward_node];
  }
  EXPECT_EQ(belongs["aten::tanh_backward"], "aten::tanh");
  EXPECT_EQ(belongs["aten::mm"], "aten::mm");
  for (const auto& seen : step.follower.backward)
    if (seen.name == "aten::tanh_backward") {
      EXPECT_TRUE(seen.reading.in_backward);
      EXPECT_EQ(seen.node_name, "TanhBackward0");
    }
}

TEST(BackwardLocator, TellsEqualNodesOfDifferentEventsApart) {
  Step step;
  step.run(3);
  std::map<int64_t, int> tanh_events;
  std::map<uint64_t, int> keys;
  for (const auto& seen : step.follower.backward)
    if (seen.name == "aten::tanh_backward") {
      ++tanh_events[seen.reading.forward_node];
      ++keys[seen.reading.key];
    }
  EXPECT_EQ(tanh_events.size(), 3u);
  EXPECT_EQ(keys.size(), 3u);
}

TEST(BackwardLocator, GivesTheSameKeysInTheNextCall) {
  auto keys = [](int) {
    Step step;
    step.run(2);
    std::vector<uint64_t> keys;
    for (const auto& seen : step.follower.backward) keys.push_back(seen.reading.key);
    return keys;
  };
  EXPECT_EQ(keys(0), keys(1));
}

TEST(BackwardLocator, OpsOfOneNodeAreNumbered) {
  Step step;
  step.run(1);
  std::map<uint64_t, int> keys;
  for (const auto& seen : step.follower.backward) ++keys[seen.reading.key];
  for (const auto& [key, count] : keys) EXPECT_EQ(count, 1);
}

TEST(BackwardLocator, OutsideOfTheEngineThereIsNothing) {
  BackwardLocator locator;
  locator.reset();
  EXPECT_FALSE(locator.read(false, 1).in_backward);
  EXPECT_FALSE(locator.read(true, 1).in_backward);  // no node runs
}

// Numbers of another function's nodes mean nothing.
TEST(BackwardLocator, KnowsOnlyTheEventsOfItsFunction) {
  Step step;
  listen(&step.follower);
  auto loss = at::tanh(step.weight).sum();
  step.follower.locator.reset();
  struct Other final : OpSink {
    Follower* follower;
    std::vector<int64_t> seen;
    void on_op(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) override {
      c10::impl::ExcludeDispatchKeyGuard no_hook(kHookKey);
      seen.push_back(follower->locator.read(true, Follower::kFunction + 1).forward_node);
      op.callBoxed(stack);
    }
  } other;
  other.follower = &step.follower;
  listen(&other);
  torch::autograd::backward({loss}, {});
  listen(nullptr);
  for (int64_t node : other.seen) EXPECT_EQ(node, -1);
  EXPECT_FALSE(other.seen.empty());
}

}  // namespace
}  // namespace lockstep::tracer
