#include "dynamic/kernels/padding.h"

#include <ATen/Parallel.h>
#include <ATen/ceil_div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "dynamic/kernels/float_tensor.h"
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
    for (int64_t i = begin; inner && i < end; ++i)
      if (dim.has(i)) row[i] = inner[dim.offset(i)];
    return;
  }
  const int64_t first = std::clamp(dim.first, begin, end), last = std::clamp(dim.first + dim.count, first, end);
  std::fill(row + begin, row + first, value);
  if (first < last) copy_items(inner + dim.offset(first), dim.stride, last - first, row + first);
  std::fill(row + last, row + end, value);
}

template <typename Item>
void write_all(const Dims& dims, const void* inner, const void* constant, void* out) {
  const Dim& dim = dims.back();
  const auto* from = static_cast<const Item*>(inner);
  const Item value = *static_cast<const Item*>(constant);
  int64_t rows = 1;
  for (size_t d = 0; d + 1 < dims.size(); ++d) rows *= dims[d].size;
  const int64_t length = at::ceil_div(dim.size, std::max<int64_t>(1, dim.size / kGrain)), pieces = at::ceil_div(dim.size, length);
  const auto row_at = [&](int64_t row) {
    const Item* place = from;
    for (size_t d = dims.size() - 1; place && d-- > 0; row /= dims[d].size) {
      const int64_t at = row % dims[d].size;
      place = dims[d].has(at) ? place + dims[d].offset(at) : nullptr;
    }
    return place;
  };
  shared_loop(0, rows * pieces, std::max<int64_t>(1, kGrain / length), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task / pieces, at = task % pieces * length;
      write_row(dim, row_at(row), value, at, std::min(at + length, dim.size), static_cast<Item*>(out) + row * dim.size);
    }
  });
}

// `inner` where `dims` say; false where its type is none of ours.
bool place(torch::jit::Stack& stack, const Tensor& inner, const Dims& dims, const at::Scalar& value) {
  std::vector<int64_t> sizes;
  for (const auto& dim : dims) sizes.push_back(dim.size);
  auto result = at::empty(sizes, inner.options());
  if (result.numel() > 0) {
    const auto constant = at::scalar_tensor(value, inner.options());
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

}  // namespace

// self, pad (the last dim first: so many before it, so many after it), value
bool try_constant_pad(torch::jit::Stack& stack) {
  const auto self = stack[0].toTensor();
  const auto pad = stack[1].toIntVector();
  if (!is_plain_tensor(self) || pad.empty() || pad.size() % 2 || static_cast<int64_t>(pad.size() / 2) > self.dim()) return false;
  if (*std::min_element(pad.begin(), pad.end()) < 0 || *std::max_element(pad.begin(), pad.end()) == 0) return false;
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
  const auto part = read_part(stack);
  if (!part || stack[5].toInt() < 1) return false;
  const int64_t size = part->sizes[part->dim], step = stack[5].toInt();
  const auto bound = [size](int64_t at, int64_t least) { return std::clamp(at < 0 ? at + size : at, least, size); };
  const int64_t start = bound(stack[3].toInt(), 0), end = bound(stack[4].toInt(), start);
  auto dims = dims_of(part->gradient);
  if (!fits(dims, part->sizes, part->dim) || dims[part->dim].count != at::ceil_div(end - start, step)) return false;
  dims[part->dim].size = size, dims[part->dim].first = start, dims[part->dim].step = step;
  return place(stack, part->gradient, dims, 0);
}

// gradient, input_sizes, dim, index
bool try_select_backward(torch::jit::Stack& stack) {
  const auto part = read_part(stack);
  if (!part) return false;
  const int64_t size = part->sizes[part->dim], index = stack[3].toInt() + (stack[3].toInt() < 0 ? size : 0);
  auto dims = dims_of(part->gradient);
  if (static_cast<size_t>(part->dim) > dims.size() || index < 0 || index >= size) return false;
  dims.insert(dims.begin() + part->dim, {size, index, 1, 1, 0});
  return fits(dims, part->sizes, part->dim) && place(stack, part->gradient, dims, 0);
}

}  // namespace lockstep::dynamic
