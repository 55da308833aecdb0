// Corrections to the effects that schema and tags declare. Each was found by comparing contents, storages and
// generators before and after over PyTorch's operator database (tests/python/test_effects.py keeps watch).
#include "graph/op_info.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <unordered_map>

namespace lockstep::graph {

namespace {

using Correction = std::function<void(OpInfo&)>;

Correction as_kind(OpKind kind) {
  return [kind](OpInfo& info) { info.kind = kind; };
}
Correction check_values(ValueCheck check) {
  return [check](OpInfo& info) { info.value_check = check; };
}
Correction writes_args(std::vector<int> which) {
  return [which](OpInfo& info) {
    for (int i : which) info.args[i].is_written = true;
    info.writes = true;
  };
}

// Keyed by name without overload.
const std::unordered_map<std::string, Correction>& corrections() {
  static const auto* table = new std::unordered_map<std::string, Correction>{
      // alias undeclared
      {"aten::_unsafe_view", as_kind(OpKind::kView)},
      {"aten::unsafe_split", as_kind(OpKind::kView)},
      {"aten::unsafe_split_with_sizes", as_kind(OpKind::kView)},
      {"aten::unsafe_chunk", as_kind(OpKind::kView)},
      {"aten::_reshape_alias", as_kind(OpKind::kView)},
      {"aten::lift", as_kind(OpKind::kView)},
      {"aten::lift_fresh", as_kind(OpKind::kView)},
      // memory without contents
      {"aten::empty", as_kind(OpKind::kAllocate)},
      {"aten::empty_like", as_kind(OpKind::kAllocate)},
      {"aten::empty_strided", as_kind(OpKind::kAllocate)},
      {"aten::empty_permuted", as_kind(OpKind::kAllocate)},
      {"aten::new_empty", as_kind(OpKind::kAllocate)},
      {"aten::new_empty_strided", as_kind(OpKind::kAllocate)},
      // host values that need no data
      {"aten::_has_compatible_shallow_copy_type", as_kind(OpKind::kHostMeta)},
      {"aten::is_same_size", as_kind(OpKind::kHostMeta)},
      {"aten::is_set_to", as_kind(OpKind::kHostMeta)},
      {"aten::_has_same_storage_numel", as_kind(OpKind::kHostMeta)},
      {"aten::is_pinned", as_kind(OpKind::kHostMeta)},
      {"aten::_is_zerotensor", as_kind(OpKind::kHostMeta)},
      {"aten::_nested_tensor_size", as_kind(OpKind::kEager)},
      {"aten::qscheme", as_kind(OpKind::kHostMeta)},
      {"aten::sym_size", as_kind(OpKind::kHostMeta)},
      {"aten::sym_stride", as_kind(OpKind::kHostMeta)},
      {"aten::sym_numel", as_kind(OpKind::kHostMeta)},
      {"aten::sym_storage_offset", as_kind(OpKind::kHostMeta)},
      {"aten::sym_is_contiguous", as_kind(OpKind::kHostMeta)},
      {"aten::_fused_sdp_choice", as_kind(OpKind::kHostMeta)},
      // storages change hands, or the kernel sees more than its arguments
      {"aten::set_", as_kind(OpKind::kEager)},
      {"aten::set", as_kind(OpKind::kEager)},
      {"aten::resize_", as_kind(OpKind::kEager)},
      {"aten::resize_as_", as_kind(OpKind::kEager)},
      {"aten::_resize_output_", as_kind(OpKind::kEager)},
      {"aten::resize", as_kind(OpKind::kEager)},
      {"aten::_lazy_clone", as_kind(OpKind::kEager)},
      {"aten::_lazy_clone_alias", as_kind(OpKind::kEager)},
      {"aten::_efficientzerotensor", as_kind(OpKind::kEager)},
      {"aten::from_file", as_kind(OpKind::kEager)},
      {"aten::_pin_memory", as_kind(OpKind::kEager)},
      {"aten::_assert_async", as_kind(OpKind::kHost)},
      {"aten::_functional_assert_async", as_kind(OpKind::kHost)},
      {"aten::_assert_scalar", as_kind(OpKind::kHost)},
      {"aten::_print", as_kind(OpKind::kHost)},
      {"aten::lstm_mps", as_kind(OpKind::kEager)},
      // read lengths on the host
      {"aten::_pack_padded_sequence", as_kind(OpKind::kHost)},
      {"aten::_pad_packed_sequence", as_kind(OpKind::kHost)},
      {"aten::_ctc_loss", as_kind(OpKind::kHost)},
      {"aten::segment_reduce", as_kind(OpKind::kHost)},
      {"aten::_segment_reduce_backward", as_kind(OpKind::kHost)},
      // asks whether self wants gradients, which the runner's tensors do not
      {"aten::as_strided_scatter", as_kind(OpKind::kHost)},
      // where the argument lies in its storage, and how large that is, comes back
      {"aten::slice_scatter", as_kind(OpKind::kHost)},
      {"aten::select_scatter", as_kind(OpKind::kHost)},
      {"aten::diagonal_scatter", as_kind(OpKind::kHost)},
      {"aten::copy", as_kind(OpKind::kHost)},
      // writes undeclared
      {"aten::native_batch_norm", writes_args({3, 4})},
      {"aten::batch_norm_update_stats", writes_args({1, 2})},
      {"aten::rrelu_with_noise", [](OpInfo& i) { i.args[1].is_written = i.writes = true; }},
      {"aten::rrelu_with_noise_", [](OpInfo& i) { i.args[1].is_written = i.writes = true; }},
      {"aten::_fused_moving_avg_obs_fq_helper", as_kind(OpKind::kEager)},
      {"aten::fused_moving_avg_obs_fake_quant", as_kind(OpKind::kEager)},
      {"aten::embedding_renorm_", as_kind(OpKind::kEager)},
      {"aten::_sobol_engine_draw", as_kind(OpKind::kEager)},
      // may fail by value
      {"aten::embedding", check_values(ValueCheck::kIndex)},
      {"aten::index_select", check_values(ValueCheck::kIndex)},
      {"aten::gather", check_values(ValueCheck::kIndex)},
      {"aten::index", check_values(ValueCheck::kIndex)},
      {"aten::index_put_", check_values(ValueCheck::kIndex)},
      {"aten::index_put", check_values(ValueCheck::kIndex)},
      {"aten::_index_put_impl_", check_values(ValueCheck::kIndex)},
      {"aten::_unsafe_index", check_values(ValueCheck::kIndex)},
      {"aten::_unsafe_index_put", check_values(ValueCheck::kIndex)},
      {"aten::scatter", check_values(ValueCheck::kIndex)},
      {"aten::scatter_", check_values(ValueCheck::kIndex)},
      {"aten::scatter_add", check_values(ValueCheck::kIndex)},
      {"aten::scatter_add_", check_values(ValueCheck::kIndex)},
      {"aten::scatter_reduce", check_values(ValueCheck::kIndex)},
      {"aten::scatter_reduce_", check_values(ValueCheck::kIndex)},
      {"aten::index_add", check_values(ValueCheck::kIndex)},
      {"aten::index_add_", check_values(ValueCheck::kIndex)},
      {"aten::index_copy", check_values(ValueCheck::kIndex)},
      {"aten::index_copy_", check_values(ValueCheck::kIndex)},
      {"aten::index_fill", check_values(ValueCheck::kIndex)},
      {"aten::index_fill_", check_values(ValueCheck::kIndex)},
      {"aten::index_reduce", check_values(ValueCheck::kIndex)},
      {"aten::index_reduce_", check_values(ValueCheck::kIndex)},
      {"aten::take", check_values(ValueCheck::kIndex)},
      {"aten::put", check_values(ValueCheck::kIndex)},
      {"aten::put_", check_values(ValueCheck::kIndex)},
      {"aten::fill", check_values(ValueCheck::kNumber)},
      {"aten::fill_", check_values(ValueCheck::kNumber)},
      {"aten::masked_fill", check_values(ValueCheck::kNumber)},
      {"aten::masked_fill_", check_values(ValueCheck::kNumber)},
      {"aten::nll_loss_forward", check_values(ValueCheck::kClassLabel)},
      {"aten::nll_loss2d_forward", check_values(ValueCheck::kClassLabel)},
      {"aten::nll_loss_backward", check_values(ValueCheck::kClassLabel)},
      {"aten::nll_loss2d_backward", check_values(ValueCheck::kClassLabel)},
  };
  return *table;
}

// Names whose kernels look at values and raise: matched by prefix.
const char* const kAlwaysChecked[] = {
    "aten::linalg_",         "aten::_linalg_",       "aten::cholesky",      "aten::lu_",
    "aten::_lu_",            "aten::triangular_solve", "aten::ormqr",       "aten::geqrf",
    "aten::multinomial",     "aten::_embedding_bag", "aten::embedding_bag", "aten::multilabel_margin",
    "aten::multi_margin",    "aten::max_unpool",     "aten::histc",         "aten::_histogramdd",
    "aten::histogram",       "aten::binomial",       "aten::poisson",       "aten::_sample_dirichlet",
    "aten::_standard_gamma", "aten::bernoulli",      "aten::normal",        "aten::binary_cross_entropy",
    "aten::bincount",        "aten::repeat_interleave", "aten::_cdist",     "aten::ldl",
    "aten::_convert_indices", "aten::searchsorted",  "aten::bucketize",     "aten::inverse", "aten::masked_scatter",
    "aten::fractional_max",  "aten::_validate",      "aten::_int_mm",       "aten::matrix_exp",
    "aten::_spdiags",        "aten::quantize",       "aten::dequantize",    "aten::_fake_quantize",
    "aten::fake_quantize",   "aten::choose_qparams", "aten::_sparse",       "aten::sparse",
    "aten::_to_sparse",      "aten::_nested",        "aten::_jagged",       "aten::_padded",
};

// Of those prefixes, but blind to values.
const char* const kNeverChecked[] = {"aten::linalg_vector_norm", "aten::binary_cross_entropy_with_logits",
                                     "aten::binary_cross_entropy_backward"};

// Integer arithmetic that raises on some values: a zero divisor, a negative exponent.
const char* const kIntegerChecked[] = {"aten::div", "aten::remainder", "aten::fmod", "aten::floor_divide",
                                       "aten::pow", "aten::_foreach_div", "aten::_foreach_pow"};

bool starts_with(const std::string& name, const char* prefix) { return name.rfind(prefix, 0) == 0; }

bool draws_with_constants(const std::string& name) {
  return name == "aten::normal_" || name == "aten::normal.float_float" || name == "aten::normal_functional";
}

constexpr const char* kMoving[] = {
    "aten::amax", "aten::amin", "aten::argmax", "aten::argmin", "aten::cat", "aten::embedding", "aten::flip",
    "aten::gather", "aten::index", "aten::index_select", "aten::masked_select", "aten::max", "aten::min", "aten::nonzero",
    "aten::roll", "aten::sort", "aten::stack", "aten::take", "aten::topk", "aten::tril", "aten::tril_", "aten::triu",
    "aten::triu_"};

constexpr const char* kOfLayouts[] = {"aten::full_like", "aten::new_full",  "aten::new_ones",
                                      "aten::new_zeros", "aten::ones_like", "aten::zeros_like"};

}  // namespace

void correct_effects(OpInfo& info) {
  const OpKind declared = info.kind;
  const auto& base = info.base;
  if (auto found = corrections().find(base); found != corrections().end()) found->second(info);
  if (info.kind == OpKind::kAllocate && info.writes) info.kind = declared;  // out= variants
  info.bool_index_is_dynamic = base == "aten::index" || base == "aten::_unsafe_index";
  info.puts_by_index = base == "aten::index_put" || base == "aten::index_put_" || base == "aten::_index_put_impl_";
  info.asks_for_threads = base == "aten::convolution" || base == "aten::convolution_backward";
  info.moves_values = std::ranges::find(kMoving, base) != std::end(kMoving);
  info.reads_layouts_alone = !info.writes && std::ranges::find(kOfLayouts, base) != std::end(kOfLayouts);
  if (info.draws) info.layout_from_scalars = true;  // bad scalars raise: only values seen before run behind
  if (info.name == "aten::bernoulli_.float" || info.name == "aten::bernoulli.p" ||
      base == "aten::native_dropout") {
    info.value_check = ValueCheck::kProbability;
    info.layout_from_scalars = false;
  } else if (info.value_check == ValueCheck::kNone && !draws_with_constants(info.name)) {
    for (const char* prefix : kAlwaysChecked)
      if (starts_with(base, prefix)) info.value_check = ValueCheck::kAlways;
    for (const char* prefix : kIntegerChecked)
      if (starts_with(base, prefix)) info.value_check = ValueCheck::kIntegerOnly;
    for (const char* name : kNeverChecked)
      if (base == name) info.value_check = ValueCheck::kNone;
  }
  constexpr const char* kAudited[] = {"aten::", "prims::", "lockstep::"};
  info.is_foreign = std::ranges::none_of(kAudited, [&](const char* prefix) { return starts_with(base, prefix); });
  if (info.is_foreign && info.kind != OpKind::kPass && info.kind != OpKind::kComposite) info.kind = OpKind::kEager;
}

}  // namespace lockstep::graph
