// Steps of optimizers over all parameters, against torch.optim's loop over single ones and against float64.
#include "dynamic/kernels/optimizer_steps.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace lockstep::dynamic {
namespace {

using at::Tensor;
using c10::IValue;
using Tensors = std::vector<Tensor>;

const IValue kNone;

Tensors copies_as(at::ScalarType type, const Tensors& tensors) {
  Tensors copies;
  for (const auto& tensor : tensors) copies.push_back(tensor.to(type, /*non_blocking=*/false, /*copy=*/true));
  return copies;
}

Tensors some_tensors(bool is_positive = false) {
  Tensors tensors{at::randn({3}),           at::randn({200, 301}),   at::randn({0}),
                  at::randn({}),            at::randn({40, 50}).t(), at::randn({2, 3, 5, 7}).contiguous(at::MemoryFormat::ChannelsLast),
                  at::randn({70000}) * 1e-3};
  if (is_positive)
    for (auto& tensor : tensors) tensor.abs_();
  return tensors;
}

Tensors counts_of(size_t size, double value) {
  Tensors counts;
  for (size_t i = 0; i < size; ++i) counts.push_back(at::scalar_tensor(value + static_cast<double>(i % 3)));
  return counts;
}

struct AdamCase {
  double beta1 = 0.9, beta2 = 0.999, weight_decay = 0;
  bool amsgrad = false, maximize = false, is_decoupled = false;
};
constexpr double kRate = 1e-2, kEps = 1e-8;

struct AdamState {
  Tensors parameters = some_tensors(), gradients = some_tensors(), means = some_tensors(), squares = some_tensors(true),
          largest = some_tensors(true), counts = counts_of(parameters.size(), 3);
  AdamState copy_as(at::ScalarType type) const {
    return {copies_as(type, parameters), copies_as(type, gradients), copies_as(type, means),
            copies_as(type, squares),    copies_as(type, largest),   copies_as(type, counts)};
  }
};

// The ops of torch.optim.adam._single_tensor_adam.
void step_single(AdamState& s, const AdamCase& c) {
  for (size_t i = 0; i < s.parameters.size(); ++i) {
    const double count = s.counts[i].item<double>();
    auto gradient = c.maximize ? -s.gradients[i] : s.gradients[i];
    if (c.weight_decay != 0) {
      if (c.is_decoupled) {
        s.parameters[i].mul_(1 - kRate * c.weight_decay);
      } else {
        gradient = gradient.add(s.parameters[i], c.weight_decay);
      }
    }
    s.means[i].lerp_(gradient, 1 - c.beta1);
    s.squares[i].mul_(c.beta2).addcmul_(gradient, gradient, 1 - c.beta2);
    if (c.amsgrad) at::maximum_out(s.largest[i], s.largest[i], s.squares[i]);
    const auto& used = c.amsgrad ? s.largest[i] : s.squares[i];
    const auto denominator = (used.sqrt() / std::sqrt(1 - std::pow(c.beta2, count))).add_(kEps);
    s.parameters[i].addcdiv_(s.means[i], denominator, -kRate / (1 - std::pow(c.beta1, count)));
  }
}

bool step_joined(AdamState& s, const AdamCase& c) {
  torch::jit::Stack stack{s.parameters, s.gradients, s.means, s.squares, c.amsgrad ? s.largest : Tensors{}, s.counts,
                          kRate, c.beta1, c.beta2, c.weight_decay, kEps, c.amsgrad, c.maximize, kNone, kNone};
  const bool is_done = c.is_decoupled ? try_adamw_step(stack) : try_adam_step(stack);
  EXPECT_EQ(stack.empty(), is_done);
  return is_done;
}

// The largest distance from the exact values, in units of the float32 numbers there, at least of those near 1: terms cancel.
double largest_error(const Tensors& values, const Tensors& exact) {
  double largest = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i].numel() == 0) continue;
    const auto unit = exact[i].abs().clamp_min(1) * std::numeric_limits<float>::epsilon();
    const auto error = ((values[i].to(at::kDouble) - exact[i]).abs() / unit);
    largest = std::max(largest, error.max().item<double>());
  }
  return largest;
}

void expect_no_worse(const Tensors& own, const Tensors& theirs, const Tensors& exact, const char* what) {
  EXPECT_LE(largest_error(own, exact), 2 * largest_error(theirs, exact) + 1) << what;
}

TEST(OptimizerSteps, AdamIsAsAccurateAsTheLoop) {
  at::manual_seed(0);
  for (const bool is_decoupled : {false, true})
    for (const bool amsgrad : {false, true})
      for (const double weight_decay : {0.0, 0.1})
        for (const double beta1 : {0.9, 0.5, 0.0}) {
          const AdamCase how{beta1, 0.99, weight_decay, amsgrad, /*maximize=*/weight_decay > 0 && amsgrad, is_decoupled};
          const AdamState given;
          auto own = given.copy_as(at::kFloat), theirs = given.copy_as(at::kFloat), exact = given.copy_as(at::kDouble);
          for (int repeated = 0; repeated < 3; ++repeated) {
            ASSERT_TRUE(step_joined(own, how));
            step_single(theirs, how);
            step_single(exact, how);
          }
          expect_no_worse(own.parameters, theirs.parameters, exact.parameters, "parameters");
          expect_no_worse(own.means, theirs.means, exact.means, "means");
          expect_no_worse(own.squares, theirs.squares, exact.squares, "squares");
          if (amsgrad) expect_no_worse(own.largest, theirs.largest, exact.largest, "largest squares");
          for (size_t i = 0; i < own.gradients.size(); ++i) EXPECT_TRUE(own.gradients[i].equal(given.gradients[i]));
        }
}

TEST(OptimizerSteps, WhatIsNotFiniteIsAsInTheLoop) {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  const auto special = at::tensor({0.0f, -0.0f, infinity, -infinity, nan, 1e30f, 1e-42f, 1.0f});
  for (const bool is_decoupled : {false, true})
    for (const double weight_decay : {0.0, 0.1}) {
      const AdamCase how{0.9, 0.99, weight_decay, /*amsgrad=*/true, false, is_decoupled};
      AdamState given;
      given.parameters = {special, at::ones(8), at::ones(8), at::ones(8)};
      given.gradients = {at::ones(8), special, at::ones(8), at::ones(8)};
      given.means = {at::ones(8), at::ones(8), special, at::ones(8)};
      given.squares = {at::ones(8), at::ones(8), at::ones(8), special.abs()};
      given.largest = {special.abs(), at::ones(8), special.abs(), at::ones(8)};
      given.counts = counts_of(4, 1);
      auto own = given.copy_as(at::kFloat), theirs = given.copy_as(at::kFloat);
      ASSERT_TRUE(step_joined(own, how));
      step_single(theirs, how);
      for (const auto& [a, b] : {std::pair(own.parameters, theirs.parameters), std::pair(own.means, theirs.means),
                                 std::pair(own.squares, theirs.squares), std::pair(own.largest, theirs.largest)})
        for (size_t i = 0; i < a.size(); ++i)
          EXPECT_TRUE(at::allclose(a[i], b[i], 1e-6, 0, /*equal_nan=*/true)) << i << "\n" << a[i] << "\n" << b[i];
    }
}

TEST(OptimizerSteps, SgdIsAsAccurateAsTheLoop) {
  at::manual_seed(1);
  for (const double momentum : {0.0, 0.9})
    for (const bool nesterov : {false, true})
      for (const double weight_decay : {0.0, 0.1}) {
        const double dampening = nesterov ? 0 : 0.2;
        const bool maximize = weight_decay > 0 && !nesterov;
        const Tensors parameters = some_tensors(), gradients = some_tensors(), buffers = some_tensors();
        const auto single = [&](Tensors& p, const Tensors& g, Tensors& b) {
          for (size_t i = 0; i < p.size(); ++i) {
            auto gradient = maximize ? -g[i] : g[i];
            if (weight_decay != 0) gradient = gradient.add(p[i], weight_decay);
            if (momentum != 0) {
              b[i].mul_(momentum).add_(gradient, 1 - dampening);
              gradient = nesterov ? gradient.add(b[i], momentum) : b[i];
            }
            p[i].add_(gradient, -kRate);
          }
        };
        auto own = copies_as(at::kFloat, parameters), own_buffers = copies_as(at::kFloat, buffers);
        auto theirs = copies_as(at::kFloat, parameters), their_buffers = copies_as(at::kFloat, buffers);
        auto exact = copies_as(at::kDouble, parameters), exact_buffers = copies_as(at::kDouble, buffers);
        const auto exact_gradients = copies_as(at::kDouble, gradients);
        torch::jit::Stack stack{own, gradients, momentum == 0 ? Tensors{} : own_buffers, weight_decay, momentum, kRate,
                                dampening, nesterov, maximize, false, kNone, kNone};
        ASSERT_TRUE(try_sgd_step(stack));
        single(theirs, gradients, their_buffers);
        single(exact, exact_gradients, exact_buffers);
        expect_no_worse(own, theirs, exact, "parameters");
        expect_no_worse(own_buffers, their_buffers, exact_buffers, "buffers");
      }
}

TEST(OptimizerSteps, AdagradIsAsAccurateAsTheLoop) {
  at::manual_seed(2);
  for (const double weight_decay : {0.0, 0.1}) {
    const Tensors parameters = some_tensors(), gradients = some_tensors(), sums = some_tensors(true);
    const Tensors counts = counts_of(parameters.size(), 2);
    const double rate_decay = 0.01;
    const auto single = [&](Tensors& p, const Tensors& g, Tensors& s) {
      for (size_t i = 0; i < p.size(); ++i) {
        auto gradient = weight_decay == 0 ? g[i] : g[i].add(p[i], weight_decay);
        s[i].addcmul_(gradient, gradient, 1);
        p[i].addcdiv_(gradient, s[i].sqrt().add_(kEps), -kRate / (1 + (counts[i].item<double>() - 1) * rate_decay));
      }
    };
    auto own = copies_as(at::kFloat, parameters), own_sums = copies_as(at::kFloat, sums), theirs = copies_as(at::kFloat, parameters), their_sums = copies_as(at::kFloat, sums);
    auto exact = copies_as(at::kDouble, parameters), exact_sums = copies_as(at::kDouble, sums);
    const auto exact_gradients = copies_as(at::kDouble, gradients);
    torch::jit::Stack stack{own, gradients, own_sums, counts, kRate, rate_decay, weight_decay, kEps, false, kNone, kNone};
    ASSERT_TRUE(try_adagrad_step(stack));
    single(theirs, gradients, their_sums);
    single(exact, exact_gradients, exact_sums);
    expect_no_worse(own, theirs, exact, "parameters");
    expect_no_worse(own_sums, their_sums, exact_sums, "sums");
  }
}

struct RmspropCase {
  bool is_centered = false, has_momentum = false, maximize = false;
  double weight_decay = 0, alpha = 0.9;
};

struct RmspropState {
  Tensors parameters = some_tensors(), gradients = some_tensors(), squares = some_tensors(true), means, buffers;
  RmspropState copy_as(at::ScalarType type) const {
    return {copies_as(type, parameters), copies_as(type, gradients), copies_as(type, squares), copies_as(type, means),
            copies_as(type, buffers)};
  }
  torch::jit::Stack stack(const RmspropCase& c) const {
    return {parameters, gradients, squares, means, buffers, kRate, c.alpha, kEps, c.weight_decay, 0.8, c.maximize};
  }
};

RmspropState some_rmsprop(const RmspropCase& c) {
  RmspropState state;
  if (c.is_centered) {
    state.means = some_tensors();
    for (size_t i = 0; i < state.means.size(); ++i) state.squares[i].add_(state.means[i].square());  // no negative roots
  }
  if (c.has_momentum) state.buffers = some_tensors();
  return state;
}

// By PyTorch's dispatcher: the loop over one parameter after the other.
void step_one_by_one(const RmspropState& state, const RmspropCase& c) {
  auto stack = state.stack(c);
  c10::Dispatcher::singleton().findSchemaOrThrow("lockstep::_fused_rmsprop_", "").callBoxed(stack);
}

TEST(OptimizerSteps, RmspropIsAsAccurateAsTheLoop) {
  at::manual_seed(3);
  for (const bool is_centered : {false, true})
    for (const bool has_momentum : {false, true})
      for (const double weight_decay : {0.0, 0.1})
        for (const double alpha : {0.9, 0.3, 0.0}) {
          const RmspropCase how{is_centered, has_momentum, /*maximize=*/alpha == 0.3, weight_decay, alpha};
          if (is_centered && alpha == 0) continue;  // the variance of one value: nothing but rounding
          const auto given = some_rmsprop(how);
          auto own = given.copy_as(at::kFloat), theirs = given.copy_as(at::kFloat), exact = given.copy_as(at::kDouble);
          auto stack = own.stack(how);
          ASSERT_TRUE(try_rmsprop_step(stack));
          EXPECT_TRUE(stack.empty());
          step_one_by_one(theirs, how);
          step_one_by_one(exact, how);
          expect_no_worse(own.parameters, theirs.parameters, exact.parameters, "parameters");
          expect_no_worse(own.buffers, theirs.buffers, exact.buffers, "buffers");
          for (size_t i = 0; i < own.squares.size(); ++i) EXPECT_TRUE(own.squares[i].equal(theirs.squares[i]));
          for (size_t i = 0; i < own.means.size(); ++i) EXPECT_TRUE(own.means[i].equal(theirs.means[i]));
        }
}

TEST(OptimizerSteps, RmspropOfWhatOverlapsIsTheLoops) {
  const auto flat = at::rand({40});
  RmspropState state;
  state.parameters = {flat.slice(0, 0, 24), flat.slice(0, 16, 40)};
  state.gradients = {at::rand({24}), at::rand({24})}, state.squares = {at::rand({24}), at::rand({24})};
  auto stack = state.stack({});
  EXPECT_FALSE(try_rmsprop_step(stack));
  EXPECT_EQ(stack.size(), 11u);
  const auto before = flat.clone();
  step_one_by_one(state, {});
  EXPECT_FALSE(flat.equal(before));
}

TEST(OptimizerSteps, BitsDoNotDependOnTheNumberOfThreads) {
  const AdamState given;
  auto alone = given.copy_as(at::kFloat), shared = given.copy_as(at::kFloat);
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  ASSERT_TRUE(step_joined(alone, {}));
  at::set_num_threads(2);
  ASSERT_TRUE(step_joined(shared, {}));
  at::set_num_threads(before);
  for (size_t i = 0; i < alone.parameters.size(); ++i) EXPECT_TRUE(alone.parameters[i].equal(shared.parameters[i]));
}

TEST(OptimizerSteps, WhatDoesNotFitIsLeftAsItIs) {
  const auto refuses = [](AdamState state) {
    const auto before = copies_as(at::kFloat, state.parameters);
    EXPECT_FALSE(step_joined(state, {}));
    for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(before[i].equal(state.parameters[i]));
  };
  const auto with = [](Tensor parameter, Tensor gradient, Tensor mean, Tensor square) {
    AdamState state;
    state.parameters = {parameter}, state.gradients = {gradient}, state.means = {mean}, state.squares = {square};
    state.counts = counts_of(1, 1);
    return state;
  };
  const auto one = [] { return at::rand({4, 6}); };
  refuses(with(one().to(at::kDouble), one().to(at::kDouble), one().to(at::kDouble), one().to(at::kDouble)));
  refuses(with(one(), at::rand({6, 4}).t(), one(), one()));           // laid out otherwise
  refuses(with(at::rand({8, 6}).slice(0, 0, 8, 2), one(), one(), one()));  // with holes
  const auto shared = one();
  refuses(with(shared, shared, one(), one()));  // a gradient that is the parameter
  refuses(with(one(), one(), shared, shared));
  const auto flat = at::rand({40});
  AdamState overlapping;
  overlapping.parameters = {flat.slice(0, 0, 24), flat.slice(0, 16, 40)};
  for (auto* list : {&overlapping.gradients, &overlapping.means, &overlapping.squares})
    *list = {at::rand({24}), at::rand({24})};
  overlapping.counts = counts_of(2, 1);
  refuses(overlapping);
  AdamState apart = overlapping.copy_as(at::kFloat);
  apart.parameters = {flat.slice(0, 0, 16), flat.slice(0, 16, 40)};
  for (auto* list : {&apart.gradients, &apart.means, &apart.squares}) *list = {at::rand({16}), at::rand({24})};
  EXPECT_TRUE(step_joined(apart, {}));  // parts of one buffer
  auto fewer = apart;
  fewer.counts.pop_back();
  EXPECT_FALSE(step_joined(fewer, {}));
}

TEST(OptimizerSteps, CountsOfSteps) {
  const Tensors counts = counts_of(5, 7);
  const Tensors expected = copies_as(at::kFloat, counts);
  torch::jit::Stack stack{counts, at::Scalar(1)};
  EXPECT_TRUE(try_count_steps(stack));
  EXPECT_TRUE(stack.empty());
  for (size_t i = 0; i < counts.size(); ++i) EXPECT_EQ(counts[i].item<float>(), expected[i].item<float>() + 1);
  torch::jit::Stack beyond{counts, at::Scalar(1e300)};
  EXPECT_FALSE(try_count_steps(beyond));
  torch::jit::Stack nothing{Tensors{}, at::Scalar(1)};
  EXPECT_FALSE(try_count_steps(nothing));
  torch::jit::Stack larger{Tensors{at::rand({2})}, at::Scalar(1)};
  EXPECT_FALSE(try_count_steps(larger));
}

}  // namespace
}  // namespace lockstep::dynamic
