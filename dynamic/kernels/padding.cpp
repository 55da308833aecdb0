#include "dynamic/kernels/padding.h"

#include <ATen/Parallel.h>
#include <ATen/ceil_div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <optional>
#include <vector>

#include "dynamic/kernels/float_tensor.h"
#include "dynamic/shapes/shape_rules.h"
#include "dynamic/threads/shared_loop.h"

namespace lockstep::dynamic {

namespace {

using at::Tensor;

constexpr int64_t kGrain = 1 << 14;  // items a thread writes at least

// One dim of the result: items first, first + step, ... of `size` are the `count` of the inner tensor, `stride` apart.
struct Dim {
  int64_t size, first, step, count, stride;
  bool is_full() const { return first == 0 && step == 1 && count == size; }
  bool has(int64_t at) const { return at >= first && (at - first) % step == 0 && (at - first) / step < count; }
  int64_t offset(int64_t at) const { return (at - first) / step * stride; }
  // How many of the inner tensor's items lie before `at`.
  int64_t count_before(int64_t at) const { return std::clamp<int64_t>((at - first + step - 1) / step, 0, count); }
};
using Dims = std::vector<Dim>;  // the outermost first

Dims dims_of(const Tensor& inner) {
  Dims dims;
  for (int64_t d = 0; d < inner.dim(); ++d) dims.push_back({inner.size(d), 0, 1, inner.size(d), inner.stride(d)});
  return dims;
}

// As few dims as say the same, and at least one: rows become long.
Dims merged(const Dims& dims) {
  Dims result{{1, 0, 1, 1, 1}};
  for (auto dim = dims.rbegin(); dim != dims.rend(); ++dim) {
    Dim& last = result.back();
    if (last.is_full() && last.size == 1) {
      last = *dim;
    } else if (last.is_full() && dim->step == 1 && (dim->stride == last.stride * last.count || dim->count == 1)) {
      last = {dim->size * last.size, dim->first * last.size, 1, dim->count * last.count, last.stride};
    } else if (last.count == 1 && dim->is_full()) {  // one item of each row, as of pairs of real and imaginary parts
      last = {dim->size * last.size, last.first, last.size, dim->size, dim->stride};
    } else {
      result.push_back(*dim);
    }
  }
  std::reverse(result.begin(), result.end());
  return result;
}

template <typename Item>
void copy_items(const Item* from, int64_t stride, int64_t count, Item* to) {
  if (stride == 1) {
    std::copy_n(from, count, to);
  } else {
    for (int64_t i = 0; i < count; ++i) to[i] = from[i * stride];
  }
}

// Items [begin, end) of a row; null: nothing of the inner tensor lies in it.
template <typename Item>
void write_row(const Dim& dim, const Item* inner, Item value, int64_t begin, int64_t end, Item* row) {
  if (!inner || dim.step != 1) {
    std::fill(row + begin, row + end, value);
    if (!inner) return;
    Item* to = row + dim.first;
    for (int64_t i = dim.count_before(begin), last = dim.count_before(end); i < last; ++i)
      to[i * dim.step] = inner[i * dim.stride];
    return;
  }
  const int64_t first = std::clamp(dim.first, begin, end), last = std::clamp(dim.first + dim.count, first, end);
  std::fill(row + begin, row + first, value);
  if (first < last) copy_items(inner + dim.offset(first), dim.stride, last - first, row + first);
  std::fill(row + last, row + end, value);
}

// run(row, first item, last item, items of the inner tensor in that row or null): all rows, long ones in pieces.
template <typename Item, typename Run>
void for_rows(const Dims& dims, const Item* inner, Run run) {
  const Dim& dim = dims.back();
  int64_t rows = 1;
  for (size_t d = 0; d + 1 < dims.size(); ++d) rows *= dims[d].size;
  const int64_t length = at::ceil_div(dim.size, std::max<int64_t>(1, dim.size / kGrain)), pieces = at::ceil_div(dim.size, length);
  const auto row_at = [&](int64_t row) {
    const Item* place = inner;
    for (size_t d = dims.size() - 1; place && d-- > 0; row /= dims[d].size) {
      const int64_t at = row % dims[d].size;
      place = dims[d].has(at) ? place + dims[d].offset(at) : nullptr;
    }
    return place;
  };
  shared_loop(0, rows * pieces, std::max<int64_t>(1, kGrain / length), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task / pieces, at = task % pieces * length;
      run(row, at, std::min(at + length, dim.size), row_at(row));
    }
  });
}

template <typename Item>
void write_all(const Dims& dims, const void* inner, const void* constant, void* out) {
  const Dim& dim = dims.back();
  const Item value = *static_cast<const Item*>(constant);
  for_rows(dims, static_cast<const Item*>(inner), [&](int64_t row, int64_t begin, int64_t end, const Item* place) {
    write_row(dim, place, value, begin, end, static_cast<Item*>(out) + row * dim.size);
  });
}

template <typename Item>
bool is_minus_zero(Item value) { return value == 0 && std::signbit(value); }

// Items [begin, end) of a row of the total. Returns whether a -0.0 came out.
template <typename Item>
bool add_to_row(const Dim& dim, const Item* inner, int64_t begin, int64_t end, Item* row, bool has_no_minus_zero) {
  const int64_t first = inner ? dim.count_before(begin) : 0, last = inner ? dim.count_before(end) : 0;
  Item* to = row + dim.first;
  if (!has_no_minus_zero) {  // what is not of the part becomes itself and 0.0
    const auto add_zeros = [row](int64_t from, int64_t until) {
      for (; from < until; ++from) row[from] += Item{0};
    };
    int64_t done = begin;
    for (int64_t i = first; i < last; ++i) {
      add_zeros(done, dim.first + i * dim.step);
      done = dim.first + i * dim.step + 1;
    }
    add_zeros(done, end);
  }
  if (dim.step == 1 && dim.stride == 1) {
    for (int64_t i = first; i < last; ++i) to[i] += inner[i];
  } else {
    for (int64_t i = first; i < last; ++i) to[i * dim.step] += inner[i * dim.stride];
  }
  bool is_found = false;
  for (int64_t i = first; !has_no_minus_zero && i < last; ++i) is_found |= is_minus_zero(to[i * dim.step]);
  return is_found;
}

// Returns whether there is no -0.0 in the total now.
template <typename Item>
bool add_all(const Dims& dims, const Item* inner, Item* total, bool has_no_minus_zero) {
  const Dim& dim = dims.back();
  std::atomic<bool> is_found{false};
  for_rows(dims, inner, [&](int64_t row, int64_t begin, int64_t end, const Item* place) {
    if (!place && has_no_minus_zero) return;
    if (add_to_row(dim, place, begin, end, total + row * dim.size, has_no_minus_zero))
      is_found.store(true, std::memory_order_relaxed);
  });
  return !is_found;
}

// `inner` where `dims` say, the value around it, or zeros; false where its type is none of ours.
bool place(torch::jit::Stack& stack, const Tensor& inner, const Dims& dims, const std::optional<at::Scalar>& value = {}) {
  std::vector<int64_t> sizes;
  for (const auto& dim : dims) sizes.push_back(dim.size);
  auto result = at::empty(sizes, inner.options());
  if (result.numel() > 0) {
    // As eager's fill does, that of two refuses what the type does not hold; that of one does not.
    const auto constant = value ? at::full({2}, *value, inner.options()) : at::scalar_tensor(0, inner.options());
    const auto write = [&](auto write_items) {
      write_items(merged(dims), inner.const_data_ptr(), constant.const_data_ptr(), result.mutable_data_ptr());
    };
    switch (inner.itemsize()) {
      case 1: write(write_all<uint8_t>); break;
      case 2: write(write_all<uint16_t>); break;
      case 4: write(write_all<uint32_t>); break;
      case 8: write(write_all<uint64_t>); break;
      case 16: write(write_all<std::array<uint64_t, 2>>); break;
      default: return false;
    }
  }
  stack.clear();
  stack.emplace_back(std::move(result));
  return true;
}

// gradient, input_sizes, dim: where the dim is in the result; or none, where eager says what is wrong.
struct Part {
  Tensor gradient;
  std::vector<int64_t> sizes;
  int64_t dim;
  Dims dims{};  // of the result
};
std::optional<Part> read_part(const torch::jit::Stack& stack) {
  Part part{stack[0].toTensor(), stack[1].toIntVector(), stack[2].toInt()};
  const auto count = static_cast<int64_t>(part.sizes.size());
  if (part.dim < 0) part.dim += count;
  if (!is_plain_tensor(part.gradient) || part.dim < 0 || part.dim >= count) return std::nullopt;
  return part;
}

// The other dims are all there.
bool fits(const Dims& dims, const std::vector<int64_t>& sizes, int64_t dim) {
  if (dims.size() != sizes.size()) return false;
  for (size_t d = 0; d < sizes.size(); ++d)
    if (static_cast<int64_t>(d) != dim && dims[d].size != sizes[d]) return false;
  return true;
}

std::optional<Part> read_slice(const torch::jit::Stack& stack) {
  auto part = read_part(stack);
  if (!part || stack[5].toInt() < 1) return std::nullopt;
  const int64_t size = part->sizes[part->dim], step = stack[5].toInt();
  const auto bound = [size](int64_t at, int64_t least) { return std::clamp(at < 0 ? at + size : at, least, size); };
  const int64_t start = bound(stack[3].toInt(), 0), end = bound(stack[4].toInt(), start);
  part->dims = dims_of(part->gradient);
  if (!fits(part->dims, part->sizes, part->dim) || part->dims[part->dim].count != at::ceil_div(end - start, step))
    return std::nullopt;
  Dim& dim = part->dims[part->dim];
  dim.size = size, dim.first = start, dim.step = step;
  return part;
}

std::optional<Part> read_selection(const torch::jit::Stack& stack) {
  auto part = read_part(stack);
  if (!part) return std::nullopt;
  const int64_t size = part->sizes[part->dim], index = stack[3].toInt() + (stack[3].toInt() < 0 ? size : 0);
  part->dims = dims_of(part->gradient);
  if (static_cast<size_t>(part->dim) > part->dims.size() || index < 0 || index >= size) return std::nullopt;
  part->dims.insert(part->dims.begin() + part->dim, {size, index, 1, 1, 0});
  return fits(part->dims, part->sizes, part->dim) ? part : std::nullopt;
}

}  // namespace

// self, pad (the last dim first: so many before it, so many after it), value
bool try_constant_pad(torch::jit::Stack& stack) {
  const auto self = stack[0].toTensor();
  const auto pad = stack[1].toIntVector();
  if (!is_plain_tensor(self) || pad.empty() || pad.size() % 2 || static_cast<int64_t>(pad.size() / 2) > self.dim()) return false;
  const auto [least, most] = std::minmax_element(pad.begin(), pad.end());
  if (*least < 0 || *most == 0 || *most > kMostPadding) return false;
  auto dims = dims_of(self);
  for (size_t i = 0; i < pad.size() / 2; ++i) {
    Dim& dim = dims[dims.size() - 1 - i];
    dim.first = pad[2 * i];
    dim.size += pad[2 * i] + pad[2 * i + 1];
  }
  return place(stack, self, dims, stack[2].toScalar());
}

// gradient, input_sizes, dim, start, end, step
bool try_slice_backward(torch::jit::Stack& stack) {
  const auto part = read_slice(stack);
  return part && place(stack, part->gradient, part->dims);
}

// gradient, input_sizes, dim, index
bool try_select_backward(torch::jit::Stack& stack) {
  const auto part = read_selection(stack);
  return part && place(stack, part->gradient, part->dims);
}

PartSum try_add_part(PartKind kind, const torch::jit::Stack& arguments, const Tensor& total, bool has_no_minus_zero) {
  const auto part = kind == PartKind::kSlice ? read_slice(arguments) : read_selection(arguments);
  if (!part || total.scalar_type() != part->gradient.scalar_type() || total.sizes() != at::IntArrayRef(part->sizes))
    return {};
  const auto dims = merged(part->dims);
  const auto add = [&](auto zero) -> PartSum {
    using Item = decltype(zero);
    return {true, add_all(dims, part->gradient.const_data_ptr<Item>(), total.mutable_data_ptr<Item>(), has_no_minus_zero)};
  };
  if (total.numel() == 0) return {true, true};
  if (total.scalar_type() == at::kFloat) return add(0.0f);
  if (total.scalar_type() == at::kDouble) return add(0.0);
  return {};
}

}  // namespace lockstep::dynamic
