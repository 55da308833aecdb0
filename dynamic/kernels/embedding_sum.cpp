#include "dynamic/kernels/embedding_sum.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "dynamic/kernels/float_tensor.h"
#include "dynamic/threads/shared_loop.h"

namespace lockstep::dynamic {

namespace {

using at::Tensor;

constexpr int64_t kGrain = 1 << 14;  // values a thread adds at least

// Which row of the gradient belongs to which word, by words, and those of a word in their order.
using Uses = std::vector<std::pair<int64_t, int64_t>>;

template <typename Index>
Uses uses_of(const Tensor& indices, int64_t words, int64_t padding) {
  Uses uses;
  const auto* data = indices.const_data_ptr<Index>();
  for (int64_t i = 0; i < indices.numel(); ++i)
    if (data[i] != padding && data[i] >= 0 && data[i] < words) uses.emplace_back(data[i], i);
  std::sort(uses.begin(), uses.end());
  return uses;
}

// Rows of `width` values. Each row is what its gradients are one after the other, added to zeros, and then to the total:
// so no -0.0 comes out.
template <typename Value>
void add_rows(const Uses& uses, const Value* gradient, int64_t width, Value* total) {
  std::vector<int64_t> firsts;  // of each word
  for (size_t i = 0; i < uses.size(); ++i)
    if (i == 0 || uses[i].first != uses[i - 1].first) firsts.push_back(static_cast<int64_t>(i));
  firsts.push_back(static_cast<int64_t>(uses.size()));
  const auto words = static_cast<int64_t>(firsts.size()) - 1;
  shared_loop(0, words, std::max<int64_t>(1, kGrain / std::max<int64_t>(width, 1)), [&](int64_t begin, int64_t end) {
    std::vector<Value> sum(width);
    for (int64_t word = begin; word < end; ++word) {
      std::fill(sum.begin(), sum.end(), Value{0});
      for (int64_t use = firsts[word]; use < firsts[word + 1]; ++use) {
        const Value* row = gradient + uses[use].second * width;
        for (int64_t i = 0; i < width; ++i) sum[i] += row[i];
      }
      Value* to = total + uses[firsts[word]].first * width;
      for (int64_t i = 0; i < width; ++i) to[i] += sum[i];
    }
  });
}

template <typename Value>
void add(const Uses& uses, const Tensor& gradient, const Tensor& total, bool has_no_minus_zero) {
  auto* to = total.mutable_data_ptr<Value>();
  if (!has_no_minus_zero)  // words that are not there become themselves and 0.0; to the others it makes no difference
    shared_loop(0, total.numel(), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i] += Value{0};
    });
  add_rows(uses, gradient.const_data_ptr<Value>(), total.size(1), to);
}

}  // namespace

// gradient, indices, number of words, padding, scaled by frequency
PartSum try_add_embedding_gradient(const torch::jit::Stack& arguments, const Tensor& total, bool has_no_minus_zero) {
  const auto gradient = arguments[0].toTensor(), indices = arguments[1].toTensor();
  const int64_t words = arguments[2].toInt(), padding = arguments[3].toInt();
  if (arguments[4].toBool() || !is_plain_tensor(gradient) || !gradient.is_contiguous() || !is_plain_tensor(indices) ||
      !indices.is_contiguous() || gradient.dim() == 0)
    return {};
  const int64_t width = gradient.size(-1);
  if (total.scalar_type() != gradient.scalar_type() || total.dim() != 2 || total.size(0) != words || total.size(1) != width ||
      gradient.numel() != indices.numel() * width)
    return {};
  const bool is_long = indices.scalar_type() == at::kLong;
  if (!is_long && indices.scalar_type() != at::kInt) return {};
  const auto uses = is_long ? uses_of<int64_t>(indices, words, padding) : uses_of<int32_t>(indices, words, padding);
  switch (total.scalar_type()) {
    case at::kFloat: add<float>(uses, gradient, total, has_no_minus_zero); break;
    case at::kDouble: add<double>(uses, gradient, total, has_no_minus_zero); break;
    default: return {};
  }
  return {true, true};
}

}  // namespace lockstep::dynamic
