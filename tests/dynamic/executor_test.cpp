// Single events, made by hand from what an op returned before.
#include "dynamic/vm/executor.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <gtest/gtest.h>

#include "tests/support/event_case.h"
#include "tests/support/test_ops.h"

namespace lockstep::dynamic {
namespace {

using Case = EventCase;

TEST(Executor, Pointwise) { Case("aten::add.Tensor", {at::rand({3, 4}), at::rand({4}), 2.0}).run_and_compare(); }

TEST(Executor, OperandsAreViewsOfStorages) {
  const auto base = at::rand({6, 5});
  Case("aten::mm", {base.t(), base.narrow(0, 1, 6 - 1).t().contiguous().t().select(1, 2).unsqueeze(0).expand({6, 5})})
      .run_and_compare();
  Case("aten::mul.Tensor", {base.narrow(1, 2, 2), base.select(1, 4).unsqueeze(1)}).run_and_compare();
}

TEST(Executor, SeveralResults) {
  Case("aten::native_layer_norm", {at::rand({3, 8}), std::vector<int64_t>{8}, at::rand({8}), at::rand({8}), 1e-5})
      .run_and_compare();
  Case("aten::max.dim", {at::rand({3, 8}), int64_t{1}, false}).run_and_compare();
}

TEST(Executor, ListsOfResults) {
  Case("aten::split_copy.Tensor", {at::rand({7, 2}), int64_t{3}, int64_t{0}}).run_and_compare();
}

TEST(Executor, ListsOfArguments) {
  c10::List<at::Tensor> list({at::rand({2, 3}), at::rand({1, 3})});
  Case("aten::cat", {list, int64_t{0}}).run_and_compare();
}

TEST(Executor, OptionalArgumentsStayAbsent) {
  Case("aten::native_layer_norm",
       {at::rand({3, 8}), std::vector<int64_t>{8}, c10::IValue(), c10::IValue(), 1e-5})
      .run_and_compare();
  c10::List<std::optional<at::Tensor>> indices;
  indices.push_back(std::nullopt);
  indices.push_back(at::tensor({2, 0}, at::kLong));
  Case("aten::index.Tensor", {at::rand({3, 4}), indices}).run_and_compare();
}

TEST(Executor, AbsentIsNotUndefined) {
  Case c("aten::clamp.Tensor", {at::rand({3}), c10::IValue(), at::rand({3})});
  const auto args = build_arguments(c.event);
  EXPECT_TRUE(args[1].isNone());
  EXPECT_TRUE(args[2].isTensor());
}

TEST(Executor, WritesInPlace) {
  const auto self = at::zeros({4});
  Case c("aten::add_.Tensor", {self, at::ones({4}), 1.0});  // has run once
  c.run();
  EXPECT_TRUE(at::equal(self, at::full({4}, 2.0)));
}

TEST(Executor, ConjugateAndNegativeBitsTravel) {
  const auto z = at::complex(at::rand({3}), at::rand({3}));
  Case("aten::mul.Tensor", {z.conj(), z}).run_and_compare();
  Case("aten::add.Tensor", {at::imag(z.conj()), at::ones({3}), 1.0}).run_and_compare();
}

TEST(Executor, ScalarsOfTheArgumentParserTravelAsTheyAre) {
  const auto wrapped = at::scalar_tensor(2.5, at::kDouble);
  wrapped.unsafeGetTensorImpl()->set_wrapped_number(true);
  Case c("aten::mul.Tensor", {at::rand({3}), wrapped});
  c.event.operands[1] = Operand{};
  c.event.operands[1].direct = wrapped;
  c.run_and_compare();
  EXPECT_EQ(c.result(0).scalar_type(), at::kFloat);
}

TEST(Executor, EmptyResults) { Case("aten::mul.Tensor", {at::rand({0, 3}), at::rand({3})}).run_and_compare(); }

// The memory moves from the result to the twin without a copy.
TEST(Executor, DataIsMovedNotCopied) {
  Case c("aten::add.Tensor", {at::rand({64}), at::rand({64}), 1.0});
  EXPECT_EQ(c.event.outputs[0]->data(), nullptr);
  c.run();
  EXPECT_NE(c.event.outputs[0]->data(), nullptr);
  EXPECT_TRUE(c.event.outputs[0]->data_ptr().get_deleter() != nullptr);
}

TEST(Executor, AnotherMemoryOrderThanPromisedIsCopied) {
  support::choose_layout(true);
  Case c("aten::_lockstep_other_layout", {at::rand({3, 4})});
  support::choose_layout(false);
  c.run_and_compare();
  support::choose_layout(true);
}

TEST(Executor, AnotherShapeThanPromisedIsAnError) {
  Case c("aten::add.Tensor", {at::rand({4}), at::rand({4}), 1.0});
  c.signature.outputs[0].sizes = {5};
  EXPECT_THROW(c.run(), c10::Error);
}

TEST(Executor, AnotherTypeThanPromisedIsAnError) {
  Case c("aten::add.Tensor", {at::rand({4}), at::rand({4}), 1.0});
  c.signature.outputs[0].dtype = at::kDouble;
  EXPECT_THROW(c.run(), c10::Error);
}

TEST(Executor, AResultThatWasNotPromisedIsAnError) {
  Case c("aten::add.Tensor", {at::rand({4}), at::rand({4}), 1.0});
  c.signature.outputs[0] = graph::Layout();
  EXPECT_THROW(c.run(), c10::Error);
}

TEST(Executor, CaptureTakesTheResultsAsTheyCome) {
  Case c("aten::nonzero", {at::tensor({0, 3, 0, 4})});
  Capture capture;
  c.event.capture = &capture;
  c.run();
  ASSERT_EQ(capture.results.size(), 1u);
  EXPECT_TRUE(at::equal(capture.results[0].toTensor(), at::tensor({1, 3}, at::kLong).unsqueeze(1)));
}

TEST(Executor, WhatTheKernelThrowsComesOut) {
  Case c("aten::_lockstep_fuse", {at::rand({2})});
  support::BlownFuse blown;
  EXPECT_THROW(c.run(), c10::IndexError);
}

}  // namespace
}  // namespace lockstep::dynamic
