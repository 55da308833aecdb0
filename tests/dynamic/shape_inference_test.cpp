// What is inferred against what the op makes: layouts on other sizes, and where nothing may be inferred.
#include "dynamic/shapes/shape_inference.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>

namespace lockstep::dynamic {
namespace {

using graph::Layout;
using graph::Signature;
using Args = std::vector<c10::IValue>;

const graph::OpInfo& op_named(const char* name) { return *graph::find_op_info(name); }

Layout layout_or_none(const c10::IValue& value) { return value.isTensor() ? graph::layout_of(value.toTensor()) : Layout{}; }

Signature signature_of(const graph::OpInfo& op, const Args& args) {
  Signature signature;
  signature.op = &op;
  signature.words = {0};
  for (size_t a = 0; a < args.size(); ++a) {
    const auto kind = op.args[a].kind;
    if (kind == graph::ArgKind::kTensor) signature.inputs.push_back(layout_or_none(args[a]));
    if (kind == graph::ArgKind::kTensorList || kind == graph::ArgKind::kOptionalTensorList)
      for (const auto& item : args[a].toListRef()) signature.inputs.push_back(layout_or_none(item));
  }
  return signature;
}

std::vector<Layout> layouts_by_running(const graph::OpInfo& op, const Args& args) {
  torch::jit::Stack stack(args.begin(), args.end());
  op.handle.callBoxed(&stack);
  std::vector<Layout> layouts;
  int group = 0;
  for (size_t r = 0; r < op.returns.size(); ++r) {
    if (op.returns[r].alias_arg >= 0) continue;
    auto layout = layout_or_none(stack[r]);
    layout.storage_group = layout.is_defined() ? group++ : -1;
    layouts.push_back(std::move(layout));
  }
  return layouts;
}

struct Case {
  const char* op;
  std::function<Args(int64_t n)> make;
};

c10::IValue indices(std::vector<std::optional<at::Tensor>> each) {
  c10::List<std::optional<at::Tensor>> list;
  for (auto& one : each) list.push_back(std::move(one));
  return list;
}

c10::IValue flags(std::vector<bool> each) {
  c10::List<bool> list;
  for (const bool one : each) list.push_back(one);
  return list;
}

Args convolution_args(const at::Tensor& map, const at::Tensor& kernel, std::vector<int64_t> stride, std::vector<int64_t> padding,
                      std::vector<int64_t> dilation, bool is_transposed, int64_t groups) {
  const std::vector<int64_t> no_padding(stride.size(), 0);
  const int64_t channels = is_transposed ? kernel.size(1) * groups : kernel.size(0);
  return {map, kernel, at::rand({channels}), stride, padding, dilation, is_transposed, no_padding, groups};
}

Args softmax_args(int64_t n) { return {at::rand({n, 5}), int64_t{-1}, false}; }

const std::vector<Case>& cases() {
  const static std::vector<Case> all = {
      {"aten::add.Tensor", [](int64_t n) { return Args{at::rand({n, 4}), at::rand({n, 4}), 1}; }},
      {"aten::add.Tensor", [](int64_t n) { return Args{at::rand({n, 4}), at::rand({4}), 1}; }},
      {"aten::add.Tensor", [](int64_t n) { return Args{at::rand({4, n}).t(), at::rand({4, n}).t(), 1}; }},
      {"aten::add_.Tensor", [](int64_t n) { return Args{at::rand({n, 4}), at::rand({n, 1}), 1}; }},
      {"aten::mul.Tensor", [](int64_t n) { return Args{at::rand({n}), at::scalar_tensor(2.0), }; }},
      {"aten::mul.Tensor", [](int64_t n) { return Args{at::rand({2, n, 3, 3}).contiguous(at::MemoryFormat::ChannelsLast), at::rand({2, n, 3, 3})}; }},
      {"aten::relu", [](int64_t n) { return Args{at::rand({n, 4})}; }},
      {"aten::abs", [](int64_t n) { return Args{at::rand({n, 4})}; }},
      {"aten::gelu", [](int64_t n) { return Args{at::rand({n, 4}), "none"}; }},
      {"aten::gt.Scalar", [](int64_t n) { return Args{at::rand({n, 4}), 0.5}; }},
      {"aten::where.self", [](int64_t n) { return Args{at::rand({n, 4}) > 0.5, at::rand({n, 4}), at::rand({n, 4})}; }},
      {"aten::threshold_backward", [](int64_t n) { return Args{at::rand({n, 4}), at::rand({n, 4}), 0}; }},
      {"aten::threshold_backward", [](int64_t n) { return Args{at::rand({4, n}).t(), at::rand({n, 4}), 0}; }},
      {"aten::threshold_backward", [](int64_t n) { return Args{at::rand({2, n, 4}), at::rand({2, 4, n}).transpose(1, 2), 0}; }},
      {"aten::where.self", [](int64_t n) { return Args{at::rand({n, 4}) > 0.5, at::rand({4, n}).t(), at::rand({n, 4})}; }},
      {"aten::rsub.Scalar", [](int64_t n) { return Args{at::rand({3, 2, n}).transpose(0, 1), 1.0, 1}; }},
      {"aten::rsub.Scalar", [](int64_t n) { return Args{at::rand({n, 3, 4, 1}).select(2, 0).unsqueeze(2), 1.0, 1}; }},
      {"aten::masked_fill.Scalar", [](int64_t n) { return Args{at::rand({4, n}).t(), at::rand({n, 4}) > 0.5, 2.0}; }},
      {"aten::masked_fill.Scalar", [](int64_t n) { return Args{at::rand({4, 1}).t(), at::rand({4, n}).t() > 0.5, 2.0}; }},
      {"aten::masked_fill.Tensor", [](int64_t n) { return Args{at::rand({4, n}).t(), at::rand({n, 1}) > 0.5, at::rand({})}; }},
      {"aten::mm", [](int64_t n) { return Args{at::rand({n, 4}), at::rand({4, n})}; }},
      {"aten::mm", [](int64_t n) { return Args{at::rand({4, n}).t(), at::rand({4, 6})}; }},
      {"aten::addmm", [](int64_t n) { return Args{at::rand({6}), at::rand({n, 4}), at::rand({6, 4}).t(), 1, 1}; }},
      {"aten::bmm", [](int64_t n) { return Args{at::rand({n, 4, 2}), at::rand({n, 2, n})}; }},
      {"aten::sum.dim_IntList", [](int64_t n) { return Args{at::rand({n, 4}), std::vector<int64_t>{0}, true, c10::IValue()}; }},
      {"aten::mean.dim", [](int64_t n) { return Args{at::rand({n, 4}), std::vector<int64_t>{1}, false, c10::IValue()}; }},
      {"aten::_index_put_impl_", [](int64_t n) { return Args{at::rand({n + 2, 4}), indices({at::arange(n)}), at::rand({n, 4}), true, true}; }},
      {"aten::_index_put_impl_", [](int64_t n) { return Args{at::rand({9, n}), indices({at::arange(3), at::zeros({3}, at::kLong)}), at::rand({}), false, true}; }},
      {"aten::index_put_", [](int64_t n) { return Args{at::rand({n, 4}), indices({std::nullopt, at::arange(2)}), at::rand({n, 1}), false}; }},
      {"aten::_softmax", &softmax_args},
      {"aten::_log_softmax", &softmax_args},
      {"aten::_softmax_backward_data", [](int64_t n) { return Args{at::rand({n, 5}), at::rand({n, 5}), int64_t{-1}, static_cast<int64_t>(at::kFloat)}; }},
      {"aten::cat", [](int64_t n) { return Args{std::vector<at::Tensor>{at::rand({n, 2}), at::rand({3, 2})}, int64_t{0}}; }},
      {"aten::sum", [](int64_t n) { return Args{at::rand({n, 4}), c10::IValue()}; }},
      {"aten::mean", [](int64_t n) { return Args{at::rand({n}), c10::IValue()}; }},
      {"aten::max", [](int64_t n) { return Args{at::rand({4, n}).t()}; }},
      {"aten::any", [](int64_t n) { return Args{at::rand({n}) > 0.5}; }},
      {"aten::embedding", [](int64_t n) { return Args{at::rand({9, 4}), at::zeros({n, 3}, at::kLong), int64_t{-1}, false, false}; }},
      {"aten::embedding_dense_backward", [](int64_t n) { return Args{at::rand({n, 4}), at::zeros({n}, at::kLong), int64_t{9}, int64_t{-1}, false}; }},
      {"aten::index_select", [](int64_t n) { return Args{at::rand({4, 9}).t(), int64_t{-2}, at::zeros({n}, at::kLong)}; }},
      {"aten::stack", [](int64_t n) { return Args{std::vector<at::Tensor>{at::rand({n, 2}), at::rand({n, 2})}, int64_t{1}}; }},
      {"aten::slice_backward", [](int64_t n) { return Args{at::rand({n, 2}), std::vector<int64_t>{40, 2}, int64_t{0}, int64_t{0}, n, int64_t{1}}; }},
      {"aten::select_backward", [](int64_t n) { return Args{at::rand({n}), std::vector<int64_t>{n, 5}, int64_t{1}, int64_t{2}}; }},
      {"aten::new_zeros", [](int64_t n) { return Args{at::rand({2}), std::vector<int64_t>{n, 5}, c10::IValue(), c10::IValue(), c10::IValue(), c10::IValue()}; }},
      {"aten::zeros_like", [](int64_t n) { return Args{at::rand({n, 3}), c10::IValue(), c10::IValue(), c10::IValue(), c10::IValue(), c10::IValue()}; }},
      {"aten::_to_copy", [](int64_t n) { return Args{at::rand({n, 3}), static_cast<int64_t>(at::kDouble), c10::IValue(), c10::IValue(), c10::IValue(), false, c10::IValue()}; }},
      {"aten::index.Tensor", [](int64_t n) { return Args{at::rand({9, 4}), indices({at::zeros({n}, at::kLong)})}; }},
      {"aten::index.Tensor", [](int64_t n) { return Args{at::rand({4, 9}).t(), indices({at::zeros({n, 2}, at::kLong)})}; }},
      {"aten::index.Tensor", [](int64_t n) { return Args{at::rand({9, n, 4}), indices({{}, at::zeros({5}, at::kLong)})}; }},
      {"aten::index.Tensor", [](int64_t n) { return Args{at::rand({9, 7}), indices({at::zeros({n}, at::kLong), at::zeros({n}, at::kLong)})}; }},
      {"aten::gather", [](int64_t n) { return Args{at::rand({n, 4}), int64_t{1}, at::zeros({n, 2}, at::kLong), false}; }},
      {"aten::index_add", [](int64_t n) { return Args{at::rand({8, 4}), int64_t{0}, at::zeros({n}, at::kLong), at::rand({n, 4}), 1}; }},
      {"aten::where.self", [](int64_t n) { return Args{at::rand({n, 1}) > 0.5, at::rand({n, 4}), at::rand({4}).unsqueeze(0)}; }},
      {"aten::masked_fill.Scalar", [](int64_t n) { return Args{at::rand({2, n, 3}), at::rand({n, 1}) > 0.5, 0.5}; }},
      {"aten::masked_fill_.Scalar", [](int64_t n) { return Args{at::rand({2, n, 3}), at::rand({n, 1}) > 0.5, 0.5}; }},
      {"aten::logical_and", [](int64_t n) { return Args{at::rand({n, 1}) > 0.5, at::rand({1, n}) > 0.5}; }},
      {"aten::copy_", [](int64_t n) { return Args{at::rand({4, n}).t(), at::rand({4}), false}; }},
      {"aten::index_put_", [](int64_t n) { return Args{at::rand({n, 4}), indices({at::rand({n}) > 0.5}), at::rand({}), false}; }},
      {"aten::cat", [](int64_t n) { return Args{std::vector<at::Tensor>(n, at::rand({2, 3})), int64_t{1}}; }},
      {"aten::stack", [](int64_t n) { return Args{std::vector<at::Tensor>(n, at::rand({2, 3})), int64_t{0}}; }},
      {"aten::zeros", [](int64_t n) { return Args{std::vector<int64_t>{n, 2}, c10::IValue(), c10::IValue(), c10::IValue(), c10::IValue()}; }},
      {"aten::randn", [](int64_t n) { return Args{std::vector<int64_t>{n, 2}, c10::IValue(), c10::IValue(), c10::IValue(), c10::IValue()}; }},
      {"aten::full", [](int64_t n) { return Args{std::vector<int64_t>{n, 2}, 0.5, c10::IValue(), c10::IValue(), c10::IValue(), c10::IValue()}; }},
      {"aten::arange", [](int64_t n) { return Args{n, c10::IValue(), c10::IValue(), c10::IValue(), c10::IValue()}; }},
      {"aten::arange.start_step", [](int64_t n) { return Args{int64_t{-3}, n, int64_t{2}, c10::IValue(), c10::IValue(), c10::IValue(), c10::IValue()}; }},
      {"aten::new_full", [](int64_t n) { return Args{at::rand({2}), std::vector<int64_t>{n, 5}, 1.0, c10::IValue(), c10::IValue(), c10::IValue(), c10::IValue()}; }},
      {"aten::bernoulli.p", [](int64_t n) { return Args{at::rand({n, 2}), 0.5, c10::IValue()}; }},
      {"aten::clone", [](int64_t n) { return Args{at::rand({n, 2}), c10::IValue()}; }},
      {"aten::clone", [](int64_t n) { return Args{at::rand({4, n, 3}).permute({2, 0, 1}), c10::IValue()}; }},
      {"aten::clone", [](int64_t n) { return Args{at::rand({4, n, 3}).slice(2, 0, 2).transpose(0, 1), c10::IValue()}; }},
      {"aten::mul.Scalar", [](int64_t n) { return Args{at::rand({4, n, 3}).permute({2, 0, 1}), 0.5}; }},
      {"aten::mul.Scalar", [](int64_t n) { return Args{at::rand({4, n, 3}).slice(2, 0, 2).transpose(0, 1), 0.5}; }},
      {"aten::bitwise_and.Tensor", [](int64_t n) { return Args{(at::rand({n}) > 0.5).expand({4, n}), (at::rand({4, 1}) > 0.5).expand({4, n})}; }},
      {"aten::where.self", [](int64_t n) { return Args{at::rand({2, 1, n, n}) > 0.5, at::rand({n, n, 4}).permute({2, 0, 1}).unsqueeze(0), at::scalar_tensor(0.0)}; }},
      {"aten::fill_.Tensor", [](int64_t n) { return Args{at::rand({4, n}).t(), at::scalar_tensor(1.0)}; }},
      {"aten::full_like", [](int64_t n) { return Args{at::rand({n, 2}), 1.0, c10::IValue(), c10::IValue(), c10::IValue(), c10::IValue(), c10::IValue()}; }},
      {"aten::cat", [](int64_t n) { return Args{std::vector<at::Tensor>{at::empty({0}), at::rand({2, n})}, int64_t{-1}}; }},
      {"aten::clone", [](int64_t n) { return Args{at::rand({2, n}).t(), static_cast<int64_t>(at::MemoryFormat::Contiguous)}; }},
      {"aten::repeat", [](int64_t n) { return Args{at::rand({2, n}), std::vector<int64_t>{3, 1, n}}; }},
      {"aten::constant_pad_nd", [](int64_t n) { return Args{at::rand({2, n, 6}), std::vector<int64_t>{n, -2, 0, 3}, 0.0}; }},
      {"aten::constant_pad_nd", [](int64_t n) { return Args{at::rand({n, 6}), std::vector<int64_t>{-2, -1, 0, 0}, 0.0}; }},
      {"aten::clone", [](int64_t n) { return Args{at::rand({9, 2 * n}).narrow(0, 0, 1).narrow(1, 0, n), c10::IValue()}; }},
      {"aten::hardtanh", [](int64_t n) { return Args{at::rand({9, 2 * n}).narrow(0, 0, 1).narrow(1, 0, n), -1, 1}; }},
      {"aten::hardtanh", [](int64_t n) { return Args{at::rand({4, n, 3}).permute({2, 0, 1}), -1, 1}; }},
      {"aten::relu6", [](int64_t n) { return Args{at::rand({9, 2 * n}).narrow(0, 0, 1).narrow(1, 0, n)}; }},
      {"aten::nan_to_num", [](int64_t n) { return Args{at::rand({9, 2 * n}).narrow(0, 0, 1).narrow(1, 0, n), c10::IValue(), c10::IValue(), c10::IValue()}; }},
      {"aten::deg2rad", [](int64_t n) { return Args{at::rand({9, 2 * n}).narrow(0, 0, 1).narrow(1, 0, n)}; }},
      {"aten::rad2deg", [](int64_t n) { return Args{at::rand({9, 2 * n}).narrow(0, 0, 1).narrow(1, 0, n)}; }},
      {"aten::flip", [](int64_t n) { return Args{at::rand({2, n}), std::vector<int64_t>{1}}; }},
      {"aten::roll", [](int64_t n) { return Args{at::rand({n, 4}), std::vector<int64_t>{1}, std::vector<int64_t>{0}}; }},
      {"aten::sort", [](int64_t n) { return Args{at::rand({n, 4}), int64_t{-1}, false}; }},
      {"aten::sort.stable", [](int64_t n) { return Args{at::rand({4, n}).t(), true, int64_t{0}, false}; }},
      {"aten::topk", [](int64_t n) { return Args{at::rand({n, 4}), int64_t{2}, int64_t{1}, true, true}; }},
      {"aten::max.dim", [](int64_t n) { return Args{at::rand({n, 4}), int64_t{1}, true}; }},
      {"aten::argmax", [](int64_t n) { return Args{at::rand({n, 4}), int64_t{1}, false}; }},
      {"aten::amax", [](int64_t n) { return Args{at::rand({n, 4}), std::vector<int64_t>{0}, false}; }},
      {"aten::any.dim", [](int64_t n) { return Args{at::rand({n, 4}) > 0.5, int64_t{1}, false}; }},
      {"aten::cumsum", [](int64_t n) { return Args{at::rand({4, n}).t(), int64_t{0}, c10::IValue()}; }},
      {"aten::triu", [](int64_t n) { return Args{at::rand({n, n}), int64_t{1}}; }},
      {"aten::prod.dim_int", [](int64_t n) { return Args{at::rand({n, 4}), int64_t{1}, false, c10::IValue()}; }},
      {"aten::linalg_vector_norm", [](int64_t n) { return Args{at::rand({n, 4}), 2.0, std::vector<int64_t>{1}, false, c10::IValue()}; }},
      {"aten::var.correction", [](int64_t n) { return Args{at::rand({n, 4}), std::vector<int64_t>{-1}, 1, true}; }},
      {"aten::var_mean.correction", [](int64_t n) { return Args{at::rand({2, n, 4}), std::vector<int64_t>{0, 2}, 1, false}; }},
      {"aten::logsumexp", [](int64_t n) { return Args{at::rand({n, 4}), std::vector<int64_t>{1}, false}; }},
      {"aten::dot", [](int64_t n) { return Args{at::rand({n}), at::rand({n})}; }},
      {"aten::mv", [](int64_t n) { return Args{at::rand({n, 4}), at::rand({4})}; }},
      {"aten::native_layer_norm", [](int64_t n) { return Args{at::rand({4, n, 3}).transpose(0, 1), std::vector<int64_t>{3}, at::rand({3}), at::rand({3}), 1e-5}; }},
      {"aten::native_layer_norm_backward", [](int64_t n) { return Args{at::rand({n, 3}), at::rand({n, 3}), std::vector<int64_t>{3}, at::rand({n, 1}), at::rand({n, 1}), at::rand({3}), at::rand({3}), flags({true, true, true})}; }},
      {"aten::native_layer_norm_backward", [](int64_t n) { return Args{at::rand({n, 3}), at::rand({n, 3}), std::vector<int64_t>{3}, at::rand({n, 1}), at::rand({n, 1}), at::rand({3}), at::rand({3}), flags({false, true, true})}; }},
      {"aten::native_group_norm", [](int64_t n) { return Args{at::rand({n, 6, n, 2}), at::rand({6}), at::rand({6}), n, int64_t{6}, 2 * n, int64_t{3}, 1e-5}; }},
      {"aten::native_group_norm_backward", [](int64_t n) { return Args{at::rand({n, 6, n, 2}), at::rand({n, 6, n, 2}), at::rand({n, 3}), at::rand({n, 3}), at::rand({6}), n, int64_t{6}, 2 * n, int64_t{3}, flags({true, true, true})}; }},
      {"aten::native_batch_norm", [](int64_t n) { return Args{at::rand({n, 6, n, 2}), at::rand({6}), at::rand({6}), at::rand({6}), at::rand({6}), true, 0.1, 1e-5}; }},
      {"aten::native_batch_norm", [](int64_t n) { return Args{at::rand({n, 6}), at::rand({6}), at::rand({6}), at::rand({6}), at::rand({6}), false, 0.1, 1e-5}; }},
      {"aten::native_batch_norm_backward", [](int64_t n) { return Args{at::rand({n, 6, n, 2}), at::rand({n, 6, n, 2}), at::rand({6}), at::rand({6}), at::rand({6}), at::rand({6}), at::rand({6}), true, 1e-5, flags({true, true, true})}; }},
      {"aten::convolution", [](int64_t n) { return convolution_args(at::rand({n, 4, n + 2, 9}), at::rand({6, 2, 3, 3}), {2, 1}, {1, 0}, {1, 2}, false, 2); }},
      {"aten::convolution", [](int64_t n) { return convolution_args(at::rand({2, 4, n, n + 1}), at::rand({4, 3, 2, 2}), {2, 2}, {0, 0}, {1, 1}, true, 1); }},
      {"aten::convolution", [](int64_t n) { return convolution_args(at::rand({2, 4, n + 2}), at::rand({5, 4, 3}), {1}, {0}, {1}, false, 1); }},
      {"aten::convolution", [](int64_t n) { return convolution_args(at::rand({n, n + 2, 4}).transpose(1, 2), at::rand({5, 4, 3}), {1}, {0}, {1}, false, 1); }},
      {"aten::convolution_backward", [](int64_t n) { return Args{at::rand({n, n + 1, 5}).transpose(1, 2), at::rand({n, n + 1, 4}).transpose(1, 2), at::rand({5, 4, 3}), c10::IValue(), std::vector<int64_t>{1}, std::vector<int64_t>{1}, std::vector<int64_t>{1}, false, std::vector<int64_t>{0}, int64_t{1}, flags({true, true, false})}; }},
      {"aten::index_put", [](int64_t n) { return Args{at::rand({n, 4}), indices({at::rand({n}) > 0.5}), at::rand({}), false}; }},
      {"aten::index_put", [](int64_t n) { return Args{at::rand({n + 2, 4}), indices({at::arange(n)}), at::rand({n, 4}), false}; }},
      {"aten::convolution_backward", [](int64_t n) { return Args{at::rand({n, 6, n, 5}), at::rand({n, 4, n, 5}), at::rand({6, 4, 3, 3}), std::vector<int64_t>{6}, std::vector<int64_t>{1, 1}, std::vector<int64_t>{1, 1}, std::vector<int64_t>{1, 1}, false, std::vector<int64_t>{0, 0}, int64_t{1}, flags({true, true, false})}; }},
      {"aten::max_pool2d_with_indices", [](int64_t n) { return Args{at::rand({n, 3, n + 2, 8}), std::vector<int64_t>{2, 2}, std::vector<int64_t>{2, 2}, std::vector<int64_t>{0, 0}, std::vector<int64_t>{1, 1}, false}; }},
      {"aten::upsample_nearest2d", [](int64_t n) { return Args{at::rand({n, 3, n, 2}), std::vector<int64_t>{2 * n, 4}, 2.0, 2.0}; }},
      {"aten::_adaptive_avg_pool2d", [](int64_t n) { return Args{at::rand({2, 3, n + 3, n + 4}), std::vector<int64_t>{2, 2}}; }},
      {"aten::_adaptive_avg_pool2d_backward", [](int64_t n) { return Args{at::rand({2, 3, 2, 2}), at::rand({2, 3, n + 3, n + 4})}; }},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", [](int64_t n) { return Args{at::rand({2, 3, n, 8}), at::rand({2, 3, n + 1, 8}), at::rand({2, 3, n + 1, 8}), 0.0, false, at::rand({2, 1, 1, n + 1}), c10::IValue()}; }},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", [](int64_t n) { return Args{at::rand({2, 3, n, 8}), at::rand({2, 3, n, 8}), at::rand({2, 3, n, 8}), at::rand({2, 3, n, 8}), at::rand({2, 3, n, 8}), at::rand({2, n, 3}).transpose(1, 2), 0.0, true, c10::IValue(), c10::IValue()}; }},
      {"aten::_safe_softmax", [](int64_t n) { return Args{at::rand({2, n, n}), int64_t{-1}, c10::IValue()}; }},
      {"aten::nll_loss_forward", [](int64_t n) { return Args{at::rand({n, 4}), at::zeros({n}, at::kLong), c10::IValue(), int64_t{1}, int64_t{-100}}; }},
      {"aten::nll_loss_forward", [](int64_t n) { return Args{at::rand({n, 4}), at::zeros({n}, at::kLong), at::rand({4}), int64_t{0}, int64_t{-100}}; }},
      {"aten::nll_loss_backward", [](int64_t n) { return Args{at::rand({}), at::rand({n, 4}), at::zeros({n}, at::kLong), c10::IValue(), int64_t{1}, int64_t{-100}, at::rand({})}; }},
      {"aten::nll_loss2d_forward", [](int64_t n) { return Args{at::rand({n, 4, n, 3}), at::zeros({n, n, 3}, at::kLong), c10::IValue(), int64_t{1}, int64_t{-100}}; }},
      {"aten::nll_loss2d_backward", [](int64_t n) { return Args{at::rand({}), at::rand({n, 4, n, 3}), at::zeros({n, n, 3}, at::kLong), c10::IValue(), int64_t{1}, int64_t{-100}, at::rand({})}; }},
      {"aten::binary_cross_entropy_with_logits", [](int64_t n) { return Args{at::rand({n, 4}), at::rand({n, 4}), c10::IValue(), at::rand({4}), int64_t{1}}; }},
      {"aten::binary_cross_entropy_with_logits", [](int64_t n) { return Args{at::rand({n, 4}), at::rand({n, 4}), c10::IValue(), c10::IValue(), int64_t{0}}; }},
      {"aten::binary_cross_entropy_backward", [](int64_t n) { return Args{at::rand({}), at::rand({n, 4}), at::rand({n, 4}), c10::IValue(), int64_t{1}}; }},
      {"aten::mse_loss", [](int64_t n) { return Args{at::rand({n, 4}), at::rand({n, 4}), int64_t{1}}; }},
      {"aten::mse_loss_backward", [](int64_t n) { return Args{at::rand({}), at::rand({n, 4}), at::rand({n, 4}), int64_t{1}}; }},
      {"aten::smooth_l1_loss_backward", [](int64_t n) { return Args{at::rand({n, 4}), at::rand({n, 4}), at::rand({n, 4}), int64_t{0}, 1.0}; }},
      {"aten::huber_loss", [](int64_t n) { return Args{at::rand({n, 4}), at::rand({n, 4}), int64_t{1}, 1.0}; }},
      {"aten::index_add_", [](int64_t n) { return Args{at::rand({8, 4}), int64_t{0}, at::zeros({n}, at::kLong), at::rand({n, 4}), 1}; }},
      {"aten::hardtanh", [](int64_t n) { return Args{at::rand({n, 4}), 0, 6}; }},
      {"aten::hardtanh_", [](int64_t n) { return Args{at::rand({n, 4}), 0, 6}; }},
      {"aten::hardtanh_backward", [](int64_t n) { return Args{at::rand({n, 4}), at::rand({n, 4}), 0, 6}; }},
      {"aten::hardsigmoid", [](int64_t n) { return Args{at::rand({n, 4})}; }},
      {"aten::hardsigmoid_backward", [](int64_t n) { return Args{at::rand({n, 4}), at::rand({n, 4})}; }},
      {"aten::hardswish", [](int64_t n) { return Args{at::rand({n, 4})}; }},
      {"aten::hardswish_backward", [](int64_t n) { return Args{at::rand({n, 4}), at::rand({n, 4})}; }},
      {"aten::hardshrink_backward", [](int64_t n) { return Args{at::rand({n, 4}), at::rand({n, 4}), 0.5}; }},
      {"aten::softshrink_backward", [](int64_t n) { return Args{at::rand({n, 4}), at::rand({n, 4}), 0.5}; }},
      {"aten::threshold_", [](int64_t n) { return Args{at::rand({n, 4}), 0, 6}; }},
      {"aten::elu_", [](int64_t n) { return Args{at::rand({n, 4}), 1, 1, 1}; }},
      {"aten::elu_backward", [](int64_t n) { return Args{at::rand({n, 4}), 1, 1, 1, false, at::rand({n, 4})}; }},
      {"aten::softplus", [](int64_t n) { return Args{at::rand({n, 4}), 1, 20}; }},
      {"aten::softplus_backward", [](int64_t n) { return Args{at::rand({n, 4}), at::rand({n, 4}), 1, 20}; }},
      {"aten::mish", [](int64_t n) { return Args{at::rand({n, 4})}; }},
      {"aten::mish_backward", [](int64_t n) { return Args{at::rand({n, 4}), at::rand({n, 4})}; }},
      {"aten::log_sigmoid_forward", [](int64_t n) { return Args{at::rand({n, 4})}; }},
      {"aten::log_sigmoid_backward", [](int64_t n) { return Args{at::rand({n, 4}), at::rand({n, 4}), at::rand({n, 4})}; }},
      {"aten::_prelu_kernel", [](int64_t n) { return Args{at::rand({2, 4, n + 1}), at::rand({1, 4, 1})}; }},
      {"aten::_prelu_kernel_backward", [](int64_t n) { return Args{at::rand({2, 4, n + 1}), at::rand({2, 4, n + 1}), at::rand({1, 4, 1})}; }},
      {"aten::clamp.Tensor", [](int64_t n) { return Args{at::rand({n, 4}), at::rand({4}), c10::IValue()}; }},
      {"aten::masked_fill.Tensor", [](int64_t n) { return Args{at::rand({n, 4}), at::rand({n, 4}) > 0.5, at::rand({})}; }},
      {"aten::pow.Scalar", [](int64_t n) { return Args{2.5, at::rand({n, 4})}; }},
      {"aten::isnan", [](int64_t n) { return Args{at::rand({n, 4})}; }},
      {"aten::smooth_l1_loss", [](int64_t n) { return Args{at::rand({n, 4}), at::rand({n, 4}), int64_t{1}, 1.0}; }},
  };
  return all;
}

std::vector<bool> nothing_varies(const graph::OpInfo& op) { return std::vector<bool>(op.args.size(), false); }

TEST(ShapeInference, SaysWhatTheOpMakes) {
  for (const auto& one : cases()) {
    const auto& op = op_named(one.op);
    auto known = signature_of(op, one.make(5));
    known.outputs = layouts_by_running(op, one.make(5));
    known.version_bumps.assign(known.inputs.size(), 1);
    for (const int64_t n : {1, 2, 3, 7, 32}) {
      const auto args = one.make(n);
      auto learned = signature_of(op, args);
      ASSERT_TRUE(infer_results(learned, known, args, nothing_varies(op))) << one.op << " " << n;
      const auto ran = layouts_by_running(op, args);
      ASSERT_EQ(learned.outputs.size(), ran.size()) << one.op;
      for (size_t i = 0; i < ran.size(); ++i) {
        EXPECT_TRUE(learned.outputs[i].same_geometry(ran[i]))
            << one.op << " " << n << ": " << learned.outputs[i].str() << " and " << ran[i].str();
        EXPECT_EQ(learned.outputs[i].storage_bytes, ran[i].storage_bytes) << one.op << " " << n;
        EXPECT_EQ(learned.outputs[i].storage_group, ran[i].storage_group);
      }
      if (learned.inputs.size() == known.inputs.size()) EXPECT_EQ(learned.version_bumps, known.version_bumps);
    }
  }
}

bool is_inferred(const char* name, const Args& before, const Args& now, std::vector<bool> varies = {}) {
  const auto& op = op_named(name);
  auto known = signature_of(op, before), learned = signature_of(op, now);
  known.outputs = layouts_by_running(op, before);
  if (varies.empty()) varies = nothing_varies(op);
  return infer_results(learned, known, now, varies);
}

TEST(ShapeInference, SaysNothingWhereItIsNotCertain) {
  const auto f = [](std::vector<int64_t> sizes) { return at::rand(sizes); };
  const auto i = [](std::vector<int64_t> sizes) { return at::zeros(sizes, at::kLong); };
  EXPECT_TRUE(is_inferred("aten::mm", {f({2, 3}), f({3, 2})}, {f({4, 3}), f({3, 2})}));
  EXPECT_FALSE(is_inferred("aten::mm", {f({2, 3}), f({3, 2})}, {f({4, 3}), f({5, 2})})) << "it will raise";
  EXPECT_FALSE(is_inferred("aten::mul.Tensor", {f({2}), f({2})}, {f({3}), i({3})})) << "another type";
  EXPECT_FALSE(is_inferred("aten::mul.Tensor", {f({2}), f({2})}, {f({3, 1}), f({3})})) << "another rank";
  EXPECT_FALSE(is_inferred("aten::masked_fill_.Scalar", {f({2}), f({2}) > 0, 1.0}, {f({3}), f({2}) > 0, 1.0})) << "it will raise";
  const auto product = [&](int64_t n, int64_t added) { return Args{f({added}), f({2, 3}), f({3, n}), 1, 1}; };
  EXPECT_TRUE(is_inferred("aten::addmm", product(4, 4), product(5, 5)));
  EXPECT_FALSE(is_inferred("aten::addmm", product(4, 4), product(5, 4))) << "it will raise";
  const auto norm = [&](std::vector<int64_t> sizes, int64_t width) {
    return Args{f(sizes), std::vector<int64_t>{width}, f({3}), f({3}), 1e-5};
  };
  EXPECT_FALSE(is_inferred("aten::native_layer_norm", norm({2, 3}, 3), norm({2, 4}, 3))) << "it will raise";
  const auto convolution = [&](int64_t channels, int64_t width) {
    return convolution_args(f({2, channels, width}), f({5, 4, 3}), {1}, {0}, {1}, false, 1);
  };
  EXPECT_TRUE(is_inferred("aten::convolution", convolution(4, 6), convolution(4, 3)));
  EXPECT_FALSE(is_inferred("aten::convolution", convolution(4, 6), {f({2, 3, 6}), f({5, 4, 3}), f({5}), std::vector<int64_t>{1}, std::vector<int64_t>{0}, std::vector<int64_t>{1}, false, std::vector<int64_t>{0}, int64_t{1}})) << "other channels: it will raise";
  const auto narrow = [&](int64_t length) {
    return convolution_args(f({2, length, 4}).transpose(1, 2), f({5, 4, 1}), {1}, {0}, {1}, false, 1);
  };
  EXPECT_TRUE(is_inferred("aten::convolution", narrow(6), narrow(2)));
  EXPECT_FALSE(is_inferred("aten::convolution", narrow(6), narrow(1))) << "its dims have no order";
  EXPECT_FALSE(is_inferred("aten::convolution", convolution(4, 6), {f({2, 4, 2}), f({5, 4, 3}), f({5}), std::vector<int64_t>{1}, std::vector<int64_t>{0}, std::vector<int64_t>{1}, false, std::vector<int64_t>{0}, int64_t{1}})) << "narrower than the kernel: it will raise";
  EXPECT_FALSE(is_inferred("aten::add_.Tensor", {f({2}), f({2}), 1}, {f({1}), f({3}), 1})) << "it will raise";
  EXPECT_FALSE(is_inferred("aten::bernoulli", {f({2}), c10::IValue()}, {f({3}), c10::IValue()})) << "values that are no probabilities";
  const auto normal = [&](int64_t n, double mean, double deviation) { return Args{f({n}), mean, deviation, c10::IValue()}; };
  const std::vector<bool> both_vary = {false, true, true, false};
  EXPECT_TRUE(is_inferred("aten::normal_", normal(2, 0.0, 1.0), normal(2, 1.0, 0.5), both_vary));
  EXPECT_FALSE(is_inferred("aten::normal_", normal(2, 0.0, 1.0), normal(2, 1.0, -0.5), both_vary)) << "it will raise";
  EXPECT_TRUE(is_inferred("aten::uniform_", normal(2, 0.0, 1.0), normal(2, -1.0, 0.5), both_vary));
  EXPECT_FALSE(is_inferred("aten::uniform_", normal(2, 0.0, 1.0), normal(2, 1.0, 0.5), both_vary)) << "it will raise";
  EXPECT_FALSE(is_inferred("aten::exponential_", {f({2}), 1.0, c10::IValue()}, {f({2}), -1.0, c10::IValue()}, {false, true, false}));
  EXPECT_TRUE(is_inferred("aten::bernoulli_.float", {f({2}), 0.5, c10::IValue()}, {f({3}), 0.5, c10::IValue()}))
      << "it draws, and nothing comes out";
  const auto put = [](const at::Tensor& index, const at::Tensor& values) {
    return Args{at::rand({4, 4}), indices({index}), values, false};
  };
  EXPECT_FALSE(is_inferred("aten::index_put_", put(at::arange(2), f({2, 4})), put(at::arange(3), f({2, 4})))) << "it will raise";
  EXPECT_FALSE(is_inferred("aten::index_put_", put(at::arange(2), f({2, 4})), put(at::arange(3), i({3, 4})))) << "another type";
  EXPECT_FALSE(is_inferred("aten::index_put_", put(at::ones({4}, at::kBool), f({4, 4})), put(at::ones({4}, at::kBool), f({1, 4}))))
      << "how many are true";
  EXPECT_FALSE(is_inferred("aten::index_put_", put(at::ones({4}, at::kBool), f({})), put(at::ones({3}, at::kBool), f({}))))
      << "it will raise";
  EXPECT_FALSE(is_inferred("aten::sum", {f({2}), c10::IValue()}, {f({3}), c10::IValue()}, {false, true})) << "another type";
  EXPECT_FALSE(is_inferred("aten::max", {f({2})}, {f({0})})) << "it will raise";
  const auto elu = [&](int64_t n, double alpha) { return Args{f({n}), alpha, 1, 1, true, f({n})}; };
  EXPECT_TRUE(is_inferred("aten::elu_backward", elu(2, 1), elu(3, 1)));
  EXPECT_FALSE(is_inferred("aten::elu_backward", elu(2, 1), elu(3, -1), {false, true, false, false, false, false})) << "it will raise";
  EXPECT_FALSE(is_inferred("aten::hardswish_backward", {f({2}), f({2})}, {f({2}), f({3})})) << "it will raise";
  const auto spread = at::rand({1, 4}).expand({3, 4});
  EXPECT_FALSE(is_inferred("aten::index_put_", put(at::arange(2), f({2, 4})), {spread, indices({at::arange(3)}), f({3, 4}), false}))
      << "it warns";
  auto written = signature_of(op_named("aten::add_.Tensor"), {f({2, 4}), f({2, 4}), 1}), again = written;
  again.inputs[0] = graph::layout_of(spread);
  again.inputs[1] = graph::layout_of(f({3, 4}));
  EXPECT_FALSE(infer_results(again, written, {spread, f({3, 4}), 1}, {false, false, false})) << "it will raise";
  EXPECT_FALSE(is_inferred("aten::nonzero", {f({2})}, {f({3})})) << "it depends on data";
  EXPECT_FALSE(is_inferred("aten::clone", {f({2, 2}), c10::IValue()}, {f({3, 2}), c10::IValue()}, {false, true}))
      << "the memory format varies";
  EXPECT_TRUE(is_inferred("aten::mul.Scalar", {i({2}), 2}, {i({3}), 3}));
  EXPECT_FALSE(is_inferred("aten::mul.Scalar", {i({2}), 2.5}, {i({3}), 2})) << "another type";
  EXPECT_FALSE(is_inferred("aten::mul.Scalar", {i({2}), 2}, {i({3}), 2.5})) << "another type";
  EXPECT_TRUE(is_inferred("aten::masked_fill_.Scalar", {i({2}), i({2}) > 0, 1}, {i({3}), i({3}) > 0, -100}));
  EXPECT_FALSE(is_inferred("aten::masked_fill_.Scalar", {i({2}), i({2}) > 0, 1}, {i({3}), i({3}) > 0, 0.5})) << "it will raise";
}

// Which operand's order of dims the result follows is not known of all kernels: known results say it, or leave it open.
TEST(ShapeInference, SaysNothingWhereOperandsDisagreeOnTheOrder) {
  const auto f = [](std::vector<int64_t> sizes) { return at::rand(sizes); };
  const auto other = [](int64_t n) { return at::rand({5, n}).t(); };
  const auto both = [](const at::Tensor& a, const at::Tensor& b) { return Args{a > 0.5, b > 0.5}; };
  const auto spread = f({}).expand({3, 5});
  EXPECT_TRUE(is_inferred("aten::logical_and", both(other(3), other(3)), both(other(4), other(4))));
  EXPECT_TRUE(is_inferred("aten::logical_and", both(other(3), f({3, 5})), both(other(4), f({4, 5}))));
  EXPECT_FALSE(is_inferred("aten::logical_and", both(spread, other(3)), both(other(4), f({4, 5}))));
  EXPECT_FALSE(is_inferred("aten::logical_and", both(f({3, 5}), f({3, 5})), both(other(4), other(4))))
      << "a kernel that makes a dense copy would have had the same result";
  const auto relu = [](const at::Tensor& gradient, const at::Tensor& self) { return Args{gradient, self, 0}; };
  const auto& op = op_named("aten::threshold_backward");
  const auto before = relu(f({}).expand({3, 5}), f({3, 5})), now = relu(other(4), f({4, 5}));
  auto known = signature_of(op, before), learned = signature_of(op, now);
  known.outputs = layouts_by_running(op, before);
  ASSERT_TRUE(infer_results(learned, known, now, nothing_varies(op)));
  EXPECT_TRUE(learned.outputs[0].same_geometry(layouts_by_running(op, now)[0])) << learned.outputs[0].str();
  EXPECT_FALSE(is_inferred("aten::masked_fill.Scalar", {f({2, 3}), f({2, 3}) > 0, 1.0}, {f({2, 3}), f({3, 3}) > 0, 1.0}))
      << "it will raise";
}

// A map of one pixel lies the same in both orders.
TEST(ShapeInference, SaysNothingWhereAnotherOrderIsAskedFor) {
  const auto none = c10::IValue();
  const auto last = static_cast<int64_t>(at::MemoryFormat::ChannelsLast);
  const auto plain = static_cast<int64_t>(at::MemoryFormat::Contiguous);
  const auto dot = at::rand({2, 1, 1, 1}), map = at::rand({2, 3, 4, 4});
  for (const char* name : {"aten::zeros_like", "aten::ones_like", "aten::rand_like"}) {
    EXPECT_FALSE(is_inferred(name, {dot, none, none, none, none, last}, {map, none, none, none, none, last})) << name;
    EXPECT_TRUE(is_inferred(name, {dot, none, none, none, none, plain}, {map, none, none, none, none, plain})) << name;
  }
  EXPECT_FALSE(is_inferred("aten::_to_copy", {dot, none, none, none, none, false, last},
                           {map, none, none, none, none, false, last}));
  EXPECT_FALSE(is_inferred("aten::full_like", {dot, 2, none, none, none, none, last},
                           {map, 2, none, none, none, none, last}));
}

TEST(ShapeInference, WhatWasEmptyAloneProvesNothing) {
  const auto& op = op_named("aten::relu");
  const Args before = {at::rand({0})}, now = {at::rand({3})};
  auto known = signature_of(op, before), learned = signature_of(op, now);
  known.outputs = layouts_by_running(op, before);
  known.is_vacuous = true;
  EXPECT_FALSE(infer_results(learned, known, now, nothing_varies(op)));

  graph::Node node;
  node.note_signature(&known);
  const auto proven = signature_of(op, now);
  node.note_signature(&proven);
  EXPECT_FALSE(known.is_vacuous);
  EXPECT_TRUE(infer_results(learned, known, now, nothing_varies(op)));
}

TEST(ShapeInference, WhatAnOpWarnedOfRunsAgain) {
  const auto& op = op_named("aten::relu");
  const Args args = {at::rand({3})};
  auto known = signature_of(op, {at::rand({2})}), learned = signature_of(op, args);
  known.outputs = layouts_by_running(op, {at::rand({2})});
  known.warns = true;
  EXPECT_FALSE(infer_results(learned, known, args, nothing_varies(op)));
}

}  // namespace
}  // namespace lockstep::dynamic
