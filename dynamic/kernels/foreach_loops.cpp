#include "dynamic/kernels/foreach_loops.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ceil_div.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "dynamic/kernels/channel_loops.h"
#include "dynamic/kernels/float_tensor.h"
#include "dynamic/threads/shared_loop.h"

namespace lockstep::dynamic {

namespace {

constexpr int64_t kPiece = 1 << 14;  // values that one thread takes at once

struct Piece {
  float* values;
  int64_t count;
  size_t tensor;
};

// Of all tensors, if each is float32 and without holes.
std::optional<std::vector<Piece>> pieces_of(const std::vector<at::Tensor>& tensors, bool is_written = false) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& tensor = tensors[i];
    if (!is_float_tensor(tensor) || !tensor.is_non_overlapping_and_dense() || tensor._is_zerotensor()) return std::nullopt;
    auto* values = is_written ? tensor.mutable_data_ptr<float>() : const_cast<float*>(tensor.const_data_ptr<float>());
    for (int64_t at = 0; at < tensor.numel(); at += kPiece)
      pieces.push_back({values + at, std::min(kPiece, tensor.numel() - at), i});
  }
  return pieces;
}

// body(index) for each piece, shared out unless there is but little.
template <class Body>
void each_piece(const std::vector<Piece>& pieces, Body body) {
  int64_t values = 0;
  for (const auto& piece : pieces) values += piece.count;
  const auto count = static_cast<int64_t>(pieces.size());
  shared_loop(0, count, values <= kPiece ? std::max<int64_t>(count, 1) : 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i);
  });
}

bool overlap(std::vector<Piece> pieces, const float* number) {
  pieces.push_back({const_cast<float*>(number), 1, 0});
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.values < b.values; });
  for (size_t i = 1; i < pieces.size(); ++i)
    if (pieces[i - 1].values + pieces[i - 1].count > pieces[i].values) return true;
  return false;
}

bool is_two(const c10::IValue& order) { return order.isScalar() && !order.toScalar().isComplex() && order.toScalar().toDouble() == 2; }

}  // namespace

// self, ord, dtype
bool try_foreach_norm(torch::jit::Stack& stack) {
  if (!is_two(stack[1]) || !stack[2].isNone() || at::globalContext().deterministicAlgorithms()) return false;
  const auto tensors = stack[0].toTensorVector();
  if (tensors.empty()) return false;
  const auto pieces = pieces_of(tensors);
  if (!pieces) return false;
  std::vector<double> sums(pieces->size());
  const auto& loops = channel_loops();
  each_piece(*pieces, [&](int64_t i) { sums[i] = loops.squares((*pieces)[i].values, (*pieces)[i].count, /*mean=*/0.0f); });
  std::vector<double> totals(tensors.size());
  for (size_t i = 0; i < pieces->size(); ++i) totals[(*pieces)[i].tensor] += sums[i];
  c10::List<at::Tensor> norms;
  norms.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    auto norm = at::empty({}, tensors[i].options());
    *norm.mutable_data_ptr<float>() = std::sqrt(static_cast<float>(totals[i]));  // what float32 cannot hold is infinite
    norms.push_back(std::move(norm));
  }
  stack.clear();
  stack.emplace_back(std::move(norms));
  return true;
}

// self, other
bool try_foreach_scale(torch::jit::Stack& stack) {
  const auto& number = stack[1].toTensor();
  if (!is_float_tensor(number) || number.dim() != 0) return false;
  const auto tensors = stack[0].toTensorVector();
  const auto pieces = pieces_of(tensors, /*is_written=*/true);
  const auto* value = number.const_data_ptr<float>();
  if (!pieces || overlap(*pieces, value)) return false;
  each_piece(*pieces, [&, factor = *value](int64_t i) {
    float* values = (*pieces)[i].values;
    for (int64_t k = 0; k < (*pieces)[i].count; ++k) values[k] *= factor;
  });
  stack.clear();
  return true;
}

}  // namespace lockstep::dynamic
