#include "dynamic/vm/kernel_work.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <unordered_map>

#include "dynamic/kernels/convolution.h"

namespace lockstep::dynamic {

namespace {

// Some 200 us on one core. To wake a worker takes a quarter of that, and disturbs the thread whose core it takes; a step
// of lstm_ragged is as long with any limit above these, and a fifth longer with a quarter of them.
constexpr int64_t kLightElements = 1 << 18;
constexpr double kLightMultiplications = 1 << 23;
// A microsecond or two: no more than it takes a team to begin and to end. PyTorch's loops are shared from 2^15 elements on.
constexpr int64_t kTinyElements = 1 << 15;
constexpr double kTinyMultiplications = 1 << 18;

constexpr int64_t kTensors = 3;  // of an op

enum class Work : uint8_t {
  kElements,  // some steps for each element of the largest tensor
  kLists,     // ... for each element of all tensors together, of which one op has some three
  kProduct,   // of matrices, or a convolution
  kMore,      // grows faster than its tensors
};

constexpr std::string_view kProducts[] = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::addbmm",
                                          "aten::convolution", "aten::convolution_backward"};
constexpr std::string_view kMore[] = {"aten::_scaled_dot_product", "aten::linalg_", "aten::_linalg_", "aten::mkldnn_",
                                      "aten::_cdist", "aten::cdist", "aten::cholesky", "aten::triangular_solve",
                                      "aten::sort", "aten::topk", "aten::_fft", "aten::_unique", "aten::unique",
                                      "aten::grid_sampler", "aten::_trilinear", "aten::_pdist", "aten::histc"};

Work kind_of(const graph::OpInfo& op) {
  thread_local std::unordered_map<const graph::OpInfo*, Work> known;  // infos live for ever
  const auto [place, is_new] = known.try_emplace(&op, Work::kElements);
  if (!is_new) return place->second;
  const std::string_view base = op.base;
  const auto is_base = [base](std::string_view name) { return base == name; };
  const auto is_prefix = [base](std::string_view name) { return base.starts_with(name); };
  const auto is_list = [](const graph::ArgSlot& slot) { return slot.kind == graph::ArgKind::kTensorList; };
  if (std::any_of(op.args.begin(), op.args.end(), is_list)) place->second = Work::kLists;
  if (op.is_foreign || std::any_of(std::begin(kMore), std::end(kMore), is_prefix)) place->second = Work::kMore;
  if (std::any_of(std::begin(kProducts), std::end(kProducts), is_base)) place->second = Work::kProduct;
  return place->second;
}

bool has_at_most(const Event& event, int64_t most_elements, double most_multiplications) {
  int64_t elements[3] = {0, 0, 0};  // of the largest tensors
  int64_t all_elements = 0;
  for (const auto* layouts : {&event.signature->inputs, &event.signature->outputs})
    for (const auto& layout : *layouts) {
      if (!layout.is_defined()) continue;
      int64_t count = layout.numel();
      all_elements += count;
      for (auto& largest : elements)
        if (count > largest) std::swap(count, largest);
    }
  switch (kind_of(event.op())) {
    case Work::kElements: return elements[0] <= most_elements;
    case Work::kLists: return all_elements <= kTensors * most_elements;
    // (a, b) by (b, c) gives (a, c): the root of a*b * b*c * a*c multiplications. A convolution has about as many.
    case Work::kProduct: {
      double product = 1;
      for (const int64_t count : elements) product *= static_cast<double>(count);
      return std::sqrt(product) <= most_multiplications;
    }
    default: return false;
  }
}

constexpr int64_t kManySamples = 16;

// Of a few samples and a window of one pixel, PyTorch computes a convolution by another kernel where there is one thread
// only: its results lie in memory otherwise. And some of its kernels return more gradients than are wanted.
bool has_kernel_by_threads(const Event& event) {
  const auto& op = event.op();
  if (!op.asks_for_threads) return false;
  const bool is_backward = op.returns.size() > 1;
  if (is_backward) {
    if (!event.args.back().isBoolList()) return true;
    if (wants_bias_alone(event.args.back())) return true;
  }
  const auto &map = event.signature->inputs[is_backward], &window = event.signature->inputs[is_backward + 1];
  if (window.sizes.size() < 3) return true;
  const auto inner = at::IntArrayRef(window.sizes).slice(std::max<size_t>(2, window.sizes.size() - 2));
  return map.sizes[0] < kManySamples && std::all_of(inner.begin(), inner.end(), [](int64_t size) { return size == 1; });
}

}  // namespace

bool is_light(const Event& event) { return has_at_most(event, kLightElements, kLightMultiplications); }

bool runs_alone(const Event& event) {
  if (has_kernel_by_threads(event)) return false;
  switch (event.workers) {
    case Workers::kAwake: return has_at_most(event, kTinyElements, kTinyMultiplications);
    case Workers::kAsleep: return is_light(event);
    default: return false;
  }
}

}  // namespace lockstep::dynamic
