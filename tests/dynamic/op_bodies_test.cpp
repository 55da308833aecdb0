// Every op that can be fused, as a kernel of its own, against PyTorch's.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "tests/support/body_case.h"

namespace lockstep::dynamic {
namespace {

std::vector<Sample> samples() {
  const std::vector<int64_t> s{37, 21};
  const auto x = values(s), y = values(s), p = positive(s), m = truths(s), row = values({21}), column = values({37, 1});
  const auto big = values({300, 1000}), other = values({300, 1000});
  const auto turned = values({21, 37}).t(), sparse = values({37, 42}).slice(1, 0, 42, 2);
  const auto whole = at::randint(-5, 5, s, at::kLong), doubles = values(s).to(at::kDouble);
  const auto scalar = at::scalar_tensor(1.25);
  const auto weight = positive({21}), logits = at::log_softmax(y, 1);
  const std::vector<int64_t> last{21};
  std::vector<Sample> all = {
      {"aten::add.Tensor", {x, y, 1}},
      {"aten::add.Tensor", {x, y, 0.3}, kUlps},
      {"aten::add.Tensor", {big, other, 1}},
      {"aten::add.Tensor", {x, row, 1}},
      {"aten::add.Tensor", {column, row, 1}},
      {"aten::add.Tensor", {turned, sparse, 1}},
      {"aten::add.Tensor", {x, whole, 1}},
      {"aten::add.Tensor", {x, m, 1}},
      {"aten::add.Tensor", {whole, whole, 3}},
      {"aten::add.Tensor", {x, number(0.1), 1}},
      {"aten::add.Tensor", {x, scalar, 1}},
      {"aten::add.Tensor", {scalar, scalar, 1}},
      {"aten::add.Tensor", {doubles, x, 1}},
      {"aten::add_.Tensor", {x, y, 1}},
      {"aten::add_.Tensor", {turned, row.slice(0, 0, 1), 1}},
      {"aten::add.Scalar", {x, 2.5, 1}},
      {"aten::sub.Tensor", {x, y, 1}},
      {"aten::sub.Tensor", {x, y, 2}, kUlps},
      {"aten::sub_.Tensor", {x, y, 1}},
      {"aten::sub.Scalar", {x, 2.5, 1}},
      {"aten::rsub.Scalar", {x, 1, 1}},
      {"aten::rsub.Tensor", {x, y, 1}},
      {"aten::mul.Tensor", {x, y}},
      {"aten::mul.Tensor", {x, m}},
      {"aten::mul.Tensor", {x, number(1.0 / 3)}},
      {"aten::mul.Tensor", {whole, whole}},
      {"aten::mul_.Tensor", {x, y}},
      {"aten::mul.Scalar", {x, 3}},
      {"aten::div.Tensor", {x, p}},
      {"aten::div.Tensor", {whole, p}},
      {"aten::div_.Tensor", {x, number(3)}},
      {"aten::div.Scalar", {x, 3}},
      {"aten::maximum", {x, y}},
      {"aten::minimum", {x, row}},
      {"aten::lerp.Scalar", {x, y, 0.1}, kUlps},
      {"aten::lerp_.Scalar", {x, y, 0.9}, kUlps},
      {"aten::addcmul", {x, y, p, 0.3}, kUlps},
      {"aten::addcmul_", {x, y, p, 1}, kUlps},
      {"aten::addcdiv_", {x, y, p, -0.01}, kUlps},
      {"aten::pow.Tensor_Scalar", {x, 0}},
      {"aten::pow.Tensor_Scalar", {x, 1}},
      {"aten::pow.Tensor_Scalar", {x, 2}},
      {"aten::pow.Tensor_Scalar", {x, 3}, kUlps},
      {"aten::pow.Tensor_Scalar", {p, 0.5}, kUlps},
      {"aten::pow.Tensor_Scalar", {p, -0.5}, kUlps},
      {"aten::pow.Tensor_Scalar", {p, -1}, kUlps},
      {"aten::pow.Tensor_Scalar", {p, -2}, kUlps},
      {"aten::pow.Tensor_Scalar", {p, 1.7}, kUlps},
      {"aten::neg", {x}},
      {"aten::neg", {whole}},
      {"aten::abs", {x}},
      {"aten::abs_", {x}},
      {"aten::sqrt", {p}, kUlps},  // rounded exactly here
      {"aten::reciprocal", {p}},
      {"aten::floor", {x}},
      {"aten::ceil", {x}},
      {"aten::relu", {x}},
      {"aten::relu_", {x}},
      {"aten::leaky_relu", {x, 0.1}},
      {"aten::leaky_relu_", {x, 0.2}},
      {"aten::leaky_relu_backward", {x, y, 0.1, false}},
      {"aten::threshold_backward", {x, y, 0}},
      {"aten::sigmoid_backward", {x, p}, kUlps},
      {"aten::tanh_backward", {x, at::tanh(y)}, kUlps},
      {"aten::silu", {x}, kUlps},
      {"aten::silu_backward", {x, y}, kUlps},
      {"aten::gelu", {x, "none"}, kUlps},
      {"aten::gelu", {x, "tanh"}, kUlps},
      {"aten::gelu_backward", {x, y, "none"}, kUlps},
      {"aten::gelu_backward", {x, y, "tanh"}, 1e-5},  // cancels in both
      {"aten::where.self", {m, x, y}},
      {"aten::where.self", {m, x, scalar}},
      {"aten::masked_fill.Scalar", {x, m, -1e9}},
      {"aten::masked_fill_.Scalar", {x, m, 0}},
      {"aten::clamp", {x, -1, kNone}},
      {"aten::clamp", {x, -1, 1.5}},
      {"aten::clamp_", {x, kNone, 0.5}},
      {"aten::clamp_min", {x, 0}},
      {"aten::clamp_max", {x, 1}},
      {"aten::eq.Tensor", {whole, whole}},
      {"aten::ne.Tensor", {whole, at::zeros(s, at::kLong)}},
      {"aten::lt.Tensor", {x, y}},
      {"aten::le.Tensor", {x, row}},
      {"aten::gt.Tensor", {x, column}},
      {"aten::ge.Tensor", {x, scalar}},
      {"aten::eq.Scalar", {x, 0}},
      {"aten::ne.Scalar", {x, 1}},
      {"aten::lt.Scalar", {x, 0.1}},
      {"aten::le.Scalar", {x, 0.1}},
      {"aten::gt.Scalar", {x, 0.1}},
      {"aten::ge.Scalar", {x, 0}},
      {"aten::logical_not", {m}},
      {"aten::bitwise_not", {m}},
      {"aten::logical_and", {m, truths(s)}},
      {"aten::logical_or", {m, truths(s)}},
      {"aten::bitwise_and.Tensor", {m, truths(s)}},
      {"aten::bitwise_or.Tensor", {m, truths(s)}},
      {"aten::clone", {x, kNone}},
      {"aten::clone", {turned, c10::MemoryFormat::Contiguous}},
      {"aten::_to_copy", {x, at::kDouble, kNone, kNone, kNone, false, kNone}},
      {"aten::_to_copy", {whole, at::kFloat, kNone, kNone, kNone, false, kNone}},
      {"aten::_to_copy", {x, at::kBool, kNone, kNone, kNone, false, kNone}},
      {"aten::_to_copy", {x, at::kLong, kNone, kNone, kNone, false, kNone}},
      {"aten::copy_", {x, row, false}},
      {"aten::copy_", {x, doubles, false}},
      {"aten::copy_", {doubles, x, false}},
      {"aten::fill_.Scalar", {x, 1.5}},
      {"aten::zero_", {x}},
      {"aten::zeros_like", {x, kNone, kNone, kNone, kNone, kNone}},
      {"aten::ones_like", {whole, kNone, kNone, kNone, kNone, kNone}},
  };
  auto masked = x.masked_fill(m, -INFINITY);
  masked.select(0, 3).fill_(-INFINITY);
  for (const auto& input : {x, doubles, masked}) {
    all.push_back({"aten::_softmax", {input, -1, false}, kUlps});
    all.push_back({"aten::_safe_softmax", {input, -1, kNone}, kUlps});
    all.push_back({"aten::_log_softmax", {input, 1, false}, kUlps});
  }
  for (const auto& sample : std::vector<Sample>{
           {"aten::_softmax", {big, 1, false}, kUlps},
           {"aten::_log_softmax", {big, 1, false}, kUlps},
           {"aten::_softmax_backward_data", {x, at::softmax(y, 1), 1, at::kFloat}, kUlps},
           {"aten::_log_softmax_backward_data", {x, logits, -1, at::kFloat}, kUlps},
           {"aten::native_layer_norm", {x, last, weight, row, 1e-5}, kUlps},
           {"aten::native_layer_norm", {x, last, kNone, kNone, 1e-3}, kUlps},
           {"aten::native_layer_norm", {x + 100, last, weight, kNone, 1e-5}, 1e-4},  // both lose digits
           {"aten::native_layer_norm", {big, std::vector<int64_t>{1000}, kNone, kNone, 1e-5}, kUlps},
           {"aten::native_layer_norm", {at::full({37, 21}, 1000.1), last, kNone, kNone, 1e-12}, kUlps},  // nothing but roundings
       })
    all.push_back(sample);
  const auto add_backward = [&](const at::Tensor& input, const at::Tensor& slope, const c10::IValue& scale) {
    const auto normed = at::native_layer_norm(input, {input.size(-1)}, {}, {}, 1e-5);
    const std::vector<int64_t> width{input.size(-1)};
    all.push_back({"aten::native_layer_norm_backward",
                   {slope, input, width, std::get<1>(normed), std::get<2>(normed), scale, at::ones(width, input.options()),
                    std::array<bool, 3>{true, true, true}},
                   5e-5});
  };
  add_backward(x, y, weight);
  add_backward(x.view({1, 37, 21}), y.view({1, 37, 21}), weight);
  add_backward(big, other, positive({1000}));
  add_backward(doubles, values(s).to(at::kDouble), positive({21}).to(at::kDouble));
  const auto wide = positive({5, 66, 70}), tall = positive({1000, 64});
  for (const auto& input : {wide, tall, wide.to(at::kDouble), big}) {
    const int64_t rank = input.dim();
    std::vector<int64_t> rows, every;
    for (int64_t dim = 0; dim < rank; ++dim) every.push_back(dim - rank);
    rows.assign(every.begin(), every.end() - 1);
    for (const char* op : {"aten::sum", "aten::mean"}) all.push_back({op, {input, kNone}, 1e-5});
    for (const char* op : {"aten::sum.dim_IntList", "aten::mean.dim"})
      for (const auto& dims : {rows, every})
        for (const bool keeps : {false, true}) all.push_back({op, {input, dims, keeps, kNone}, 1e-4});
  }
  const std::vector<int64_t> innermost{-1}, by_number{1};
  const auto turned_map = values({3, 9, 40}).transpose(0, 1), long_rows = positive({3, 30000});
  for (const auto& input : {x, doubles, sparse.t().contiguous().t(), big, long_rows, turned_map, values({2, 5, 8}), values({1, 70})}) {
    if (input.stride(-1) != 1) continue;
    for (const bool keeps : {false, true}) {
      for (const char* op : {"aten::sum.dim_IntList", "aten::mean.dim"}) all.push_back({op, {input, innermost, keeps, kNone}, 2e-5});
      all.push_back({"aten::amax", {input, innermost, keeps}});
      for (const char* op : {"aten::var.correction", "aten::std.correction"})
        for (const auto& correction : {c10::IValue(), c10::IValue(0), c10::IValue(2.5)})
          all.push_back({op, {input, innermost, correction, keeps}, 2e-6});
      all.push_back({"aten::linalg_vector_norm", {input, 2, innermost, keeps, kNone}, 2e-6});
    }
  }
  all.push_back({"aten::mean.dim", {x, by_number, true, at::kFloat}, kUlps});
  all.push_back({"aten::var.correction", {x + 1000, innermost, 0, true}, 1e-5});  // both lose digits
  all.push_back({"aten::amax", {at::where(m, x, NAN), innermost, true}, kUlps});
  const auto targets = at::randint(0, 21, {37}, at::kLong), targets_of_21 = at::randint(0, 21, {21}, at::kLong);
  targets.slice(0, 0, 37, 5).fill_(-100);
  targets.slice(0, 1, 37, 7).fill_(3);
  const auto square = values({21, 21}), rows_37 = values({37}), total = at::scalar_tensor(25.0);
  for (const auto& sample : std::vector<Sample>{
           {"aten::nll_loss_backward", {scalar, x, targets, kNone, at::Reduction::Mean, -100, total}},
           {"aten::nll_loss_backward", {scalar, x, targets.clamp_min(0), weight, at::Reduction::Mean, 3, total}},
           {"aten::nll_loss_backward", {scalar, turned, targets, weight, at::Reduction::Sum, -100, total}},
           {"aten::nll_loss_backward", {rows_37, x, targets, weight, at::Reduction::None, -100, total}},
           {"aten::nll_loss_backward", {row, square, targets_of_21, row, at::Reduction::None, -100, total}},
           {"aten::nll_loss_backward", {scalar, x, targets, kNone, at::Reduction::Mean, -100, total - total}},
       })
    all.push_back(sample);
  for (const char* op : {"aten::exp", "aten::expm1", "aten::tanh", "aten::sigmoid", "aten::erf", "aten::sin", "aten::cos"})
    all.push_back({op, {x}, kUlps});
  for (const char* op : {"aten::log", "aten::log1p", "aten::log2", "aten::rsqrt"}) all.push_back({op, {p}, kUlps});
  return all;
}

TEST(OpBodies, EachAsPyTorchs) {
  at::manual_seed(0);
  expect_as_pytorchs(samples());
}

TEST(OpBodies, SpecialValues) {
  at::AutoDispatchBelowADInplaceOrView below;
  const double inf = INFINITY, nan = NAN;
  const auto x = at::tensor({0.0, -0.0, inf, -inf, nan, 1e-42, -1e-42, 1.0, -1.0, 3e38, 88.8, -104.0}, at::kFloat);
  const auto y = at::tensor({-0.0, 0.0, inf, inf, 1.0, nan, 1e-42, -inf, 0.0, 3e38, -0.0, 2.0}, at::kFloat);
  for (const char* op : {"aten::neg", "aten::abs", "aten::relu", "aten::sqrt", "aten::reciprocal", "aten::floor",
                         "aten::exp", "aten::tanh", "aten::sigmoid", "aten::silu", "aten::log"}) {
    EventCase made(op, {x});
    const auto twin = made.event.outputs[0];
    run_twice(made, op);
    EXPECT_TRUE(at::allclose(made.result(0), made.expected[0], kUlps, 1e-44, true)) << op << made.result(0) << made.expected[0];
  }
  for (const char* op : {"aten::mul.Tensor", "aten::div.Tensor", "aten::maximum", "aten::minimum", "aten::lt.Tensor",
                         "aten::ne.Tensor"}) {
    EventCase made(op, {x, y});
    const auto twin = made.event.outputs[0];
    run_twice(made, op);
    EXPECT_TRUE(at::allclose(made.result(0).to(at::kFloat), made.expected[0].to(at::kFloat), 0, 0, true))
        << op << made.result(0) << made.expected[0];
  }
}

TEST(OpBodies, TypesThatComputeOtherwiseAreLeftAlone) {
  const auto x = values({4, 4}), d = x.to(at::kDouble), whole = at::randint(0, 5, {4, 4}, at::kLong);
  EXPECT_TRUE(is_taken("aten::add_.Tensor", {x, whole, 1}));
  EXPECT_FALSE(is_taken("aten::add_.Tensor", {x.clone(), d, 1}));  // computes in float64
  EXPECT_FALSE(is_taken("aten::lt.Tensor", {x, d}));
  EXPECT_FALSE(is_taken("aten::gt.Scalar", {whole, 0.5}));
  EXPECT_FALSE(is_taken("aten::add.Tensor", {at::rand({2, 2}, at::kComplexFloat), x[0][0], 1}));
  EXPECT_FALSE(is_taken("aten::add.Tensor", {at::rand({0, 2}), at::rand({0, 2}), 1}));
  EXPECT_FALSE(is_taken("aten::add.Tensor", {truths({3}), truths({3}), 1}));
  EXPECT_FALSE(is_taken("aten::mm", {x, x}));
}

TEST(OpBodies, RowsThatAreNotFolded) {
  const auto x = values({12, 20}), map = values({3, 12, 20});
  const std::vector<int64_t> first{0}, last{-1}, two{1, 2}, none;
  const auto sum = [](const at::Tensor& tensor, const c10::IValue& dims, const c10::IValue& type = {}) {
    return is_taken("aten::sum.dim_IntList", {tensor, dims, true, type});
  };
  EXPECT_TRUE(sum(x, last));
  EXPECT_FALSE(sum(x, first)) << "short rows of a total";
  EXPECT_FALSE(sum(map, two));
  EXPECT_FALSE(sum(x.t(), last)) << "not innermost";
  EXPECT_FALSE(sum(values({12, 7}), last)) << "not worth a vector";
  EXPECT_FALSE(sum(x, last, at::kDouble)) << "computes in another type";
  EXPECT_FALSE(sum(at::ones({12, 20}, at::kLong), last));
  EXPECT_FALSE(sum(x.to(at::kBFloat16), last));
  EXPECT_FALSE(sum(values({12, 1}).expand({12, 20}), last));
  EXPECT_FALSE(is_taken("aten::amax", {x, none, true})) << "of all dims";
  EXPECT_FALSE(is_taken("aten::var.correction", {x, last, 20, true})) << "PyTorch warns";
  EXPECT_FALSE(is_taken("aten::linalg_vector_norm", {x, 1, last, true, kNone}));
}

}  // namespace
}  // namespace lockstep::dynamic
