#include "dynamic/kernels/kernel_table.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>

#include "dynamic/kernels/attention.h"
#include "dynamic/kernels/batch_norm.h"
#include "dynamic/kernels/concatenation.h"
#include "dynamic/kernels/convolution.h"
#include "dynamic/kernels/foreach_loops.h"
#include "dynamic/kernels/group_norm.h"
#include "dynamic/kernels/optimizer_steps.h"
#include "dynamic/kernels/padding.h"
#include "dynamic/kernels/product.h"
#include "dynamic/kernels/reductions.h"

namespace lockstep::dynamic {

namespace {

constexpr OwnKernelRow kMeasured[] = {
    {"aten::mm", "", &try_mm},
    {"aten::addmm", "", &try_addmm},
    {"aten::bmm", "", &try_bmm},
    {"aten::convolution", "", nullptr, &try_convolution},
    {"aten::convolution_backward", "", nullptr, &try_convolution_backward},
    {"aten::native_batch_norm", "", nullptr, &try_batch_norm},
    {"aten::native_batch_norm_backward", "", nullptr, &try_batch_norm_backward, true},
    {"aten::native_group_norm", "", nullptr, &try_group_norm},
    {"aten::native_group_norm_backward", "", nullptr, &try_group_norm_backward, true},
    {"aten::_foreach_norm", "Scalar", &try_foreach_norm},
    {"aten::var", "correction", &try_variance},
    {"aten::std", "correction", &try_deviation},
    {"aten::linalg_vector_norm", "", &try_vector_norm},
    {"aten::_scaled_dot_product_flash_attention_for_cpu", "", &try_attention},
    {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", "", &try_attention_backward},
};

constexpr OwnKernelRow kJoined[] = {
    {"aten::_fused_adam_", "", &try_adam_step},
    {"aten::_fused_adamw_", "", &try_adamw_step},
    {"aten::_fused_sgd_", "", &try_sgd_step},
    {"aten::_fused_adagrad_", "", &try_adagrad_step},
    {"lockstep::_fused_rmsprop_", "", &try_rmsprop_step},
};

// Beside those, with the same bits as PyTorch's.
constexpr OwnKernelRow kJoinedExact[] = {
    {"aten::_foreach_add_", "Scalar", &try_count_steps},
};

constexpr OwnKernelRow kExact[] = {
    {"aten::cat", "", &try_cat},
    {"aten::stack", "", &try_stack},
    {"aten::constant_pad_nd", "", &try_constant_pad},
    {"aten::slice_backward", "", &try_slice_backward},
    {"aten::select_backward", "", &try_select_backward},
    {"aten::_foreach_mul_", "Tensor", &try_foreach_scale},
};

constexpr struct {
  const char* name;
  bool is_product;  // of matrices, and nothing beside
} kMultiply[] = {
    {"aten::mm", true},
    {"aten::addmm", true},
    {"aten::bmm", true},
    {"aten::baddbmm", true},
    {"aten::convolution", false},
    {"aten::convolution_backward", false},
    {"aten::_scaled_dot_product_flash_attention_for_cpu", false},
    {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", false},
};

// PyTorch's own kernels for these keep the order of their maps.
constexpr struct {
  const char* name;
  const char* overload;
  bool adds_up;  // so that the order shows in the last bits
} kKeepOrder[] = {
    {"aten::max_pool2d_with_indices", "", false},
    {"aten::max_pool2d_with_indices_backward", "", true},
    {"aten::avg_pool2d", "", true},
    {"aten::avg_pool2d_backward", "", true},
    {"aten::_adaptive_avg_pool2d", "", true},
    {"aten::_adaptive_avg_pool2d_backward", "", true},
    {"aten::upsample_nearest2d", "", false},
    {"aten::upsample_nearest2d_backward", "", true},
    {"aten::cat", "", false},
    {"aten::mean", "dim", true},
    {"aten::sum", "dim_IntList", true},
};

struct KernelFacts {
  const OwnKernelRow* row = nullptr;
  bool is_joined = false, is_measured = false, multiplies = false, is_product = false;
  bool raises_versions = false;  // PyTorch's kernel does, by the ops that it calls for each tensor
  MapOrder order = MapOrder::kPlanes;
  bool may_round_otherwise = false;
};

// Infos live for ever, so that an address is a name.
const KernelFacts& find_facts(const graph::OpInfo& op) {
  thread_local std::unordered_map<const graph::OpInfo*, KernelFacts> known;
  const auto [place, is_new] = known.try_emplace(&op);
  if (!is_new) return place->second;
  const auto is_named = [&](const char* name, const char* overload) {
    return op.handle.operator_name() == c10::OperatorName(name, overload);
  };
  auto& facts = place->second;
  const auto find_row = [&](std::span<const OwnKernelRow> rows) {
    for (const auto& row : rows)
      if (is_named(row.name, row.overload)) return &row;
    return static_cast<const OwnKernelRow*>(nullptr);
  };
  facts.row = find_row(joined_kernels());
  if (!facts.row) facts.row = find_row(measured_kernels());
  facts.is_measured = find_row(measured_kernels()) != nullptr;
  for (const auto& [name, is_product] : kMultiply) {
    if (!is_named(name, "")) continue;
    facts.multiplies = true;
    facts.is_product = is_product;
  }
  facts.may_round_otherwise = facts.row != nullptr || facts.multiplies;
  if (!facts.row) facts.row = find_row(kJoinedExact);
  facts.raises_versions = find_row(kJoinedExact) != nullptr;
  facts.is_joined = find_row(joined_kernels()) || facts.raises_versions;
  if (!facts.row) facts.row = find_row(random_kernels());
  if (!facts.row) facts.row = find_row(exact_kernels());
  if (facts.row && facts.row->map_kernel) facts.order = MapOrder::kAny;
  for (const auto& [name, overload, adds_up] : kKeepOrder) {
    if (!is_named(name, overload)) continue;
    facts.order = MapOrder::kAllAlike;
    facts.may_round_otherwise = adds_up;
  }
  return facts;
}

void raise_versions(const c10::List<at::Tensor>& tensors) {
  if (c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::ADInplaceOrView)) return;
  for (const at::Tensor& tensor : tensors)
    if (counts_versions(tensor)) tensor.unsafeGetTensorImpl()->bump_version();
}

}  // namespace

std::span<const OwnKernelRow> measured_kernels() { return kMeasured; }
std::span<const OwnKernelRow> joined_kernels() { return kJoined; }
std::span<const OwnKernelRow> exact_kernels() { return kExact; }

const OwnKernelRow* find_own_kernel(const graph::OpInfo& op) { return find_facts(op).row; }

bool is_measured(const graph::OpInfo& op) { return find_facts(op).is_measured; }

bool multiplies(const graph::OpInfo& op) { return find_facts(op).multiplies; }

bool is_product(const graph::OpInfo& op) { return find_facts(op).is_product; }

bool try_run_joined(const graph::OpInfo& op, torch::jit::Stack& stack) {
  if (op.args.empty() || op.args[0].kind != graph::ArgKind::kTensorList) return false;
  const auto& facts = find_facts(op);
  if (!facts.is_joined) return false;
  const auto args = torch::jit::last(stack, op.args.size());
  torch::jit::Stack own(args.begin(), args.end());
  if (!facts.row->run(own)) return false;
  if (facts.raises_versions) raise_versions(args[0].toTensorList());
  torch::jit::drop(stack, op.args.size());  // and nothing is returned
  return true;
}

MapOrder map_order_of(const graph::OpInfo& op) { return find_facts(op).order; }

bool may_round_otherwise(const graph::OpInfo& op) { return find_facts(op).may_round_otherwise; }

}  // namespace lockstep::dynamic
