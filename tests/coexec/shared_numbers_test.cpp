#include "coexec/shared_numbers.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

namespace lockstep::coexec {
namespace {

at::Tensor number(const c10::Scalar& value) {
  auto wrapped = at::scalar_tensor(value, value.isFloatingPoint() ? at::kDouble : at::kLong);
  wrapped.unsafeGetTensorImpl()->set_wrapped_number(true);
  return wrapped;
}

TEST(SharedNumbers, EqualOnesAreOne) {
  SharedNumbers numbers;
  const auto first = numbers.find(number(0.1));
  EXPECT_TRUE(numbers.find(number(0.1)).is_same(first));
  EXPECT_TRUE(first.unsafeGetTensorImpl()->is_wrapped_number());
  EXPECT_EQ(first.item<double>(), 0.1);
}

TEST(SharedNumbers, TypeAndBitsTellThemApart) {
  SharedNumbers numbers;
  for (int round = 0; round < 2; ++round) {
    for (int64_t value = -300; value < 300; ++value) {  // more than there are places
      const auto integer = numbers.find(number(value));
      EXPECT_EQ(integer.scalar_type(), at::kLong);
      EXPECT_EQ(integer.item<int64_t>(), value);
      const double real = static_cast<double>(value) / 7;
      EXPECT_EQ(numbers.find(number(real)).item<double>(), real);
    }
  }
  EXPECT_FALSE(std::signbit(numbers.find(number(0.0)).item<double>()));
  EXPECT_TRUE(std::signbit(numbers.find(number(-0.0)).item<double>()));
  EXPECT_EQ(numbers.find(number(int64_t{0})).scalar_type(), at::kLong);
}

// Autograd may keep the number that was asked for, and give it to whoever asks.
TEST(SharedNumbers, WhatIsFoundIsNobodyElses) {
  SharedNumbers numbers;
  for (const auto& value : {at::ones({}, at::kDouble), at::ones({}, at::kLong), at::ones({}, at::kBool),
                            at::ones({}, at::kComplexDouble)}) {
    value.unsafeGetTensorImpl()->set_wrapped_number(true);
    const auto found = numbers.find(value);
    value.zero_();
    EXPECT_TRUE(found.equal(at::ones({}, value.scalar_type())));
    EXPECT_TRUE(found.unsafeGetTensorImpl()->is_wrapped_number());
  }
}

TEST(SharedNumbers, OtherTensorsAreLeftAlone) {
  SharedNumbers numbers;
  const auto tensor = at::ones({1}, at::kDouble);
  EXPECT_TRUE(numbers.find(tensor).is_same(tensor));
  EXPECT_FALSE(numbers.find(tensor.clone()).is_same(tensor));
}

}  // namespace
}  // namespace lockstep::coexec
