// What passes the hook, on which thread, and how.
#include "tracer/hook.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

namespace lockstep::tracer {
namespace {

class Recorder final : public OpSink {
 public:
  void on_op(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) override {
    names.push_back(op.schema().name());
    c10::impl::ExcludeDispatchKeyGuard no_hook(kHookKey);
    op.callBoxed(stack);
  }
  bool saw(const std::string& name) const {
    return std::find(names.begin(), names.end(), name) != names.end();
  }
  std::vector<std::string> names;
};

class Listening {
 public:
  explicit Listening(OpSink* sink) { listen(sink); }
  ~Listening() { listen(nullptr); }
};

TEST(Hook, SeesOpsOnlyWhileItListens) {
  Recorder recorder;
  const auto x = at::rand({3});
  {
    Listening on(&recorder);
    EXPECT_EQ(listener(), &recorder);
    x.add(1);
  }
  x.mul(2);
  EXPECT_EQ(recorder.names, std::vector<std::string>{"aten::add"});
  EXPECT_EQ(listener(), nullptr);
}

TEST(Hook, AnswersAreThoseOfTheKernel) {
  Recorder recorder;
  const auto x = at::rand({3, 4}), w = at::rand({5, 4});
  const auto expected = at::linear(x, w);
  Listening on(&recorder);
  EXPECT_TRUE(at::equal(at::linear(x, w), expected));
}

TEST(Hook, OpsCalledInsideAKernelDoNotPassAgain) {
  Recorder recorder;
  const auto x = at::rand({3, 3});
  Listening on(&recorder);
  at::native_layer_norm(x, {3}, {}, {}, 1e-5);
  EXPECT_EQ(recorder.names.size(), 1u);
}

TEST(Hook, SeesBackwardOps) {
  Recorder recorder;
  const auto x = at::rand({3, 3}).requires_grad_();
  Listening on(&recorder);
  auto loss = at::tanh(x).sum();
  EXPECT_FALSE(recorder.saw("aten::tanh_backward"));
  torch::autograd::backward({loss}, {});
  EXPECT_TRUE(recorder.saw("aten::tanh_backward"));
  EXPECT_TRUE(x.grad().defined());
}

TEST(Hook, IsSwitchedOnForOneThreadOnly) {
  Recorder recorder;
  Listening on(&recorder);
  std::thread([] { at::rand({3}).add(1); }).join();
  EXPECT_TRUE(recorder.names.empty());
}

TEST(Hook, ForeignThreadsHaveAListenerOfTheirOwn) {
  Recorder mine, foreign;
  set_foreign_listener(&foreign);
  {
    Listening on(&mine);
    std::thread([] {
      enable_foreign(true);
      at::ones({3}).add(1);
      enable_foreign(false);
      at::ones({3}).mul(1);
    }).join();
  }
  set_foreign_listener(nullptr);
  EXPECT_TRUE(foreign.saw("aten::add"));
  EXPECT_FALSE(foreign.saw("aten::mul"));
  EXPECT_TRUE(mine.names.empty());
}

TEST(Hook, WithoutAnyListenerOpsGoOn) {
  enable_foreign(true);
  EXPECT_TRUE(at::equal(at::ones({3}).add(1), at::full({3}, 2.0)));
  enable_foreign(false);
}

TEST(Hook, ExceptionsPass) {
  Recorder recorder;
  Listening on(&recorder);
  EXPECT_THROW(at::mm(at::ones({2, 3}), at::ones({2, 3})), c10::Error);
}

}  // namespace
}  // namespace lockstep::tracer
