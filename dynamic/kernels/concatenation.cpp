#include "dynamic/kernels/concatenation.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <vector>

#include "dynamic/kernels/float_tensor.h"

namespace lockstep::dynamic {

namespace {

using at::Tensor;

constexpr int64_t kMostBytes = 256 << 10;  // PyTorch's kernels share more among threads

// Values that can be copied as they lie, of the type of the first.
bool is_like(const Tensor& tensor, const Tensor& first) {
  return is_plain_tensor(tensor) && tensor.is_contiguous() && tensor.numel() > 0 && tensor.dim() == first.dim() &&
         tensor.scalar_type() == first.scalar_type();
}

// All sizes but that of a dim.
bool fits(const Tensor& tensor, const Tensor& first, int64_t but) {
  for (int64_t d = 0; d < first.dim(); ++d)
    if (d != but && tensor.size(d) != first.size(d)) return false;
  return true;
}

// Of each tensor so many pieces, one of each in turn.
void copy_pieces(const std::vector<Tensor>& tensors, int64_t pieces, const Tensor& result) {
  auto* to = static_cast<char*>(result.mutable_data_ptr());
  const int64_t row_bytes = static_cast<int64_t>(result.nbytes()) / pieces;
  for (const Tensor& tensor : tensors) {
    const auto* from = static_cast<const char*>(tensor.const_data_ptr());
    const int64_t bytes = static_cast<int64_t>(tensor.nbytes()) / pieces;
    for (int64_t piece = 0; piece < pieces; ++piece) std::memcpy(to + piece * row_bytes, from + piece * bytes, bytes);
    to += bytes;
  }
}

// Side by side in a dim, which is that of the result: there already, or new.
bool join(torch::jit::Stack& stack, bool is_new) {
  const auto tensors = stack[0].toTensorVector();
  if (tensors.empty()) return false;
  const Tensor& first = tensors[0];
  const int64_t dim_count = first.dim() + is_new;
  int64_t dim = stack[1].toInt(), extent = 0, bytes = 0;
  if (dim < 0) dim += dim_count;
  if (dim < 0 || dim >= dim_count) return false;
  for (const Tensor& tensor : tensors) {
    if (!is_like(tensor, first) || !fits(tensor, first, is_new ? -1 : dim)) return false;
    extent += is_new ? 1 : tensor.size(dim);
    bytes += static_cast<int64_t>(tensor.nbytes());
  }
  if (bytes > kMostBytes) return false;
  auto sizes = first.sizes().vec();
  const int64_t pieces = c10::multiply_integers(sizes.begin(), sizes.begin() + dim);
  if (is_new) sizes.insert(sizes.begin() + dim, extent);
  sizes[dim] = extent;
  auto result = at::empty(sizes, first.options());
  copy_pieces(tensors, pieces, result);
  stack.clear();
  stack.emplace_back(std::move(result));
  return true;
}

}  // namespace

bool try_cat(torch::jit::Stack& stack) { return join(stack, /*is_new=*/false); }
bool try_stack(torch::jit::Stack& stack) { return join(stack, /*is_new=*/true); }

}  // namespace lockstep::dynamic
