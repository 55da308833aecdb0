#include "dynamic/kernels/foreach_norm.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ceil_div.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "dynamic/kernels/channel_loops.h"
#include "dynamic/kernels/float_tensor.h"
#include "dynamic/threads/shared_loop.h"

namespace lockstep::dynamic {

namespace {

constexpr int64_t kPiece = 1 << 14;  // values that are summed up at once

struct Piece {
  const float* values;
  int64_t count;
  size_t tensor;
};

bool is_two(const c10::IValue& order) { return order.isScalar() && !order.toScalar().isComplex() && order.toScalar().toDouble() == 2; }

}  // namespace

// self, ord, dtype
bool try_foreach_norm(torch::jit::Stack& stack) {
  if (!is_two(stack[1]) || !stack[2].isNone() || at::globalContext().deterministicAlgorithms()) return false;
  const auto tensors = stack[0].toTensorVector();
  if (tensors.empty()) return false;
  std::vector<Piece> pieces;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& tensor = tensors[i];
    if (!is_float_tensor(tensor) || !tensor.is_non_overlapping_and_dense() || tensor._is_zerotensor()) return false;
    for (int64_t at = 0; at < tensor.numel(); at += kPiece)
      pieces.push_back({tensor.const_data_ptr<float>() + at, std::min(kPiece, tensor.numel() - at), i});
  }
  std::vector<double> sums(pieces.size());
  const auto& loops = channel_loops();
  const int64_t count = static_cast<int64_t>(pieces.size());
  int64_t values = 0;
  for (const auto& tensor : tensors) values += tensor.numel();
  const int64_t grain = values <= kPiece ? count : 1;
  shared_loop(0, count, std::max<int64_t>(grain, 1), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) sums[i] = loops.squares(pieces[i].values, pieces[i].count, /*mean=*/0.0f);
  });
  std::vector<double> totals(tensors.size());
  for (size_t i = 0; i < pieces.size(); ++i) totals[pieces[i].tensor] += sums[i];
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

}  // namespace lockstep::dynamic
