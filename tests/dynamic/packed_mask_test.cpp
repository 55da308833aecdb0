// Masks of dropout as bits: the same draws, the same values for whoever asks, and who reads the bits.
#include "dynamic/vm/packed_mask.h"

#include <c10/core/CPUAllocator.h>

#include <cstdlib>

#include "dynamic/fusion/fuser.h"
#include "tests/support/event_case.h"

namespace lockstep::dynamic {
namespace {

using torch::jit::Stack;

const int no_cache = setenv("LOCKSTEP_CACHE", "", 1);

// A mask of the runner's, and the one that eager makes of the same draws.
struct Mask {
  StorageRef storage;
  at::Tensor expected;

  // An event over the mask; the op itself was done on `expected`, if it writes that.
  std::unique_ptr<EventCase> ask(const char* op, const Stack& args) const {
    auto made = std::make_unique<EventCase>(op, args);
    made->event.is_strict = false;
    made->event.may_be_fused = true;
    for (auto& operand : made->event.operands)
      if (operand.storage.get() == expected.storage().unsafeGetStorageImpl()) operand.storage = storage;
    return made;
  }
  void run(const char* op, const Stack& args) const {
    at::AutoDispatchBelowADInplaceOrView below;
    execute(ask(op, args)->event);
  }
  at::Tensor found() const {
    restore(*storage);
    return tensor_over(storage, graph::layout_of(expected), 0);
  }
  bool is_packed() const { return packed_mask(*storage); }
};

StorageRef blank_like(const at::Tensor& tensor) {
  auto storage = create_empty_storage(static_cast<int64_t>(tensor.nbytes()));
  leave_blank(*storage, c10::GetCPUAllocator()->allocate(tensor.nbytes()));
  return storage;
}

at::Generator generator(uint64_t seed) {
  return at::detail::createCPUGenerator(seed);
}

// As one group; its kernel is there afterwards.
void run_together(std::initializer_list<EventCase*> cases) {
  Fuser fuser;
  Event* failed = nullptr;
  at::AutoDispatchBelowADInplaceOrView below;
  for (auto* made : cases) ASSERT_TRUE(fuser.try_add(made->event));
  fuser.run(failed);
  KernelService::instance().wait();
}

Mask draw(at::IntArrayRef sizes, c10::ScalarType type, double p, uint64_t seed = 1) {
  Mask mask{nullptr, at::zeros(sizes, type)};
  mask.storage = blank_like(mask.expected);
  auto ours = generator(seed);
  EventCase made("aten::bernoulli_.float", Stack{mask.expected, p, generator(seed)}, Stack{mask.expected, p, ours});
  made.event.operands[0].storage = mask.storage;
  made.event.is_strict = false;
  made.event.may_be_fused = true;
  at::AutoDispatchBelowADInplaceOrView below;
  execute(made.event);
  auto theirs = generator(seed);
  at::empty(sizes, type).bernoulli_(p, theirs);
  EXPECT_TRUE(ours.get_state().equal(theirs.get_state())) << "the generator goes on elsewhere";
  return mask;
}

TEST(PackedMask, HoldsWhatBernoulliDraws) {
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16})
    for (const int64_t size : {4096, 4097, 5003, 70000})
      for (const double p : {0.0, 0.3, 0.9, 1.0}) {
        const auto mask = draw({size}, type, p);
        EXPECT_TRUE(mask.is_packed());
        EXPECT_EQ(mask.storage->data(), nullptr);
        EXPECT_TRUE(at::equal(mask.found(), mask.expected)) << type << size << " " << p;
      }
}

TEST(PackedMask, ChangesItsValue) {
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const auto mask = draw({70, 90}, type, 0.9);
    mask.run("aten::div_.Scalar", Stack{mask.expected, 0.9});
    EXPECT_TRUE(mask.is_packed());
    mask.run("aten::mul_.Scalar", Stack{mask.expected, 1.0 / 3});
    mask.run("aten::clamp_max_", Stack{mask.expected, 0.25});
    EXPECT_TRUE(mask.is_packed());
    EXPECT_TRUE(at::equal(mask.found(), mask.expected));
  }
}

TEST(PackedMask, WhatChangesZerosUnpacksIt) {
  for (const auto& [op, number] : {std::pair{"aten::add_.Scalar", 1.0}, {"aten::mul_.Scalar", -2.0}, {"aten::div_.Scalar", 0.0}}) {
    const auto mask = draw({5000}, at::kFloat, 0.5);
    const Stack args = op == std::string("aten::add_.Scalar") ? Stack{mask.expected, number, 1} : Stack{mask.expected, number};
    mask.run(op, args);
    EXPECT_FALSE(mask.is_packed()) << op;
    const auto found = mask.found();
    EXPECT_TRUE(at::allclose(found, mask.expected, 0, 0, /*equal_nan=*/true)) << op;
    EXPECT_TRUE(at::equal(found.signbit(), mask.expected.signbit())) << op;
  }
  const auto mask = draw({5000}, at::kFloat, 0.5);
  mask.run("aten::add_.Tensor", Stack{mask.expected, at::randn({5000}), 1});
  EXPECT_FALSE(mask.is_packed());
  EXPECT_TRUE(at::equal(mask.found(), mask.expected));
}

TEST(PackedMask, IsDrawnIntoWholeStoragesOfFloatsOnly) {
  const auto holds = [](const at::Tensor& t) { return may_hold_mask(graph::layout_of(t)); };
  EXPECT_TRUE(holds(at::empty({80, 70})));
  EXPECT_TRUE(holds(at::empty({70, 80}).t())) << "in the order of memory, as bernoulli_ draws";
  EXPECT_FALSE(holds(at::empty({80, 2})));
  EXPECT_FALSE(holds(at::empty({80, 70}).slice(0, 1)));
  EXPECT_FALSE(holds(at::empty({80, 70}).slice(1, 0, 69)));
  EXPECT_FALSE(holds(at::empty({80, 70}, at::kInt)));
  EXPECT_FALSE(holds(at::empty({1, 70}).expand({80, 70})));

  const auto whole = at::zeros({5000});
  const auto storage = blank_like(whole);
  EventCase part("aten::bernoulli_.float", Stack{whole.slice(0, 1), 0.5, generator(3)});
  part.event.operands[0].storage = storage;
  part.event.is_strict = false;
  part.event.may_be_fused = true;
  part.run();
  EXPECT_FALSE(is_hidden(*storage));

  const auto fresh = at::zeros({5000});
  EventCase strict("aten::bernoulli_.float", Stack{fresh, 0.5, generator(3)});
  strict.event.operands[0].storage = blank_like(fresh);
  const auto drawn = strict.event.operands[0].storage;
  strict.run();
  EXPECT_FALSE(is_hidden(*drawn));
}

TEST(PackedMask, ThatIsNotDrawnIsMemory) {
  const auto x = at::randn({5000});
  const auto storage = blank_like(x);
  const auto out = at::empty({5000});
  EventCase copy("aten::copy_", Stack{out, x, false});
  copy.event.operands[0].storage = storage;
  copy.run();
  EXPECT_TRUE(at::equal(tensor_over(storage, graph::layout_of(x), 0), x));
  const auto looked_at = blank_like(x);
  restore_from_outside(*looked_at);
  EXPECT_NE(looked_at->data(), nullptr);
}

TEST(PackedMask, AKernelReadsItsBits) {
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const auto x = at::randn({70, 90}).to(type), y = at::randn({70, 90}).to(type);
    for (int round = 0; round < 2; ++round) {
      const auto mask = draw({70, 90}, type, 0.8, /*seed=*/4 + round);
      mask.run("aten::div_.Scalar", Stack{mask.expected, 0.8});
      const auto product = mask.ask("aten::mul.Tensor", Stack{x, mask.expected});
      const auto sum = mask.ask("aten::add.Tensor", Stack{product->expected[0], y, 1});
      sum->event.operands[0].storage = product->event.outputs[0];
      const auto wanted = sum->event.outputs[0];
      const uint64_t before = fusion_statistics.groups.load();
      run_together({product.get(), sum.get()});
      EXPECT_EQ(fusion_statistics.groups.load(), before + (round > 0));
      EXPECT_TRUE(mask.is_packed()) << "also where the ops run one by one";
      EXPECT_TRUE(at::equal(sum->result(0), sum->expected[0])) << type << round;
      EXPECT_TRUE(at::equal(mask.found(), mask.expected));
    }
  }
}

TEST(PackedMask, AKernelReadsItTurnedAndBroadcast) {
  const auto x = at::randn({90, 70}), many = at::randn({3, 70, 90});
  for (int round = 0; round < 2; ++round) {
    const auto mask = draw({70, 90}, at::kFloat, 0.8);
    for (const auto& args : {Stack{x, mask.expected.t()}, Stack{many, mask.expected}}) {
      const auto product = mask.ask("aten::mul.Tensor", args);
      const auto wanted = product->event.outputs[0];
      run_together({product.get()});
      EXPECT_TRUE(mask.is_packed());
      EXPECT_TRUE(at::equal(product->result(0), product->expected[0])) << round;
    }
  }
}

TEST(PackedMask, WhoDoesNotKnowItGetsFloats) {
  const auto mask = draw({70, 90}, at::kFloat, 0.8);
  const auto product = mask.ask("aten::mm", Stack{at::randn({5, 70}), mask.expected});
  product->run();
  EXPECT_FALSE(mask.is_packed());
  EXPECT_TRUE(at::allclose(product->result(0), product->expected[0]));

  const auto other = draw({70, 90}, at::kFloat, 0.8);
  const auto bits = other.expected.view(at::kInt);
  const auto sum = other.ask("aten::add.Tensor", Stack{bits, at::ones({70, 90}, at::kInt), 1});
  const auto wanted = sum->event.outputs[0];
  for (int round = 0; round < 2; ++round) {
    run_together({sum.get()});
    EXPECT_TRUE(at::equal(sum->result(0), sum->expected[0]));
  }
  EXPECT_FALSE(other.is_packed()) << "as integers";
}

// What changes its value does not wait with the others, and not before them.
TEST(PackedMask, ItsValueChangesAfterTheOpsThatReadIt) {
  const auto x = at::randn({70, 90});
  for (int round = 0; round < 2; ++round) {
    const auto mask = draw({70, 90}, at::kFloat, 0.8);
    const auto product = mask.ask("aten::mul.Tensor", Stack{x, mask.expected});
    const auto wanted = product->event.outputs[0];
    const auto change = mask.ask("aten::div_.Scalar", Stack{mask.expected, 0.8});
    Fuser fuser;
    Event* failed = nullptr;
    at::AutoDispatchBelowADInplaceOrView below;
    ASSERT_TRUE(fuser.try_add(product->event));
    EXPECT_FALSE(fuser.try_add(change->event));
    EXPECT_FALSE(fuser.is_independent(change->event));
    fuser.run(failed);
    KernelService::instance().wait();
    execute(change->event);
    EXPECT_TRUE(at::equal(product->result(0), product->expected[0]));
    EXPECT_TRUE(at::equal(mask.found(), mask.expected));
  }
}

TEST(PackedMask, CanBeSwitchedOff) {
  const auto fresh = at::zeros({5000});
  EventCase made("aten::bernoulli_.float", Stack{fresh, 0.5, generator(3)});
  made.event.is_strict = false;
  made.event.may_be_fused = true;
  made.event.passes = PassSet().without(Pass::k_pack_masks);
  made.event.operands[0].storage = blank_like(fresh);
  const auto drawn = made.event.operands[0].storage;
  made.run();
  EXPECT_FALSE(is_hidden(*drawn));
}

}  // namespace
}  // namespace lockstep::dynamic
