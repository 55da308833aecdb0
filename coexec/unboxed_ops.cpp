// The ops that come unboxed: those that training steps ask for most. All others take the boxed way, which does the same.
#include <ATen/ops/_log_softmax_backward_data_ops.h>
#include <ATen/ops/_log_softmax_ops.h>
#include <ATen/ops/_reshape_alias_ops.h>
#include <ATen/ops/_softmax_backward_data_ops.h>
#include <ATen/ops/_softmax_ops.h>
#include <ATen/ops/_to_copy_ops.h>
#include <ATen/ops/_unsafe_view_ops.h>
#include <ATen/ops/abs_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addcdiv_ops.h>
#include <ATen/ops/addcmul_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/alias_ops.h>
#include <ATen/ops/amax_ops.h>
#include <ATen/ops/arange_ops.h>
#include <ATen/ops/argmax_ops.h>
#include <ATen/ops/as_strided_ops.h>
#include <ATen/ops/baddbmm_ops.h>
#include <ATen/ops/bitwise_and_ops.h>
#include <ATen/ops/bitwise_not_ops.h>
#include <ATen/ops/bitwise_or_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/cat_ops.h>
#include <ATen/ops/clamp_max_ops.h>
#include <ATen/ops/clamp_min_ops.h>
#include <ATen/ops/clamp_ops.h>
#include <ATen/ops/clone_ops.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/cos_ops.h>
#include <ATen/ops/detach_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/dot_ops.h>
#include <ATen/ops/elu_ops.h>
#include <ATen/ops/embedding_dense_backward_ops.h>
#include <ATen/ops/empty_like_ops.h>
#include <ATen/ops/empty_ops.h>
#include <ATen/ops/empty_strided_ops.h>
#include <ATen/ops/eq_ops.h>
#include <ATen/ops/exp_ops.h>
#include <ATen/ops/expand_ops.h>
#include <ATen/ops/fill_ops.h>
#include <ATen/ops/full_like_ops.h>
#include <ATen/ops/full_ops.h>
#include <ATen/ops/ge_ops.h>
#include <ATen/ops/gelu_backward_ops.h>
#include <ATen/ops/gelu_ops.h>
#include <ATen/ops/gt_ops.h>
#include <ATen/ops/hardtanh_ops.h>
#include <ATen/ops/le_ops.h>
#include <ATen/ops/leaky_relu_backward_ops.h>
#include <ATen/ops/leaky_relu_ops.h>
#include <ATen/ops/lerp_ops.h>
#include <ATen/ops/linalg_vector_norm_ops.h>
#include <ATen/ops/log_ops.h>
#include <ATen/ops/logical_and_ops.h>
#include <ATen/ops/logical_not_ops.h>
#include <ATen/ops/logical_or_ops.h>
#include <ATen/ops/lt_ops.h>
#include <ATen/ops/masked_fill_ops.h>
#include <ATen/ops/max_ops.h>
#include <ATen/ops/maximum_ops.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/minimum_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mse_loss_backward_ops.h>
#include <ATen/ops/mse_loss_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/mv_ops.h>
#include <ATen/ops/native_batch_norm_backward_ops.h>
#include <ATen/ops/native_dropout_backward_ops.h>
#include <ATen/ops/native_layer_norm_backward_ops.h>
#include <ATen/ops/native_layer_norm_ops.h>
#include <ATen/ops/ne_ops.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/new_empty_ops.h>
#include <ATen/ops/new_empty_strided_ops.h>
#include <ATen/ops/new_zeros_ops.h>
#include <ATen/ops/ones_like_ops.h>
#include <ATen/ops/ones_ops.h>
#include <ATen/ops/permute_ops.h>
#include <ATen/ops/pow_ops.h>
#include <ATen/ops/reciprocal_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/rsub_ops.h>
#include <ATen/ops/scalar_tensor_ops.h>
#include <ATen/ops/select_backward_ops.h>
#include <ATen/ops/select_ops.h>
#include <ATen/ops/sigmoid_backward_ops.h>
#include <ATen/ops/sigmoid_ops.h>
#include <ATen/ops/silu_backward_ops.h>
#include <ATen/ops/silu_ops.h>
#include <ATen/ops/sin_ops.h>
#include <ATen/ops/slice_backward_ops.h>
#include <ATen/ops/slice_ops.h>
#include <ATen/ops/softplus_ops.h>
#include <ATen/ops/split_ops.h>
#include <ATen/ops/split_with_sizes_ops.h>
#include <ATen/ops/sqrt_ops.h>
#include <ATen/ops/squeeze_ops.h>
#include <ATen/ops/stack_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/t_ops.h>
#include <ATen/ops/tanh_backward_ops.h>
#include <ATen/ops/tanh_ops.h>
#include <ATen/ops/threshold_backward_ops.h>
#include <ATen/ops/transpose_ops.h>
#include <ATen/ops/unbind_ops.h>
#include <ATen/ops/unfold_ops.h>
#include <ATen/ops/unsqueeze_ops.h>
#include <ATen/ops/view_ops.h>
#include <ATen/ops/where_ops.h>
#include <ATen/ops/zero_ops.h>
#include <ATen/ops/zeros_like_ops.h>
#include <ATen/ops/zeros_ops.h>
#include <torch/library.h>

#include <string_view>

#include "coexec/unboxed.h"

namespace lockstep::coexec {

namespace {

template <class Op>
void add(torch::Library& library) {
  std::string name = std::string(Op::name).substr(std::string_view("aten::").size());
  if (*Op::overload_name) name += std::string(".") + Op::overload_name;
  library.impl(name.c_str(), TORCH_FN((&Unboxed<Op>::run)));
}

template <class... Ops>
void add_all(torch::Library& library) {
  (add<Ops>(library), ...);
}

namespace ops = at::_ops;

void add_table(torch::Library& library) {
  // views
  add_all<
      ops::view, ops::t, ops::transpose_int, ops::permute, ops::expand, ops::as_strided, ops::slice_Tensor,
      ops::select_int, ops::unsqueeze, ops::squeeze_dim, ops::squeeze, ops::detach, ops::alias, ops::_unsafe_view,
      ops::_reshape_alias, ops::split_Tensor, ops::split_with_sizes, ops::unbind_int, ops::unfold>(library);
  // memory without contents
  add_all<
      ops::empty_memory_format, ops::empty_like, ops::empty_strided, ops::new_empty, ops::new_empty_strided>(library);
  // elementwise
  add_all<
      ops::add_Tensor, ops::sub_Tensor, ops::mul_Tensor, ops::div_Tensor, ops::add_Scalar, ops::mul_Scalar,
      ops::sub_Scalar, ops::rsub_Scalar, ops::div_Scalar, ops::neg, ops::abs, ops::exp, ops::log, ops::sqrt,
      ops::rsqrt, ops::reciprocal, ops::sin, ops::cos, ops::tanh, ops::sigmoid, ops::relu, ops::gelu, ops::silu,
      ops::leaky_relu, ops::elu, ops::softplus, ops::hardtanh, ops::pow_Tensor_Scalar, ops::clamp, ops::clamp_min,
      ops::clamp_max, ops::maximum, ops::minimum, ops::where_self, ops::lerp_Scalar, ops::addcmul, ops::addcdiv,
      ops::masked_fill_Scalar, ops::eq_Tensor, ops::eq_Scalar, ops::ne_Tensor, ops::ne_Scalar, ops::lt_Tensor,
      ops::lt_Scalar, ops::le_Tensor, ops::le_Scalar, ops::gt_Tensor, ops::gt_Scalar, ops::ge_Tensor, ops::ge_Scalar,
      ops::logical_not, ops::logical_and, ops::logical_or, ops::bitwise_not, ops::bitwise_and_Tensor,
      ops::bitwise_or_Tensor>(library);
  // elementwise, in place
  add_all<
      ops::add__Tensor, ops::sub__Tensor, ops::mul__Tensor, ops::div__Tensor, ops::add__Scalar, ops::mul__Scalar,
      ops::sqrt_, ops::relu_, ops::lerp__Scalar, ops::addcmul_, ops::addcdiv_, ops::masked_fill__Scalar, ops::clamp_,
      ops::clamp_min_, ops::fill__Scalar, ops::fill__Tensor, ops::zero_, ops::copy_>(library);
  // gradients
  add_all<
      ops::threshold_backward, ops::tanh_backward, ops::sigmoid_backward, ops::gelu_backward, ops::silu_backward,
      ops::leaky_relu_backward, ops::_softmax_backward_data, ops::_log_softmax_backward_data,
      ops::native_layer_norm_backward, ops::native_batch_norm_backward, ops::native_dropout_backward,
      ops::select_backward, ops::slice_backward, ops::embedding_dense_backward, ops::mse_loss_backward>(library);
  // reductions and what is made of them
  add_all<
      ops::sum, ops::sum_dim_IntList, ops::mean, ops::mean_dim, ops::amax, ops::max_dim, ops::argmax,
      ops::linalg_vector_norm, ops::_softmax, ops::_log_softmax, ops::native_layer_norm, ops::mse_loss>(library);
  // products
  add_all<
      ops::mm, ops::addmm, ops::bmm, ops::baddbmm, ops::mv, ops::dot>(library);
  // copies and constants
  add_all<
      ops::clone, ops::_to_copy, ops::cat, ops::stack, ops::zeros, ops::ones, ops::full, ops::zeros_like,
      ops::ones_like, ops::full_like, ops::new_zeros, ops::scalar_tensor, ops::arange_start_step>(library);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, Fake, library) { add_table(library); }

}  // namespace lockstep::coexec
