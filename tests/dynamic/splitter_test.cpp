// Batch norms in two parts: when, and with the bits of the whole.
#include "dynamic/fusion/splitter.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "dynamic/fusion/fuser.h"
#include "dynamic/kernels/batch_norm.h"
#include "dynamic/vm/hidden_layout.h"
#include "tests/support/event_case.h"

namespace lockstep::dynamic {
namespace {

using torch::jit::Stack;

const int no_cache = setenv("LOCKSTEP_CACHE", "", 1);

// A batch norm over `x`, and an op on its result.
struct Pair {
  at::Tensor running_mean, running_var;
  EventCase norm;
  EventCase next;
  at::AutoDispatchBelowADInplaceOrView below;

  static Stack arguments(const at::Tensor& x, at::Tensor mean, at::Tensor var) {
    const int64_t channels = x.size(1);
    at::manual_seed(7);
    return {x, at::rand({channels}, x.options()) + 0.5, at::randn({channels}, x.options()), std::move(mean), std::move(var), true, 0.1, 1e-5};
  }
  Pair(const at::Tensor& x, const char* op, const Stack& more, const Stack& shown_more)
      : running_mean(at::zeros({x.size(1)}, x.options())), running_var(at::ones({x.size(1)}, x.options())),
        norm("aten::native_batch_norm", arguments(x, running_mean.clone(), running_var.clone()),
             arguments(x, running_mean, running_var)),
        next(op, joined(norm.expected[0].clone(), more), joined(norm.result(0), shown_more)) {
    for (auto* made : {&norm, &next}) {
      made->event.is_strict = false;
      made->event.may_be_fused = true;
    }
  }
  Pair(const at::Tensor& x, const char* op, const Stack& more = {}) : Pair(x, op, more, more) {}
  static Stack joined(const at::Tensor& first, const Stack& more) {
    Stack all{first};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  void hide_input() {
    const auto x = tensor_over(norm.event.operands[0].storage, norm.signature.inputs[0], 0);
    auto storage = create_empty_storage(norm.signature.inputs[0].storage_bytes);
    hide_map(*storage, c10::GetCPUAllocator()->allocate(storage->nbytes()), x.sizes());
    hidden_tensor(*storage, norm.signature.inputs[0]).copy_(x);
    norm.event.operands[0].storage = storage;
  }
  bool try_split() { return splitter.try_split(norm.event, next.event); }
  void run_group() {
    Event* failed = nullptr;
    ASSERT_TRUE(fuser.try_add(norm.event) && fuser.try_add(next.event));
    fuser.run(failed);
  }

  Splitter splitter;
  Fuser fuser;
};

struct Results {
  at::Tensor mean, inverse, last, running_mean, running_var;
};

Results run(const at::Tensor& x, const char* op, const Stack& more, bool is_hidden, bool splits) {
  Pair pair(x, op, more);
  if (is_hidden) pair.hide_input();
  const auto mean = pair.norm.event.outputs[1], inverse = pair.norm.event.outputs[2];
  const auto last = pair.next.signature.outputs.empty() ? pair.norm.event.outputs[0] : pair.next.event.outputs[0];
  if (splits) {
    EXPECT_TRUE(pair.try_split());
    pair.run_group();
  } else {
    execute(pair.norm.event);
    execute(pair.next.event, /*is_pointwise=*/true);
  }
  restore(*last);
  const auto& layout = pair.norm.signature.outputs;
  return {tensor_over(mean, layout[1], 0).clone(), tensor_over(inverse, layout[2], 0).clone(),
          tensor_over(last, layout[0], 0).clone(), pair.running_mean, pair.running_var};
}

TEST(Splitter, TheBitsAreThoseOfTheWhole) {
  const auto residual = at::randn({3, 20, 9, 7});
  struct Case {
    std::vector<int64_t> sizes;
    const char* op;
    Stack more;
    bool is_hidden;
  };
  const Case cases[] = {
      {{3, 20, 9, 7}, "aten::relu", {}, false},          {{3, 20, 9, 7}, "aten::relu", {}, true},
      {{3, 20, 9, 7}, "aten::relu_", {}, false},         {{3, 20, 9, 7}, "aten::relu_", {}, true},
      {{3, 20, 9, 7}, "aten::add_.Tensor", {residual, 1}, false},
      {{300, 33}, "aten::relu", {}, false},              {{4, 5, 40}, "aten::relu", {}, false},
      {{2, 3, 4, 5, 6}, "aten::neg", {}, false},         {{2, 67, 253, 250}, "aten::relu_", {}, false},
      {{2, 67, 253, 250}, "aten::relu_", {}, true},
  };
  for (const auto& c : cases) {
    const auto x = at::randn(c.sizes) * 3 + 1;
    const auto whole = run(x, c.op, c.more, c.is_hidden, /*splits=*/false);
    for (int round = 0; round < 2; ++round) {
      const uint64_t groups = fusion_statistics.groups.load();
      const auto parts = run(x, c.op, c.more, c.is_hidden, /*splits=*/true);
      KernelService::instance().wait();
      if (round > 0) {
        EXPECT_EQ(fusion_statistics.groups.load(), groups + 1);
      }
      const auto expect_same = [&](const at::Tensor& a, const at::Tensor& b, const char* what) {
        EXPECT_TRUE(at::equal(a, b)) << c.op << ' ' << x.sizes() << " hidden " << c.is_hidden << " round " << round << ' '
                                     << what << ' ' << (a - b).abs().max().item<float>();
      };
      expect_same(parts.last, whole.last, "last");
      expect_same(parts.mean, whole.mean, "mean");
      expect_same(parts.inverse, whole.inverse, "inverse");
      expect_same(parts.running_mean, whole.running_mean, "running mean");
      expect_same(parts.running_var, whole.running_var, "running var");
      EXPECT_FALSE(at::equal(parts.running_mean, at::zeros_like(parts.running_mean)));
    }
  }
}

TEST(Splitter, AResultThatIsNeverReadIsNotWritten) {
  const auto x = at::randn({3, 20, 9, 7});
  for (int round = 0; round < 2; ++round) {
    Pair pair(x, "aten::relu");
    const auto wanted = pair.next.event.outputs[0];
    ASSERT_TRUE(pair.try_split());
    pair.run_group();
    KernelService::instance().wait();
    if (round > 0) {  // else its kernel may not be there
      EXPECT_EQ(pair.norm.event.outputs[0]->data(), nullptr);
    }
    EXPECT_TRUE(at::allclose(tensor_over(wanted, pair.next.signature.outputs[0], 0), pair.next.expected[0], 1e-4, 1e-4));
  }
}

TEST(Splitter, SplitsOnlyWhereTheNextOpGoesOnWithIt) {
  const auto x = at::randn({3, 6, 5, 4});
  EXPECT_FALSE(Pair(x, "aten::sum", {c10::IValue()}).try_split()) << "needs all values";
  {
    Pair pair(x, "aten::relu");
    pair.next.event.operands[0].storage = create_empty_storage(x.nbytes());
    EXPECT_FALSE(pair.try_split()) << "another map";
  }
  {
    Pair pair(x, "aten::relu");
    const auto held = pair.norm.event.outputs[0];
    EXPECT_FALSE(pair.try_split()) << "in planes, and written anyway";
  }
  {
    Pair pair(x, "aten::relu");
    pair.norm.event.is_strict = true;
    EXPECT_FALSE(pair.try_split());
  }
  {
    Pair pair(x, "aten::relu");
    pair.norm.event.args[5] = false;
    EXPECT_FALSE(pair.try_split()) << "evaluates";
    EXPECT_EQ(pair.norm.event.part, nullptr);
    EXPECT_EQ(pair.norm.event.operands.size(), 5u);
  }
  {
    Pair pair(x, "aten::relu");
    pair.norm.event.operands[3] = {pair.norm.event.operands[0].storage, 6};
    EXPECT_FALSE(pair.try_split()) << "the running mean is a part of the input";
  }
  EXPECT_FALSE(Pair(x.to(at::kDouble), "aten::relu").try_split());
  EXPECT_FALSE(Pair(x.contiguous(at::MemoryFormat::ChannelsLast), "aten::relu").try_split()) << "PyTorch's kernel runs";
  EXPECT_TRUE(Pair(x, "aten::relu").try_split());
}

TEST(Splitter, TheRestIsAnOpThatChecksWhatItGets) {
  const auto x = at::randn({3, 6, 5, 4}), one = at::randn({6}), few = at::randn({5});
  at::AutoDispatchBelowADInplaceOrView below;
  EXPECT_THROW(scale_channels(x, one, few, one), c10::Error);
  const auto sizes = std::vector<int64_t>{6, 1, 1};
  const auto expected = (x - one.view(sizes)) * one.view(sizes) + one.view(sizes);
  EXPECT_TRUE(at::allclose(scale_channels(x, one, one, one), expected, 1e-5, 1e-5));
  EXPECT_TRUE(at::allclose(scale_channels(x.transpose(0, 2).contiguous().transpose(0, 2), one, one, one), expected, 1e-5,
                           1e-5));
}

}  // namespace
}  // namespace lockstep::dynamic
