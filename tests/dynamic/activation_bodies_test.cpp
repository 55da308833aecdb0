// Activations, losses and numbers that can be fused: bits or accuracy against PyTorch's kernels, on random and on special
// values, in each type.
#include <functional>
#include <sstream>
#include <string>
#include <unordered_set>

#include "tests/support/body_case.h"

namespace lockstep::dynamic {
namespace {

struct Inputs {
  at::Tensor x, y, z, share;  // share: between 0 and 1
};
struct Row {
  const char* op;
  std::function<Stack(const Inputs&)> make;
  // kSameVectors: the same bits as PyTorch's vectors; its single values give another sign of zero.
  enum Kind { kSameBits, kSameVectors, kAccurate } kind = kSameBits;
  double least = 1e-2;  // results below this count as this large: what is left of larger parts has fewer right digits
};

Stack of_x(const Inputs& in) { return {in.x}; }
Stack of_x_y(const Inputs& in) { return {in.x, in.y}; }
at::Tensor one_of(const Inputs& in) { return in.z.flatten()[1].clone(); }
at::Tensor weight_of(const Inputs& in) { return in.z[0].clone(); }
constexpr int64_t kNoReduction = 0, kMean = 1, kSum = 2;

std::vector<Row> activations() {
  return {
      {"aten::hardtanh", [](const Inputs& in) { return Stack{in.x, 0, 6}; }},
      {"aten::hardtanh", [](const Inputs& in) { return Stack{in.x, -1.5, 0.7}; }},
      {"aten::hardtanh_", [](const Inputs& in) { return Stack{in.x, 0.0, 6.0}; }},
      {"aten::hardtanh_backward", [](const Inputs& in) { return Stack{in.x, in.y, 0.0, 6.0}; }},
      {"aten::hardsigmoid", &of_x},
      {"aten::hardsigmoid_", &of_x},
      {"aten::hardsigmoid_backward", &of_x_y},
      {"aten::hardswish", &of_x},
      {"aten::hardswish_", &of_x},
      {"aten::hardswish_backward", &of_x_y},
      {"aten::hardshrink", [](const Inputs& in) { return Stack{in.x, 0.4}; }},
      {"aten::hardshrink_backward", [](const Inputs& in) { return Stack{in.x, in.y, 0.4}; }},
      {"aten::softshrink", [](const Inputs& in) { return Stack{in.x, 0.4}; }, Row::kSameVectors},
      {"aten::softshrink_backward", [](const Inputs& in) { return Stack{in.x, in.y, 0.4}; }},
      {"aten::threshold", [](const Inputs& in) { return Stack{in.x, 0.1, 20.0}; }},
      {"aten::threshold_", [](const Inputs& in) { return Stack{in.x, -0.1, 1}; }},
      {"aten::_prelu_kernel", [](const Inputs& in) { return Stack{in.x, weight_of(in)}; }},
      {"aten::_prelu_kernel", &of_x_y},
      {"aten::_prelu_kernel_backward", [](const Inputs& in) { return Stack{in.x, in.y, weight_of(in)}; }},
      {"aten::elu", [](const Inputs& in) { return Stack{in.x, 1.0, 1.0, 1.0}; }, Row::kAccurate},
      {"aten::elu", [](const Inputs& in) { return Stack{in.x, 1.6732632423543772, 1.0507009873554805, 1.0}; }, Row::kAccurate},
      {"aten::elu_", [](const Inputs& in) { return Stack{in.x, 0.7, 1.0, 1 / 0.7}; }, Row::kAccurate},
      {"aten::celu", [](const Inputs& in) { return Stack{in.x, 0.7}; }, Row::kAccurate},
      {"aten::celu_", [](const Inputs& in) { return Stack{in.x, 1}; }, Row::kAccurate},
      {"aten::elu_backward", [](const Inputs& in) { return Stack{in.x, 0.7, 1.05, 1 / 0.7, false, in.y}; }, Row::kAccurate},
      {"aten::elu_backward", [](const Inputs& in) { return Stack{in.x, 0.7, 1.05, 1 / 0.7, true, in.y}; }},
      {"aten::softplus", [](const Inputs& in) { return Stack{in.x, 1, 20}; }, Row::kAccurate},
      {"aten::softplus", [](const Inputs& in) { return Stack{in.x, 0.6, 3.5}; }, Row::kAccurate},
      {"aten::softplus_backward", [](const Inputs& in) { return Stack{in.x, in.y, 1, 20}; }, Row::kAccurate},
      {"aten::softplus_backward", [](const Inputs& in) { return Stack{in.x, in.y, 0.6, 3.5}; }, Row::kAccurate},
      {"aten::mish", &of_x, Row::kAccurate},
      {"aten::mish_", &of_x, Row::kAccurate},
      {"aten::mish_backward", &of_x_y, Row::kAccurate, 1},
      {"aten::log_sigmoid_forward", &of_x, Row::kAccurate},
      {"aten::log_sigmoid_backward", [](const Inputs& in) { return Stack{in.x, in.y, in.y.abs().neg().exp()}; }},
  };
}

std::vector<Row> numbers() {
  return {
      {"aten::sign", &of_x},
      {"aten::round", &of_x},
      {"aten::round_", &of_x},
      {"aten::trunc", &of_x},
      {"aten::frac", &of_x},
      {"aten::isnan", &of_x},
      {"aten::nan_to_num", [](const Inputs& in) { return Stack{in.x, kNone, kNone, kNone}; }},
      {"aten::nan_to_num_", [](const Inputs& in) { return Stack{in.x, 0.5, kNone, -3.0}; }},
      {"aten::clamp.Tensor", [](const Inputs& in) { return Stack{in.x, weight_of(in), in.y}; }},
      {"aten::clamp.Tensor", [](const Inputs& in) { return Stack{in.x, kNone, in.y}; }},
      {"aten::clamp_min.Tensor", &of_x_y},
      {"aten::clamp_max.Tensor", [](const Inputs& in) { return Stack{in.x, one_of(in)}; }},
      {"aten::masked_fill.Tensor", [](const Inputs& in) { return Stack{in.x, in.y > 0, at::scalar_tensor(0.25, in.x.options())}; }},
      {"aten::masked_fill_.Tensor", [](const Inputs& in) { return Stack{in.x, in.y > 0, at::scalar_tensor(0.25)}; }},
      {"aten::pow.Tensor_Tensor", [](const Inputs& in) { return Stack{in.x.abs(), in.y}; }, Row::kAccurate},
      {"aten::pow.Tensor_Tensor", &of_x_y, Row::kAccurate},
      {"aten::pow.Scalar", [](const Inputs& in) { return Stack{0.7, in.x}; }, Row::kAccurate},
      {"aten::pow.Scalar", [](const Inputs& in) { return Stack{1, in.x}; }, Row::kAccurate},
      {"aten::pow.Scalar", [](const Inputs& in) { return Stack{2, in.x}; }, Row::kAccurate},
      {"aten::logit", [](const Inputs& in) { return Stack{in.share, kNone}; }, Row::kAccurate},
      {"aten::logit", [](const Inputs& in) { return Stack{in.x, 1e-3}; }, Row::kAccurate},
      {"aten::lerp.Tensor", [](const Inputs& in) { return Stack{in.x, in.y, in.share}; }, Row::kAccurate},
  };
}

std::vector<Row> losses() {
  std::vector<Row> rows = {
      {"aten::mse_loss", [](const Inputs& in) { return Stack{in.x, in.y, kNoReduction}; }},
      {"aten::mse_loss_backward", [](const Inputs& in) { return Stack{in.x, in.y, in.z, kNoReduction}; }},
      {"aten::mse_loss_backward", [](const Inputs& in) { return Stack{one_of(in), in.y, in.z, kMean}; }},
      {"aten::mse_loss_backward", [](const Inputs& in) { return Stack{one_of(in), in.y, in.z, kSum}; }},
      {"aten::smooth_l1_loss", [](const Inputs& in) { return Stack{in.x, in.y, kNoReduction, 0.7}; }, Row::kAccurate},
      {"aten::smooth_l1_loss", [](const Inputs& in) { return Stack{in.x, in.y, kNoReduction, 0.0}; }, Row::kAccurate},
      {"aten::smooth_l1_loss_backward", [](const Inputs& in) { return Stack{in.x, in.y, in.z, kNoReduction, 0.7}; }, Row::kAccurate},
      {"aten::smooth_l1_loss_backward", [](const Inputs& in) { return Stack{one_of(in), in.y, in.z, kMean, 1.0}; }, Row::kAccurate},
      {"aten::smooth_l1_loss_backward", [](const Inputs& in) { return Stack{one_of(in), in.y, in.z, kSum, 0.0}; }, Row::kAccurate},
      {"aten::huber_loss", [](const Inputs& in) { return Stack{in.x, in.y, kNoReduction, 0.7}; }, Row::kAccurate},
      {"aten::huber_loss_backward", [](const Inputs& in) { return Stack{in.x, in.y, in.z, kNoReduction, 0.7}; }, Row::kAccurate},
      {"aten::huber_loss_backward", [](const Inputs& in) { return Stack{one_of(in), in.y, in.z, kMean, 1.5}; }, Row::kAccurate},
      {"aten::binary_cross_entropy_backward", [](const Inputs& in) { return Stack{in.x, in.share, in.z, kNone, kNoReduction}; }, Row::kAccurate},
      {"aten::binary_cross_entropy_backward", [](const Inputs& in) { return Stack{one_of(in), in.share, in.z, weight_of(in), kMean}; }, Row::kAccurate},
      {"aten::binary_cross_entropy_with_logits", [](const Inputs& in) { return Stack{in.x, in.share, kNone, kNone, kNoReduction}; }, Row::kAccurate},
      {"aten::binary_cross_entropy_with_logits", [](const Inputs& in) { return Stack{in.x, in.share, in.z.abs(), weight_of(in).abs(), kNoReduction}; }, Row::kAccurate},
  };
  return rows;
}

// What a mean or a sum comes to.
std::vector<Row> totals() {
  std::vector<Row> rows;
  for (const int64_t reduction : {kMean, kSum}) {
    const auto add = [&](const char* op, std::function<Stack(const Inputs&, Stack)> make) {
      rows.push_back({op, [=](const Inputs& in) { return make(in, Stack{reduction}); }, Row::kAccurate});
    };
    add("aten::mse_loss", [](const Inputs& in, Stack last) { return Stack{in.x, in.y, last[0]}; });
    add("aten::smooth_l1_loss", [](const Inputs& in, Stack last) { return Stack{in.x, in.y, last[0], 0.7}; });
    add("aten::huber_loss", [](const Inputs& in, Stack last) { return Stack{in.x, weight_of(in).expand_as(in.x), last[0], 0.7}; });
    add("aten::binary_cross_entropy_with_logits",
        [](const Inputs& in, Stack last) { return Stack{in.x, in.share, kNone, weight_of(in).abs(), last[0]}; });
    add("aten::binary_cross_entropy_with_logits",
        [](const Inputs& in, Stack last) { return Stack{in.x, in.share, in.share, kNone, last[0]}; });
  }
  return rows;
}

std::vector<Row> joined(std::initializer_list<std::vector<Row>> parts) {
  std::vector<Row> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}
std::vector<Row> rows_of_values() { return joined({activations(), numbers(), losses()}); }
std::vector<Row> all_rows() { return joined({rows_of_values(), totals()}); }

Inputs random_inputs(at::IntArrayRef sizes, at::ScalarType type) {
  const auto normal = [&] { return (at::randn(sizes, at::kDouble) * 3).to(type); };
  return {normal(), normal(), normal(), at::rand(sizes, at::kDouble).to(at::kFloat).to(type)};
}

// Each with each, in whole vectors of PyTorch's kernels: its single values treat some otherwise.
Inputs special_inputs(at::ScalarType type) {
  const double inf = INFINITY, nan = NAN;
  const auto values = at::tensor({0.0, -0.0, inf, -inf, nan, 1e-42, -1e-42, 1.0, -1.0, 3.0, -3.0, 6.0, 0.5, 88.8, -104.0, 21.0},
                                 at::kDouble).to(type);
  const int64_t n = values.numel();
  const auto down = values.view({n, 1}).expand({n, n}).contiguous(), along = values.view({1, n}).expand({n, n}).contiguous();
  return {down, along, along.flip(1).contiguous(), along.clamp(0, 1)};
}

// What comes out, one tensor for each result or for what is written: PyTorch's and ours.
struct Outcome {
  std::vector<at::Tensor> eager, own;
};
Outcome run(const char* name, const Stack& args) {
  at::AutoDispatchBelowADInplaceOrView below;
  const uint64_t groups = fusion_statistics.groups.load();
  Outcome outcome;
  if (graph::find_op_info(name)->writes) {
    Stack eager = copies_of(args), own = copies_of(args);
    const auto before = copies_of(own);
    EventCase made(name, eager, own);
    run_twice(made, name);
    own[0].toTensor().copy_(before[0].toTensor());  // the first time it was only compiled
    run_twice(made, name);
    own[0].toTensor().copy_(before[0].toTensor());
    Fuser fuser;
    Event* failed = nullptr;
    if (fuser.try_add(made.event)) fuser.run(failed);
    outcome = {{eager[0].toTensor()}, {own[0].toTensor()}};
  } else {
    EventCase made(name, args);
    const auto twins = made.event.outputs;
    run_twice(made, name);
    outcome.eager = made.expected;
    for (size_t i = 0; i < made.expected.size(); ++i) outcome.own.push_back(made.result(i).clone());
  }
  EXPECT_GE(fusion_statistics.groups.load(), groups + 1) << name << " did not run as a kernel";
  return outcome;
}

at::Tensor has_same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (!a.is_floating_point()) return a == b;
  return ((a == b) & (a.signbit() == b.signbit())) | (a.isnan() & b.isnan());
}

// The largest distance from what it is in float64, relative to that.
double error_of(const at::Tensor& result, const at::Tensor& exact, double least) {
  const auto distance = (result.to(at::kDouble) - exact).abs() / exact.abs().clamp_min(least);
  return distance.nan_to_num(0, 0, 0).max().item<double>();
}

Stack in_doubles(const Stack& args) {
  Stack wide;
  for (const auto& arg : args)
    wide.push_back(arg.isTensor() && arg.toTensor().is_floating_point() ? c10::IValue(arg.toTensor().to(at::kDouble)) : arg);
  return wide;
}

TEST(ActivationBodies, RandomValues) {
  at::manual_seed(1);
  for (const auto& row : all_rows()) {
    for (const auto type : {at::kFloat, at::kDouble}) {
      for (const auto& sizes : std::vector<std::vector<int64_t>>{{37, 69}, {300, 320}}) {
        const auto args = row.make(random_inputs(sizes, type));
        const std::string what = std::string(row.op) + " " + c10::toString(type) + " ";
        const Stack given = copies_of(args);
        const auto [eager, own] = run(row.op, args);
        if (::testing::Test::HasFatalFailure()) return;
        auto exact = run(row.op, in_doubles(given)).eager;
        for (size_t i = 0; i < own.size(); ++i) {
          ASSERT_EQ(own[i].sizes(), eager[i].sizes()) << what;
          ASSERT_EQ(own[i].strides(), eager[i].strides()) << what;
          auto same = has_same_bits(own[i], eager[i]);
          if (row.kind == Row::kSameVectors) same = same | (own[i] == eager[i]);
          if (row.kind != Row::kAccurate) {
            EXPECT_TRUE(same.all().item<bool>()) << what << (~same).sum().item<int64_t>() << " differ";
          } else if (type == at::kDouble) {
            EXPECT_TRUE(at::allclose(own[i], eager[i], 1e-12, 1e-12, true)) << what << (own[i] - eager[i]).abs().max();
          } else {
            const double ours = error_of(own[i], exact[i], row.least), theirs = error_of(eager[i], exact[i], row.least);
            EXPECT_LE(ours, std::max(2 * theirs, std::exp2(-23))) << what;
          }
        }
      }
    }
  }
}

TEST(ActivationBodies, SpecialValues) {
  for (const auto& row : rows_of_values()) {
    for (const auto type : {at::kFloat, at::kDouble}) {
      const auto in = special_inputs(type);
      const auto args = row.make(in);
      const Stack given = copies_of(args);
      const auto [eager, own] = run(row.op, args);
      if (::testing::Test::HasFatalFailure()) return;
      for (size_t i = 0; i < own.size(); ++i) {
        auto same = has_same_bits(own[i], eager[i]);
        if (row.kind == Row::kAccurate) same = same | at::isclose(own[i], eager[i], 1e-6, 1e-37, true);
        if (same.all().item<bool>()) continue;
        const auto at = (~same).flatten().nonzero().flatten();
        std::string text;
        for (int64_t k = 0; k < std::min<int64_t>(at.numel(), 8); ++k) {
          const auto j = at[k].item<int64_t>();
          std::ostringstream line;
          line << "  x " << in.x.flatten()[j].item<double>() << " y " << in.y.flatten()[j].item<double>() << ": "
               << own[i].flatten()[j].item<double>() << ", PyTorch's " << eager[i].flatten()[j].item<double>() << "\n";
          text += line.str();
        }
        ADD_FAILURE() << row.op << " " << c10::toString(type) << " result " << i << ", " << at.numel() << " differ\n" << text;
      }
    }
  }
}

TEST(ActivationBodies, OtherTypesAreLeftAlone) {
  for (const auto& row : all_rows()) {
    auto in = random_inputs({16, 80}, at::kFloat);
    for (auto* one : {&in.x, &in.y, &in.z, &in.share}) *one = one->to(at::kHalf);
    EXPECT_FALSE(is_taken(row.op, row.make(in))) << row.op;
  }
  const auto whole = at::randint(-5, 5, {4, 80}, at::kLong), small = at::rand({4, 8}), doubles = at::rand({4, 80}, at::kDouble);
  const auto x = at::rand({4, 80});
  for (const char* op : {"aten::sign", "aten::round", "aten::trunc"}) EXPECT_FALSE(is_taken(op, {whole})) << op;
  EXPECT_FALSE(is_taken("aten::hardtanh", {whole, 0, 6}));
  EXPECT_FALSE(is_taken("aten::pow.Tensor_Tensor", {whole, whole.abs()}));
  EXPECT_FALSE(is_taken("aten::clamp.Tensor", {whole, whole, whole + 1}));
  EXPECT_FALSE(is_taken("aten::mse_loss", {x, doubles, kMean}));
  EXPECT_FALSE(is_taken("aten::mse_loss", {small, small, kMean})) << "rows too short for a total of ours";
  EXPECT_TRUE(is_taken("aten::mse_loss", {small, small, kNoReduction}));
}

TEST(ActivationBodies, Bfloat16IsLeftAloneWherePyTorchRoundsInBetween) {
  const std::unordered_set<std::string> rounded_in_between = {
      "masked_fill_",  // with a value of float32, which may not fit
      "logit", "nan_to_num", "nan_to_num_", "mse_loss", "mse_loss_backward", "smooth_l1_loss", "smooth_l1_loss_backward",
      "huber_loss", "huber_loss_backward", "binary_cross_entropy_backward", "binary_cross_entropy_with_logits"};
  int taken = 0;
  for (const auto& row : all_rows()) {
    auto in = random_inputs({16, 80}, at::kFloat);
    for (auto* one : {&in.x, &in.y, &in.z, &in.share}) *one = one->to(at::kBFloat16);
    const std::string op = row.op, name = op.substr(op.find(':') + 2), base = name.substr(0, name.find('.'));
    EXPECT_EQ(is_taken(row.op, row.make(in)), !rounded_in_between.contains(base)) << row.op;
    taken += !rounded_in_between.contains(base);
  }
  EXPECT_GT(taken, 20);
}

// A kernel of ours and one of PyTorch's may differ there, so that it is not left to chance which of them runs.
TEST(ActivationBodies, Bfloat16MayRoundOtherwise) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const auto x = at::rand({8}).to(type), y = at::rand({8}).to(type);
    const EventCase made("aten::add.Tensor", {x, y, 0.3});
    EXPECT_EQ(rounds_as_eager(made.event.op(), *made.event.signature), type == at::kFloat);
  }
}

}  // namespace
}  // namespace lockstep::dynamic
