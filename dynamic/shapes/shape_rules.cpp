#include "dynamic/shapes/shape_rules.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Contiguity.h>
#include <c10/core/MemoryFormat.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <unordered_map>

namespace lockstep::dynamic {

namespace {

using graph::ArgKind;
using graph::Layout;
using graph::Signature;
using Sizes = c10::SmallVector<int64_t, 5>;

// Dense; the strides are those of the dims in order where nothing else is said.
struct Result {
  Result(Sizes sizes = {}, Sizes strides = {}) : sizes(std::move(sizes)), strides(std::move(strides)) {}
  Sizes sizes, strides;
};
using Results = c10::SmallVector<Result, 3>;  // all of them, also those that are not there

struct Asked {
  const Signature& known;
  const std::vector<Layout>& inputs;  // tensors in argument order
  at::ArrayRef<c10::IValue> args;
  const std::vector<bool>& varies;  // by argument

  bool is_fixed(std::initializer_list<size_t> which) const {
    return std::none_of(which.begin(), which.end(), [&](size_t a) { return varies[a]; });
  }
  bool is_fixed_from(size_t first) const { return std::find(varies.begin() + first, varies.end(), true) == varies.end(); }
  // As large as where the op ran, or missing as there.
  bool is_as_known(size_t input) const {
    return inputs[input].sizes == known.inputs[input].sizes && inputs[input].strides == known.inputs[input].strides;
  }
  bool has_elements() const {
    return std::none_of(inputs.begin(), inputs.end(), [](const Layout& one) { return one.is_defined() && one.numel() == 0; });
  }
};

std::optional<Sizes> sizes_in(const c10::IValue& value) {
  if (!value.isIntList()) return std::nullopt;
  const auto sizes = value.toIntVector();
  return Sizes(sizes.begin(), sizes.end());
}
// Of a tensor that is made: nothing where eager says that one is negative.
std::optional<Sizes> extents_in(const c10::IValue& value) {
  auto sizes = sizes_in(value);
  const bool is_valid = sizes && std::all_of(sizes->begin(), sizes->end(), [](int64_t size) { return size >= 0; });
  return is_valid ? std::move(sizes) : std::nullopt;
}
// Counted from the end where it is negative; nothing where there is no such dim.
std::optional<int64_t> dim_in(const c10::IValue& value, size_t count) {
  if (!value.isInt()) return std::nullopt;
  const auto rank = static_cast<int64_t>(count), dim = value.toInt() < 0 ? value.toInt() + rank : value.toInt();
  return dim < 0 || dim >= rank ? std::nullopt : std::optional(dim);
}

// ---- memory that is made, copied, repeated

// As copies have it (MemoryFormat::Preserve): of what has no gaps the strides, of others their order.
Result like(const Sizes& sizes, const Sizes& strides) {
  if (c10::_compute_non_overlapping_and_dense(at::IntArrayRef(sizes), at::IntArrayRef(strides))) return {sizes, strides};
  const auto inferred = at::infer_dense_strides(sizes, strides);
  return {sizes, Sizes(inferred.begin(), inferred.end())};
}

std::optional<Results> of_first_argument(const Asked& asked) {
  const auto sizes = extents_in(asked.args[0]);
  return sizes && asked.is_fixed_from(1) ? std::optional(Results{*sizes}) : std::nullopt;
}
// Without a type, the number says which.
std::optional<Results> of_full(const Asked& asked) {
  const auto sizes = extents_in(asked.args[0]);
  if (!sizes || !asked.is_fixed_from(2)) return std::nullopt;
  const auto& number = asked.args[1];
  const auto dtype = asked.known.outputs[0].dtype;
  const bool is_its_type = number.isDouble() ? c10::isFloatingType(dtype)
                           : number.isInt()  ? dtype == c10::ScalarType::Long
                                             : number.isBool() && dtype == c10::ScalarType::Bool;
  if (asked.varies[1] && asked.args[2].isNone() && !is_its_type) return std::nullopt;
  return Results{*sizes};
}
std::optional<Results> of_arange(const Asked& asked) {
  int64_t numbers[3] = {0, 0, 1};  // start, end, step
  size_t count = 0;
  while (count < asked.args.size() && asked.known.op->args[count].kind == ArgKind::kScalar) ++count;
  for (size_t a = 0; a < count; ++a) {
    if (!asked.args[a].isInt()) return std::nullopt;
    numbers[count == 1 ? 1 : a] = asked.args[a].toInt();
  }
  const auto [start, end, step] = numbers;
  if (count == 0 || count > 3 || !asked.is_fixed_from(count) || asked.known.outputs[0].dtype != c10::ScalarType::Long ||
      step <= 0 || end < start)
    return std::nullopt;
  return Results{Sizes{(end - start + step - 1) / step}};
}
std::optional<Results> of_second_argument(const Asked& asked) {
  const auto sizes = extents_in(asked.args[1]);
  return sizes ? std::optional(Results{*sizes}) : std::nullopt;
}
std::optional<Results> of_new(const Asked& asked) { return asked.is_fixed_from(2) ? of_second_argument(asked) : std::nullopt; }
std::optional<Results> of_new_full(const Asked& asked) { return asked.is_fixed_from(3) ? of_second_argument(asked) : std::nullopt; }

std::optional<Results> of_same_size(const Asked& asked) {
  if (!has_standard_strides(asked.inputs[0]) || !asked.is_fixed_from(1)) return std::nullopt;
  return Results{asked.inputs[0].sizes};
}
// Results as large as the first tensor; so are the others, or they are repeated to that (the weight of prelu).
std::optional<Results> of_alike(const Asked& asked) {
  const auto& first = asked.inputs[0];
  if (!has_standard_strides(first) || !asked.has_elements()) return std::nullopt;
  for (size_t a = 0; a < asked.args.size(); ++a)  // some numbers are refused
    if (asked.varies[a] && asked.known.op->args[a].kind != ArgKind::kTensor) return std::nullopt;
  for (const auto& input : asked.inputs) {
    if (!input.is_defined()) return std::nullopt;
    if (input.sizes == first.sizes && has_standard_strides(input)) continue;
    const bool is_repeated = &input == &asked.inputs.back() && input.sizes != first.sizes;
    if (!is_repeated || !at::is_expandable_to(input.sizes, first.sizes)) return std::nullopt;
  }
  return Results(asked.known.outputs.size(), Result{first.sizes});
}
std::optional<Results> of_sort(const Asked& asked) {
  const auto same = of_same_size(asked);
  return same ? std::optional(Results(2, same->front())) : std::nullopt;
}
std::optional<Results> of_full_like(const Asked& asked) {
  if (!has_standard_strides(asked.inputs[0]) || !asked.is_fixed_from(2)) return std::nullopt;
  return Results{asked.inputs[0].sizes};
}
// Without gaps, and in the order of dims that the original has, or in the standard one. No rule is asked for others.
std::optional<Results> of_clone(const Asked& asked) {
  const auto& from = asked.inputs[0];
  const auto& format = asked.args[1];
  if (!asked.is_fixed({1}) || !asked.has_elements()) return std::nullopt;
  const bool is_standard = format.isInt() && format.toInt() == static_cast<int64_t>(at::MemoryFormat::Contiguous);
  if (is_standard) return Results{from.sizes};
  return Results{like(from.sizes, from.strides)};
}
// Ops on each element that make their result by `empty_like`.
std::optional<Results> of_empty_like(const Asked& asked) {
  const auto& from = asked.inputs[0];
  if (!asked.is_fixed_from(1) || !asked.has_elements()) return std::nullopt;
  return Results{like(from.sizes, from.strides)};
}
std::optional<Results> of_repeat(const Asked& asked) {
  auto repeats = sizes_in(asked.args[1]);
  const auto& sizes = asked.inputs[0].sizes;
  if (!repeats || repeats->size() < sizes.size()) return std::nullopt;
  const size_t added = repeats->size() - sizes.size();
  for (size_t dim = 0; dim < repeats->size(); ++dim) {
    if ((*repeats)[dim] < 1) return std::nullopt;
    if (dim >= added) (*repeats)[dim] *= sizes[dim - added];
  }
  return Results{*repeats};
}
// Where nothing is added it is a copy of a part.
std::optional<Results> of_constant_pad(const Asked& asked) {
  const auto pad = sizes_in(asked.args[1]);
  const auto& from = asked.inputs[0];
  Sizes sizes = from.sizes;
  if (!pad || pad->size() % 2 != 0 || pad->size() > 2 * sizes.size() || !has_standard_strides(from)) return std::nullopt;
  bool adds = false;
  for (size_t i = 0; i < pad->size(); i += 2) {
    auto& size = sizes[sizes.size() - 1 - i / 2];
    const int64_t before = (*pad)[i], after = (*pad)[i + 1];
    if (before < -size || after < -size || std::max(before, after) > kMostPadding || size + before + after < 1) return std::nullopt;
    size += before + after;
    adds |= before > 0 || after > 0;
  }
  return adds ? Results{sizes} : Results{like(sizes, from.strides)};
}
std::optional<Results> of_stack(const Asked& asked) {
  for (const auto& input : asked.inputs)
    if (input.sizes != asked.inputs[0].sizes || !has_standard_strides(input)) return std::nullopt;
  Sizes sizes = asked.inputs[0].sizes;
  const auto dim = dim_in(asked.args[1], sizes.size() + 1);
  if (!dim) return std::nullopt;
  sizes.insert(sizes.begin() + *dim, static_cast<int64_t>(asked.inputs.size()));
  return Results{sizes};
}

// ---- rows by number

std::optional<Results> of_embedding(const Asked& asked) {
  if (asked.inputs[0].sizes.size() != 2) return std::nullopt;
  Sizes sizes = asked.inputs[1].sizes;
  sizes.push_back(asked.inputs[0].sizes[1]);
  return Results{sizes};
}
std::optional<Results> of_embedding_backward(const Asked& asked) {
  const auto& gradient = asked.inputs[0].sizes;
  if (!asked.args[2].isInt() || gradient.empty()) return std::nullopt;
  return Results{Sizes{asked.args[2].toInt(), gradient.back()}};
}
std::optional<Results> of_index_select(const Asked& asked) {
  Sizes sizes = asked.inputs[0].sizes;
  const auto dim = dim_in(asked.args[1], sizes.size());
  if (!dim) return std::nullopt;
  sizes[*dim] = asked.inputs[1].numel();
  return Results{sizes};
}

// ---- fewer values

std::optional<Results> of_one_value(const Asked& asked) {
  return asked.has_elements() && asked.is_fixed_from(1) ? std::optional(Results(1)) : std::nullopt;
}
std::optional<Results> of_dot(const Asked& asked) {
  const auto &a = asked.inputs[0].sizes, &b = asked.inputs[1].sizes;
  return a.size() == 1 && a == b ? std::optional(Results(1)) : std::nullopt;
}
std::optional<Results> of_matrix_by_vector(const Asked& asked) {
  const auto &a = asked.inputs[0].sizes, &b = asked.inputs[1].sizes;
  return a.size() == 2 && b.size() == 1 && a[1] == b[0] ? std::optional(Results{Sizes{a[0]}}) : std::nullopt;
}
template <size_t kKeepDim>  // the argument that says whether folded dims stay, with one value each
std::optional<Results> of_folded(const Asked& asked) {
  const auto& from = asked.inputs[0];
  if (!has_standard_strides(from) || !asked.has_elements() || !asked.is_fixed_from(1) || from.sizes.empty()) return std::nullopt;
  c10::SmallVector<bool, 8> is_folded(from.sizes.size(), asked.args[1].isNone());
  if (!asked.args[1].isNone()) {
    const auto dims = sizes_in(asked.args[1]);
    if (!dims) return std::nullopt;
    if (dims->empty()) is_folded.assign(from.sizes.size(), true);
    for (const auto number : *dims) {
      const auto dim = dim_in(number, from.sizes.size());
      if (!dim || is_folded[*dim]) return std::nullopt;
      is_folded[*dim] = true;
    }
  }
  Sizes sizes;
  for (size_t dim = 0; dim < from.sizes.size(); ++dim) {
    if (!is_folded[dim]) sizes.push_back(from.sizes[dim]);
    else if (asked.args[kKeepDim].toBool()) sizes.push_back(1);
  }
  return Results(asked.known.outputs.size(), sizes);
}

// With nothing left but the correction PyTorch warns.
std::optional<Results> of_variance(const Asked& asked) {
  auto results = of_folded<3>(asked);
  if (!results || results->empty()) return std::nullopt;
  int64_t kept = 1;
  for (const auto size : results->front().sizes) kept *= size;
  const double correction = asked.args[2].isNone() ? 1 : asked.args[2].toScalar().toDouble();
  if (static_cast<double>(asked.inputs[0].numel() / kept) <= correction) return std::nullopt;
  return results;
}

// ---- norms: what they are of, and their statistics

bool ends_with(const Sizes& sizes, const Sizes& tail) {
  return sizes.size() >= tail.size() && std::equal(tail.rbegin(), tail.rend(), sizes.rbegin());
}
bool is_missing_or(const Layout& layout, const Sizes& sizes) { return !layout.is_defined() || layout.sizes == sizes; }

std::optional<Results> of_layer_norm(const Asked& asked) {
  const auto shape = sizes_in(asked.args[1]);
  const auto& sizes = asked.inputs[0].sizes;
  if (!shape || shape->empty() || !ends_with(sizes, *shape) || !is_missing_or(asked.inputs[1], *shape) ||
      !is_missing_or(asked.inputs[2], *shape) || !asked.has_elements())
    return std::nullopt;
  Sizes statistics = sizes;
  std::fill(statistics.end() - static_cast<int64_t>(shape->size()), statistics.end(), 1);
  return Results{sizes, statistics, statistics};
}
std::optional<Results> of_layer_norm_backward(const Asked& asked) {
  const auto shape = sizes_in(asked.args[2]);
  const auto& sizes = asked.inputs[1].sizes;
  if (!shape || shape->empty() || asked.inputs[0].sizes != sizes || !ends_with(sizes, *shape) || !asked.is_fixed({7}) ||
      !asked.has_elements())
    return std::nullopt;
  return Results{sizes, *shape, *shape};
}

bool has_group_sizes(const Sizes& sizes, at::ArrayRef<c10::IValue> n_c_pixels_groups) {
  int64_t numbers[4];
  for (size_t i = 0; i < 4; ++i) {
    if (!n_c_pixels_groups[i].isInt()) return false;
    numbers[i] = n_c_pixels_groups[i].toInt();
  }
  const auto [n, c, pixels, groups] = numbers;
  int64_t count = 1;
  for (const auto size : sizes) count *= size;
  return sizes.size() >= 2 && sizes[0] == n && sizes[1] == c && n * c * pixels == count && groups > 0 && c % groups == 0;
}
std::optional<Results> of_group_norm(const Asked& asked) {
  const auto& from = asked.inputs[0];
  if (!has_standard_strides(from) || !asked.has_elements() || !has_group_sizes(from.sizes, asked.args.slice(3, 4))) return std::nullopt;
  const Sizes channels{from.sizes[1]}, statistics{from.sizes[0], asked.args[6].toInt()};
  if (!is_missing_or(asked.inputs[1], channels) || !is_missing_or(asked.inputs[2], channels)) return std::nullopt;
  return Results{from.sizes, statistics, statistics};
}
std::optional<Results> of_group_norm_backward(const Asked& asked) {
  const auto &gradient = asked.inputs[0], &from = asked.inputs[1];
  if (!has_standard_strides(from) || !has_standard_strides(gradient) || gradient.sizes != from.sizes || !asked.has_elements() ||
      !has_group_sizes(from.sizes, asked.args.slice(5, 4)) || !asked.is_fixed({9}))
    return std::nullopt;
  const Sizes channels{from.sizes[1]};
  return Results{from.sizes, channels, channels};
}

bool has_known_channels(const Asked& asked, size_t map) {
  const auto &now = asked.inputs[map].sizes, &before = asked.known.inputs[map].sizes;
  return now.size() >= 2 && now[1] == before[1];
}
std::optional<Results> of_batch_norm(const Asked& asked) {
  const auto& from = asked.inputs[0];
  if (!has_standard_strides(from) || !asked.has_elements() || !has_known_channels(asked, 0) || !asked.is_fixed({5})) return std::nullopt;
  for (size_t i = 1; i < 5; ++i)
    if (!asked.is_as_known(i)) return std::nullopt;
  return Results{from.sizes, asked.known.outputs[1].sizes, asked.known.outputs[2].sizes};
}
std::optional<Results> of_batch_norm_backward(const Asked& asked) {
  const auto &gradient = asked.inputs[0], &from = asked.inputs[1];
  if (!has_standard_strides(from) || !has_standard_strides(gradient) || gradient.sizes != from.sizes || !asked.has_elements() ||
      !has_known_channels(asked, 1) || !asked.is_fixed({7, 9}))
    return std::nullopt;
  for (size_t i = 2; i < 7; ++i)
    if (!asked.is_as_known(i)) return std::nullopt;
  const Sizes channels{from.sizes[1]};
  return Results{from.sizes, channels, channels};
}

// ---- convolutions and pooling

struct Window {
  Sizes stride, padding, dilation, output_padding;
  bool is_transposed;
  int64_t groups;
};
int64_t at_dim(const Sizes& each, size_t dim) { return each.size() == 1 ? each[0] : each[dim]; }

std::optional<Window> window_in(at::ArrayRef<c10::IValue> args, size_t dims) {
  const auto stride = sizes_in(args[0]), padding = sizes_in(args[1]), dilation = sizes_in(args[2]), output_padding = sizes_in(args[4]);
  if (!stride || !padding || !dilation || !output_padding) return std::nullopt;
  for (const auto* each : {&*stride, &*padding, &*dilation, &*output_padding})
    if (each->size() != 1 && each->size() != dims) return std::nullopt;
  return Window{*stride, *padding, *dilation, *output_padding, args[3].toBool(), args[5].toInt()};
}
// Nothing where the kernel is larger than what it looks at, or the channels do not fit.
std::optional<Sizes> convolved(const Sizes& map, const Sizes& kernel, const Window& window) {
  const auto& [stride, padding, dilation, output_padding, is_transposed, groups] = window;
  if (groups < 1 || map[1] != (is_transposed ? kernel[0] : kernel[1] * groups)) return std::nullopt;
  Sizes sizes{map[0], is_transposed ? kernel[1] * groups : kernel[0]};
  for (size_t dim = 0; dim + 2 < map.size(); ++dim) {
    const int64_t reach = at_dim(dilation, dim) * (kernel[dim + 2] - 1) + 1, step = at_dim(stride, dim), size = map[dim + 2];
    if (step < 1) return std::nullopt;
    const int64_t room = size + 2 * at_dim(padding, dim) - reach;
    const int64_t result = is_transposed
                               ? (size - 1) * step - 2 * at_dim(padding, dim) + reach + at_dim(output_padding, dim)
                               : room < 0 ? 0 : room / step + 1;
    if (result < 1) return std::nullopt;
    sizes.push_back(result);
  }
  return sizes;
}
// Over one dim, results have their dims in order whatever the order of the map, where that has one: over more, they follow it.
bool has_order_for_convolution(const Layout& map) {
  return has_standard_strides(map) || (map.sizes.size() == 3 && map.sizes[1] > 1 && map.sizes[2] > 1);
}
bool is_map_and_kernel(const Asked& asked, size_t map) {
  const size_t rank = asked.inputs[map].sizes.size();
  return rank >= 3 && rank <= 5 && has_order_for_convolution(asked.inputs[map]) && asked.inputs[map + 1].sizes.size() == rank &&
         asked.is_as_known(map + 1) && has_standard_strides(asked.inputs[map + 1]) && asked.has_elements();
}
// PyTorch takes more memory for its result than that needs, at some sizes.
bool is_transposed_in_space(const Asked& asked) {
  return asked.inputs[0].sizes.size() == 5 && asked.args[6].isBool() && asked.args[6].toBool();
}
std::optional<Results> of_convolution(const Asked& asked) {
  if (!is_map_and_kernel(asked, 0) || is_transposed_in_space(asked) || !asked.is_as_known(2) || !asked.is_fixed_from(3))
    return std::nullopt;
  const auto& map = asked.inputs[0].sizes;
  const auto window = window_in(asked.args.slice(3), map.size() - 2);
  const auto sizes = window ? convolved(map, asked.inputs[1].sizes, *window) : std::nullopt;
  return sizes ? std::optional(Results{*sizes}) : std::nullopt;
}
std::optional<Results> of_convolution_backward(const Asked& asked) {
  if (!is_map_and_kernel(asked, 1) || !has_order_for_convolution(asked.inputs[0]) || !asked.is_fixed_from(3)) return std::nullopt;
  const auto &map = asked.inputs[1].sizes, &kernel = asked.inputs[2].sizes;
  const auto window = window_in(asked.args.slice(4), map.size() - 2);
  const auto sizes = window ? convolved(map, kernel, *window) : std::nullopt;
  if (!sizes || *sizes != asked.inputs[0].sizes) return std::nullopt;
  return Results{map, kernel, Sizes{(*sizes)[1]}};
}
std::optional<Results> of_adaptive_pool(const Asked& asked) {
  const auto pooled = sizes_in(asked.args[1]);
  Sizes sizes = asked.inputs[0].sizes;
  if (!pooled || pooled->size() != 2 || sizes.size() < 3 || sizes.size() > 4 || !has_standard_strides(asked.inputs[0]) ||
      !asked.has_elements())
    return std::nullopt;
  for (size_t i = 0; i < 2; ++i) {
    if ((*pooled)[i] < 1) return std::nullopt;
    sizes[sizes.size() - 2 + i] = (*pooled)[i];
  }
  return Results{sizes};
}
// What the forward op was given comes second.
std::optional<Results> of_input_gradient(const Asked& asked) {
  const auto &gradient = asked.inputs[0], &from = asked.inputs[1];
  if (!has_standard_strides(from) || !has_standard_strides(gradient) || !asked.has_elements() || !asked.is_fixed_from(2) ||
      from.sizes.size() < 3 || gradient.sizes.size() != from.sizes.size() ||
      !std::equal(from.sizes.begin(), from.sizes.end() - 2, gradient.sizes.begin()))
    return std::nullopt;
  return Results{from.sizes};
}

// ---- attention: dims are batch, heads, length, width

bool is_attention(const Asked& asked, size_t query, size_t mask) {
  const auto &q = asked.inputs[query].sizes, &k = asked.inputs[query + 1].sizes, &v = asked.inputs[query + 2].sizes;
  const auto& extra = asked.inputs[mask];
  if (q.size() != 4 || k.size() != 4 || k != v || q[0] != k[0] || q[1] != k[1] || q[3] != k[3] || !asked.has_elements()) return false;
  return !extra.is_defined() || ((extra.sizes.size() == 2 || extra.sizes.size() == 4) &&
                                 at::is_expandable_to(extra.sizes, Sizes{q[0], q[1], q[2], k[2]}));
}
// In memory, lengths come before heads.
Result with_lengths_first(const Sizes& sizes) {
  const int64_t heads = sizes[1], length = sizes[2], width = sizes.size() > 3 ? sizes[3] : 1;
  Sizes strides{length * heads * width, width, heads * width};
  if (sizes.size() > 3) strides.push_back(1);
  return {sizes, strides};
}
std::optional<Results> of_attention(const Asked& asked) {
  if (!is_attention(asked, 0, 3) || !asked.is_fixed({3, 4})) return std::nullopt;
  const auto& query = asked.inputs[0];
  const auto& q = query.sizes;
  return Results{like(q, query.strides), with_lengths_first({q[0], q[1], q[2]})};
}
std::optional<Results> of_attention_backward(const Asked& asked) {
  const auto& q = asked.inputs[1].sizes;
  if (!is_attention(asked, 1, 6) || !asked.is_fixed({6, 7}) || asked.inputs[0].sizes != q || asked.inputs[4].sizes != q ||
      at::IntArrayRef(asked.inputs[5].sizes) != at::IntArrayRef(q).slice(0, 3))
    return std::nullopt;
  const auto gradient = with_lengths_first(asked.inputs[2].sizes);
  return Results{with_lengths_first(q), gradient, gradient};
}

// ---- softmax and losses

std::optional<Results> of_safe_softmax(const Asked& asked) {
  if (!asked.has_elements() || !dim_in(asked.args[1], asked.inputs[0].sizes.size())) return std::nullopt;
  return of_same_size(asked);
}

std::optional<Results> of_reduced(const Asked& asked, int64_t reduction, const Sizes& unreduced) {
  if (reduction != at::Reduction::None) return Results(1);
  for (const auto& input : asked.inputs)
    if (input.is_defined() && !has_standard_strides(input)) return std::nullopt;
  return Results{unreduced};
}
// (values, labels, weight, reduction, ignored label), a class for each pixel
bool has_labelled_pixels(const Asked& asked, size_t values) {
  const auto &map = asked.inputs[values].sizes, &labels = asked.inputs[values + 1].sizes;
  return map.size() == 4 && labels.size() == 3 && map[0] == labels[0] && map[2] == labels[1] && map[3] == labels[2] &&
         has_known_channels(asked, values) && asked.is_as_known(values + 2) && has_standard_strides(asked.inputs[values]) &&
         asked.has_elements();
}
std::optional<Results> of_pixel_loss(const Asked& asked) {
  if (!has_labelled_pixels(asked, 0) || !asked.is_fixed({3})) return std::nullopt;
  auto sizes = of_reduced(asked, asked.args[3].toInt(), asked.inputs[1].sizes);
  if (sizes) sizes->push_back({});
  return sizes;
}
std::optional<Results> of_pixel_loss_backward(const Asked& asked) {
  if (!has_labelled_pixels(asked, 1) || !asked.is_fixed({4})) return std::nullopt;
  if (asked.args[4].toInt() == at::Reduction::None ? asked.inputs[0].sizes != asked.inputs[2].sizes : asked.inputs[0].numel() != 1)
    return std::nullopt;
  return Results{asked.inputs[1].sizes};
}
// (values, targets, weights ..., reduction ...), all of one size but for weights
template <size_t kReduction>
std::optional<Results> of_loss(const Asked& asked) {
  const auto& sizes = asked.inputs[0].sizes;
  if (asked.inputs[1].sizes != sizes || !asked.has_elements() || !asked.is_fixed_from(kReduction)) return std::nullopt;
  for (size_t i = 2; i < asked.inputs.size(); ++i)
    if (asked.inputs[i].is_defined() && !at::is_expandable_to(asked.inputs[i].sizes, sizes)) return std::nullopt;
  return of_reduced(asked, asked.args[kReduction].toInt(), sizes);
}
// (gradient, values, targets, ...)
template <size_t kReduction>
std::optional<Results> of_loss_backward(const Asked& asked) {
  const auto& from = asked.inputs[1];
  if (asked.inputs[2].sizes != from.sizes || !asked.has_elements() || !asked.is_fixed_from(kReduction) || !has_standard_strides(from) ||
      !has_standard_strides(asked.inputs[2]))
    return std::nullopt;
  for (size_t i = 0; i < asked.inputs.size(); ++i)
    if (asked.inputs[i].is_defined() && !at::is_expandable_to(asked.inputs[i].sizes, from.sizes)) return std::nullopt;
  return Results{from.sizes};
}

using Rule = std::optional<Results> (*)(const Asked&);

Rule find_rule(std::string_view name) {
  static const std::unordered_map<std::string_view, Rule> table = {
      {"aten::zeros", &of_first_argument},
      {"aten::ones", &of_first_argument},
      {"aten::rand", &of_first_argument},
      {"aten::randn", &of_first_argument},
      {"aten::full", &of_full},
      {"aten::arange", &of_arange},
      {"aten::arange.start", &of_arange},
      {"aten::arange.start_step", &of_arange},
      {"aten::new_zeros", &of_new},
      {"aten::new_ones", &of_new},
      {"aten::new_full", &of_new_full},
      {"aten::full_like", &of_full_like},
      {"aten::rand_like", &of_same_size},
      {"aten::randn_like", &of_same_size},
      {"aten::bernoulli.p", &of_same_size},
      {"aten::flip", &of_same_size},
      {"aten::roll", &of_same_size},
      {"aten::hardswish", &of_alike},
      {"aten::hardswish_backward", &of_alike},
      {"aten::hardtanh_backward", &of_alike},
      {"aten::hardsigmoid_backward", &of_alike},
      {"aten::hardshrink_backward", &of_alike},
      {"aten::softshrink_backward", &of_alike},
      {"aten::softplus_backward", &of_alike},
      {"aten::elu_backward", &of_alike},
      {"aten::log_sigmoid_forward", &of_alike},
      {"aten::log_sigmoid_backward", &of_alike},
      {"aten::mish_backward", &of_alike},
      {"aten::_prelu_kernel", &of_alike},
      {"aten::_prelu_kernel_backward", &of_alike},
      {"aten::sort", &of_sort},
      {"aten::clone", &of_clone},
      {"aten::hardtanh", &of_empty_like},
      {"aten::relu6", &of_empty_like},
      {"aten::nan_to_num", &of_empty_like},
      {"aten::deg2rad", &of_empty_like},
      {"aten::rad2deg", &of_empty_like},
      {"aten::repeat", &of_repeat},
      {"aten::constant_pad_nd", &of_constant_pad},
      {"aten::stack", &of_stack},
      {"aten::embedding", &of_embedding},
      {"aten::embedding_dense_backward", &of_embedding_backward},
      {"aten::index_select", &of_index_select},
      {"aten::slice_backward", &of_second_argument},
      {"aten::select_backward", &of_second_argument},
      {"aten::sum", &of_one_value},
      {"aten::mean", &of_one_value},
      {"aten::prod", &of_one_value},
      {"aten::max", &of_one_value},
      {"aten::min", &of_one_value},
      {"aten::any", &of_one_value},
      {"aten::all", &of_one_value},
      {"aten::dot", &of_dot},
      {"aten::mv", &of_matrix_by_vector},
      {"aten::var.correction", &of_variance},
      {"aten::std.correction", &of_variance},
      {"aten::var_mean.correction", &of_variance},
      {"aten::logsumexp", &of_folded<2>},
      {"aten::native_layer_norm", &of_layer_norm},
      {"aten::native_layer_norm_backward", &of_layer_norm_backward},
      {"aten::native_group_norm", &of_group_norm},
      {"aten::native_group_norm_backward", &of_group_norm_backward},
      {"aten::native_batch_norm", &of_batch_norm},
      {"aten::native_batch_norm_backward", &of_batch_norm_backward},
      {"aten::convolution", &of_convolution},
      {"aten::convolution_backward", &of_convolution_backward},
      {"aten::_adaptive_avg_pool2d", &of_adaptive_pool},
      {"aten::_adaptive_avg_pool2d_backward", &of_input_gradient},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", &of_attention},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", &of_attention_backward},
      {"aten::_safe_softmax", &of_safe_softmax},
      {"aten::nll_loss2d_forward", &of_pixel_loss},
      {"aten::nll_loss2d_backward", &of_pixel_loss_backward},
      {"aten::binary_cross_entropy_backward", &of_loss_backward<4>},
      {"aten::binary_cross_entropy_with_logits", &of_loss<4>},
      {"aten::huber_loss", &of_loss<2>},
      {"aten::huber_loss_backward", &of_loss_backward<3>},
      {"aten::mse_loss_backward", &of_loss_backward<3>},
      {"aten::smooth_l1_loss_backward", &of_loss_backward<3>},
  };
  const auto row = table.find(name);
  return row == table.end() ? nullptr : row->second;
}

}  // namespace

bool has_standard_strides(const Layout& layout) { return layout.strides == c10::contiguous_strides(layout.sizes); }

bool add_dense_result(Signature& learned, const Layout& known, at::IntArrayRef sizes, at::IntArrayRef strides) {
  if (sizes.size() != known.sizes.size() || (strides.empty() && !has_standard_strides(known))) return false;
  Layout output = known;
  output.sizes.assign(sizes.begin(), sizes.end());
  output.strides = strides.empty() ? c10::contiguous_strides(sizes) : Sizes(strides.begin(), strides.end());
  output.storage_bytes = output.numel() * static_cast<int64_t>(c10::elementSize(output.dtype));
  learned.outputs.push_back(std::move(output));
  return true;
}

bool keeps_all_strides(const graph::OpInfo& op) {
  const auto rule = find_rule(op.base);
  return rule == &of_clone || rule == &of_empty_like;
}

bool infer_by_rule(Signature& learned, const Signature& known, at::ArrayRef<c10::IValue> args,
                   const std::vector<bool>& varies) {
  const auto rule = find_rule(learned.op->name);
  if (!rule) return false;
  const auto results = rule({known, learned.inputs, args, varies});
  if (!results || results->size() != known.outputs.size()) return false;
  for (size_t i = 0; i < results->size(); ++i) {
    const auto& [sizes, strides] = (*results)[i];
    if (!known.outputs[i].is_defined()) {
      learned.outputs.emplace_back();
    } else if (!add_dense_result(learned, known.outputs[i], sizes, strides)) {
      learned.outputs.clear();
      return false;
    }
  }
  return true;
}

}  // namespace lockstep::dynamic
