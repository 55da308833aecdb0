#include "dynamic/kernels/foreach_loops.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "dynamic/kernels/channel_loops.h"
#include "dynamic/kernels/float_tensor.h"
#include "dynamic/kernels/pieces.h"

namespace lockstep::dynamic {

namespace {

bool are_whole(const std::vector<at::Tensor>& tensors) { return std::all_of(tensors.begin(), tensors.end(), &is_whole_float_tensor); }

struct Range {
  float* begin;
  float* end;
};

bool overlap(std::vector<Range> ranges) {
  std::erase_if(ranges, [](const Range& range) { return range.begin == range.end; });
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < ranges.size(); ++i)
    if (ranges[i - 1].end > ranges[i].begin) return true;
  return false;
}

bool is_two(const c10::IValue& order) { return order.isScalar() && !order.toScalar().isComplex() && order.toScalar().toDouble() == 2; }

}  // namespace

// self, ord, dtype
bool try_foreach_norm(torch::jit::Stack& stack) {
  if (!is_two(stack[1]) || !stack[2].isNone() || at::globalContext().deterministicAlgorithms()) return false;
  const auto tensors = stack[0].toTensorVector();
  if (tensors.empty() || !are_whole(tensors)) return false;
  const auto pieces = pieces_of(tensors);
  std::vector<double> sums(pieces.size());
  const auto& loops = channel_loops();
  each_piece(pieces, kPieceValues, [&](int64_t i) {
    const auto& [tensor, begin, count] = pieces[i];
    sums[i] = loops.squares(tensors[tensor].const_data_ptr<float>() + begin, count, /*mean=*/0.0f);
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

// self, other
bool try_foreach_scale(torch::jit::Stack& stack) {
  const auto& number = stack[1].toTensor();
  if (!is_float_tensor(number) || number.dim() != 0) return false;
  const auto tensors = stack[0].toTensorVector();
  if (tensors.empty() || !are_whole(tensors)) return false;
  std::vector<Range> ranges;
  for (const auto& tensor : tensors) {
    auto* values = tensor.mutable_data_ptr<float>();
    ranges.push_back({values, values + tensor.numel()});
  }
  auto* value = const_cast<float*>(number.const_data_ptr<float>());
  const auto memory = ranges;
  ranges.push_back({value, value + 1});
  if (overlap(std::move(ranges))) return false;
  const auto pieces = pieces_of(tensors);
  each_piece(pieces, kPieceValues, [&, factor = *value](int64_t i) {
    const auto& [tensor, begin, count] = pieces[i];
    float* values = memory[tensor].begin + begin;
    for (int64_t k = 0; k < count; ++k) values[k] *= factor;
  });
  stack.clear();
  return true;
}

}  // namespace lockstep::dynamic
