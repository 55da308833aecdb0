#include "dynamic/kernels/batch_norm.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sub.h>

#include <array>
#include <cmath>
#include <vector>

#include "dynamic/kernels/channel_loops.h"
#include "dynamic/kernels/float_tensor.h"
#include "dynamic/kernels/map_order.h"
#include "dynamic/kernels/past_cache.h"
#include "dynamic/threads/shared_loop.h"

namespace lockstep::dynamic {

namespace {

using at::Tensor;
using Optional = std::optional<Tensor>;

constexpr int64_t kGrain = 1 << 14;       // values a thread
constexpr int64_t kRowsInFloat = 256;     // summed up before a double takes over
constexpr int64_t kSmallestWidth = 64;    // narrow rows are taken several at a time

// (samples, channels, pixels), or rows of channels where there is one pixel or channels are innermost.
struct Extent {
  int64_t samples, channels, pixels;
  int64_t count() const { return samples * pixels; }  // of a channel
  bool has_rows() const { return pixels == 1; }
  bool is_large() const { return is_past_cache(samples * channels * pixels * int64_t{sizeof(float)}); }
};

constexpr auto kChannelsLast = at::MemoryFormat::ChannelsLast;

bool is_plain(const Tensor& tensor) { return is_float_tensor(tensor) && tensor.is_contiguous(); }

bool is_plain_or_none(const Optional& tensor, int64_t channels) {
  return !tensor || !tensor->defined() || (is_plain(*tensor) && tensor->dim() == 1 && tensor->size(0) == channels);
}

Optional take_optional(const c10::IValue& value) { return value.isTensor() ? Optional(value.toTensor()) : std::nullopt; }

const float* data_or_null(const Optional& tensor) {
  return tensor && tensor->defined() ? tensor->const_data_ptr<float>() : nullptr;
}

bool share_memory(const Optional& left, const Optional& right) {
  return left && left->defined() && right && right->defined() && left->is_alias_of(*right);
}

bool find_extent(const Tensor& input, bool in_any_order, Extent* extent) {
  if (!is_float_tensor(input) || input.dim() < 2 || input.numel() == 0) return false;
  const int64_t channels = input.size(1);
  if (input.is_contiguous()) {
    *extent = {input.size(0), channels, input.numel() / (input.size(0) * channels)};
  } else if (in_any_order && input.is_contiguous(kChannelsLast)) {
    *extent = {input.numel() / channels, channels, 1};
  } else {
    return false;
  }
  return extent->count() > 1;
}

// By channel: what was measured, and what the values become: (x - mean) * factor + shift.
struct Scales {
  std::vector<float> mean, variance, factor, shift;
  explicit Scales(int64_t channels) : mean(channels), variance(channels), factor(channels), shift(channels) {}
};

// What a call brings along beside the map.
struct Settings {
  Optional weight, bias, running_mean, running_var;
  double momentum, eps;
};

template <class Body>
void for_channels(const Extent& e, Body body) {
  shared_loop(0, e.channels, std::max<int64_t>(1, kGrain / e.count()), [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) body(c);
  });
}

// Rows of `width`: several rows of channels as one, so that short ones fill the registers.
struct Rows {
  int64_t folds, width, count;  // whole wide rows
  explicit Rows(const Extent& e)
      : folds(std::max<int64_t>(1, kSmallestWidth / e.channels)), width(folds * e.channels), count(e.samples / folds) {}
  std::vector<float> spread(const std::vector<float>& channels) const {
    std::vector<float> wide;
    for (int64_t i = 0; i < folds; ++i) wide.insert(wide.end(), channels.begin(), channels.end());
    return wide;
  }
  int64_t grain() const { return std::max<int64_t>(1, kGrain / width); }
  int64_t threads() const {
    return std::clamp<int64_t>(count / grain(), 1, loop_threads());
  }
};

// Sums of columns: `add(first value, rows, width, sums)` for each of `kinds` arrays at once. The order depends on the
// number of threads alone.
template <class Add>
std::vector<double> column_totals(const Extent& e, int kinds, Add add) {
  const Rows rows(e);
  const int64_t threads = rows.threads(), each = (rows.count + threads - 1) / threads;
  std::vector<double> totals(kinds * e.channels, 0.0), parts(threads * totals.size(), 0.0);
  const auto add_up = [&](const std::vector<float>& wide, double* into) {
    for (int kind = 0; kind < kinds; ++kind)
      for (int64_t i = 0; i < rows.width; ++i) into[kind * e.channels + i % e.channels] += wide[kind * rows.width + i];
  };
  shared_loop(0, threads, 1, [&](int64_t first, int64_t last) {
    std::vector<float> wide(kinds * rows.width);
    for (int64_t thread = first; thread < last; ++thread) {
      const int64_t end = std::min((thread + 1) * each, rows.count);
      for (int64_t row = thread * each; row < end; row += kRowsInFloat) {
        std::fill(wide.begin(), wide.end(), 0.0f);
        add(row * rows.width, std::min(kRowsInFloat, end - row), rows.width, wide.data());
        add_up(wide, parts.data() + thread * totals.size());
      }
    }
  });
  for (int64_t thread = 0; thread < threads; ++thread)
    for (size_t i = 0; i < totals.size(); ++i) totals[i] += parts[thread * totals.size() + i];
  if (const int64_t rest = e.samples - rows.count * rows.folds; rest > 0) {
    std::vector<float> narrow(kinds * rows.width);
    add(rows.count * rows.width, rest, e.channels, narrow.data());
    for (int kind = 0; kind < kinds; ++kind)
      for (int64_t c = 0; c < e.channels; ++c) totals[kind * e.channels + c] += narrow[kind * e.channels + c];
  }
  return totals;
}

// `apply(first value, rows, width)` for all rows.
template <class Apply>
void for_rows(const Extent& e, Apply apply) {
  const Rows rows(e);
  shared_loop(0, rows.count, rows.grain(), [&](int64_t begin, int64_t end) {
    apply(begin * rows.width, end - begin, rows.width);
  });
  if (const int64_t rest = e.samples - rows.count * rows.folds; rest > 0) apply(rows.count * rows.width, rest, e.channels);
}

// By channel, of the first rows: a value that the others are not far from, as a rule.
std::vector<float> middles_of_first_rows(const Extent& e, const float* x) {
  const int64_t rows = std::min(e.samples, kRowsInFloat);
  std::vector<float> middles(e.channels);
  channel_loops().column_sums(x, rows, e.channels, middles.data());
  for (float& middle : middles) middle = std::isfinite(middle) ? middle / static_cast<float>(rows) : 0.0f;
  return middles;
}

// Mean and squares of what is apart from it, by channel. Reads x once, and again where the first rows were far from the rest.
std::vector<double> measure_rows(const Extent& e, const float* x, std::vector<float>* mean) {
  const auto& loops = channel_loops();
  const Rows rows(e);
  const auto middles = middles_of_first_rows(e, x), about = rows.spread(middles);
  const auto moments = column_totals(e, 2, [&](int64_t at, int64_t count, int64_t width, float* into) {
    loops.column_moments(x + at, count, width, about.data(), into, into + width);
  });
  std::vector<double> squares(e.channels);
  bool all_near = true;
  for (int64_t c = 0; c < e.channels; ++c) {
    const double apart = moments[c] / static_cast<double>(e.count()), lost = moments[c] * apart;
    (*mean)[c] = static_cast<float>(middles[c] + apart);
    squares[c] = moments[e.channels + c] - lost;
    all_near &= is_near(lost, squares[c]);
  }
  if (all_near) return squares;
  const auto centre = rows.spread(*mean);
  return column_totals(e, 1, [&](int64_t at, int64_t count, int64_t width, float* into) {
    loops.column_squares(x + at, count, width, centre.data(), into);
  });
}

// `squares`: of what is apart from the mean, all added up.
void set_scale(const Extent& e, int64_t c, double squares, const Settings& settings, Scales* scales) {
  const float *weight = data_or_null(settings.weight), *bias = data_or_null(settings.bias);
  const double variance = squares / static_cast<double>(e.count());
  scales->variance[c] = static_cast<float>(variance);
  scales->factor[c] = static_cast<float>((weight ? weight[c] : 1.0) / std::sqrt(variance + settings.eps));
  scales->shift[c] = bias ? bias[c] : 0.0f;
}

void measure_plane(const Extent& e, const float* x, int64_t c, const Settings& settings, Scales* scales) {
  const auto& loops = channel_loops();
  const float* plane = x + c * e.pixels;
  const int64_t step = e.channels * e.pixels;
  const float about = middle_of(plane, e.pixels);
  double sum = 0, squares = 0;
  for (int64_t n = 0; n < e.samples; ++n) loops.moments(plane + n * step, e.pixels, about, &sum, &squares);
  const auto moments = plane_moments(about, sum, squares, e.count(), [&](float mean) {
    double total = 0;
    for (int64_t n = 0; n < e.samples; ++n) total += loops.squares(plane + n * step, e.pixels, mean);
    return total;
  });
  scales->mean[c] = moments.rounded;
  set_scale(e, c, moments.squares, settings, scales);
}

void scale_plane(const Extent& e, const float* x, int64_t c, const Scales& scales, float* y) {
  for (int64_t n = 0; n < e.samples; ++n) {
    const int64_t at = (c + n * e.channels) * e.pixels;
    channel_loops().scale(x + at, e.pixels, scales.mean[c], scales.factor[c], scales.shift[c], y + at, e.is_large());
  }
}

void scale_rows(const Extent& e, const float* x, const Scales& scales, float* y) {
  const Rows rows(e);
  const auto mean = rows.spread(scales.mean), factor = rows.spread(scales.factor), shift = rows.spread(scales.shift);
  for_rows(e, [&](int64_t at, int64_t count, int64_t width) {
    channel_loops().column_scale(x + at, count, width, mean.data(), factor.data(), shift.data(), y + at, e.is_large());
  });
}

// Without a place for the results it measures only.
Scales normalize(const Extent& e, const float* x, const Settings& settings, float* y) {
  Scales scales(e.channels);
  if (e.has_rows()) {
    const auto squares = measure_rows(e, x, &scales.mean);
    for (int64_t c = 0; c < e.channels; ++c) set_scale(e, c, squares[c], settings, &scales);
    if (y) scale_rows(e, x, scales, y);
    return scales;
  }
  for_channels(e, [&](int64_t c) {  // a channel's values are in the cache then
    measure_plane(e, x, c, settings, &scales);
    if (y) scale_plane(e, x, c, scales, y);
  });
  return scales;
}

// The input's gradient: g * of_g + (x - mean) * of_x + shift.
struct Slope {
  float of_g, of_x, shift;
  Slope(double sum, double dot, double inverse, double weight, int64_t count)
      : of_g(static_cast<float>(weight * inverse)),
        of_x(static_cast<float>(-weight * inverse * inverse * inverse * dot / static_cast<double>(count))),
        shift(static_cast<float>(-weight * inverse * sum / static_cast<double>(count))) {}
};

struct Gradients {
  float *input, *weight, *bias;  // null: not wanted
};

void differentiate_rows(const Extent& e, const float* g, const float* x, const float* weight, const float* mean,
                        const float* inverse, const Gradients& out) {
  const auto& loops = channel_loops();
  const Rows rows(e);
  const auto means = rows.spread({mean, mean + e.channels});
  const auto totals = column_totals(e, 2, [&](int64_t at, int64_t count, int64_t width, float* into) {
    loops.column_products(g + at, x + at, count, width, means.data(), into, into + width);
  });
  std::vector<float> each_of_g(e.channels), each_of_x(e.channels), each_shift(e.channels);
  for (int64_t c = 0; c < e.channels; ++c) {
    const double sum = totals[c], dot = totals[e.channels + c];
    const Slope slope(sum, dot, inverse[c], weight ? weight[c] : 1.0, e.count());
    each_of_g[c] = slope.of_g, each_of_x[c] = slope.of_x, each_shift[c] = slope.shift;
    if (out.weight) out.weight[c] = static_cast<float>(dot * inverse[c]);
    if (out.bias) out.bias[c] = static_cast<float>(sum);
  }
  if (!out.input) return;
  const auto of_g = rows.spread(each_of_g), of_x = rows.spread(each_of_x), shift = rows.spread(each_shift);
  for_rows(e, [&](int64_t at, int64_t count, int64_t width) {
    loops.column_gradient(g + at, x + at, count, width, means.data(), of_g.data(), of_x.data(), shift.data(),
                          out.input + at, e.is_large());
  });
}

void differentiate_planes(const Extent& e, const float* g, const float* x, const float* weight, const float* mean,
                          const float* inverse, const Gradients& out) {
  const auto& loops = channel_loops();
  const int64_t step = e.channels * e.pixels;
  for_channels(e, [&](int64_t c) {
    double sum = 0, dot = 0;
    for (int64_t n = 0; n < e.samples; ++n) {
      const int64_t at = c * e.pixels + n * step;
      loops.products(g + at, x + at, e.pixels, mean[c], &sum, &dot);
    }
    if (out.weight) out.weight[c] = static_cast<float>(dot * inverse[c]);
    if (out.bias) out.bias[c] = static_cast<float>(sum);
    if (!out.input) return;
    const Slope slope(sum, dot, inverse[c], weight ? weight[c] : 1.0, e.count());
    for (int64_t n = 0; n < e.samples; ++n) {
      const int64_t at = c * e.pixels + n * step;
      loops.gradient(g + at, x + at, e.pixels, mean[c], slope.of_g, slope.of_x, slope.shift, out.input + at,
                     e.is_large());
    }
  });
}

void follow(const Optional& running, const std::vector<float>& value, double momentum, double factor) {
  if (!running || !running->defined()) return;
  float* data = running->mutable_data_ptr<float>();
  for (size_t c = 0; c < value.size(); ++c)
    data[c] = static_cast<float>(momentum * (value[c] * factor) + (1 - momentum) * data[c]);
}

Tensor tensor_of(const std::vector<float>& values, const Tensor& like) {
  auto tensor = at::empty({static_cast<int64_t>(values.size())}, like.options());
  std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<float>());
  return tensor;
}

// input, weight, bias, running_mean, running_var, training, momentum, eps
std::optional<Settings> read_settings(const torch::jit::Stack& stack, const Extent& e) {
  Settings settings{take_optional(stack[1]), take_optional(stack[2]), take_optional(stack[3]), take_optional(stack[4]),
                    stack[6].toDouble(), stack[7].toDouble()};
  const std::array all{&settings.weight, &settings.bias, &settings.running_mean, &settings.running_var};
  for (const auto* tensor : all)
    if (!is_plain_or_none(*tensor, e.channels)) return {};
  const Optional input = stack[0].toTensor();
  for (const auto* written : {&settings.running_mean, &settings.running_var}) {
    if (share_memory(*written, input)) return {};  // PyTorch's kernel writes them before it scales the input
    for (const auto* other : all)
      if (written != other && share_memory(*written, *other)) return {};
  }
  return settings;
}

bool may_run(const torch::jit::Stack& stack, bool in_any_order, Extent* e) {
  return !at::globalContext().deterministicAlgorithms() && stack[5].toBool() &&
         find_extent(stack[0].toTensor(), in_any_order, e);
}

std::vector<float> inverses(const Scales& scales, double eps) {
  std::vector<float> all;
  for (const float variance : scales.variance) all.push_back(static_cast<float>(1 / std::sqrt(variance + eps)));
  return all;
}

void follow_both(const Extent& e, const Scales& scales, const Settings& settings) {
  const auto count = static_cast<double>(e.count());
  follow(settings.running_mean, scales.mean, settings.momentum, 1);
  follow(settings.running_var, scales.variance, settings.momentum, count / (count - 1));
}

}  // namespace

bool try_batch_norm(torch::jit::Stack& stack, bool in_any_order) {
  Extent e{};
  if (!may_run(stack, in_any_order, &e)) return false;
  const auto settings = read_settings(stack, e);
  if (!settings) return false;
  const auto input = stack[0].toTensor();
  auto output = at::empty_like(input);
  const auto scales = normalize(e, input.const_data_ptr<float>(), *settings, output.mutable_data_ptr<float>());
  follow_both(e, scales, *settings);
  stack.clear();
  stack.emplace_back(std::move(output));
  stack.emplace_back(tensor_of(scales.mean, input));
  stack.emplace_back(tensor_of(inverses(scales, settings->eps), input));
  return true;
}

bool can_measure_batch_norm(const torch::jit::Stack& stack) {
  Extent e{};
  return channel_loops().rounds_once && may_run(stack, /*in_any_order=*/true, &e) && read_settings(stack, e).has_value();
}

BatchNormParts measure_batch_norm(const torch::jit::Stack& stack) {
  Extent e{};
  may_run(stack, /*in_any_order=*/true, &e);
  const auto settings = read_settings(stack, e);
  const auto input = stack[0].toTensor();
  const auto scales = normalize(e, input.const_data_ptr<float>(), *settings, nullptr);
  follow_both(e, scales, *settings);
  return {tensor_of(scales.mean, input), tensor_of(inverses(scales, settings->eps), input),
          tensor_of(scales.factor, input), tensor_of(scales.shift, input)};
}

Tensor scale_channels(const Tensor& input, const Tensor& mean, const Tensor& factor, const Tensor& shift) {
  Extent e{};
  for (const auto* tensor : {&mean, &factor, &shift})
    TORCH_CHECK(is_float_tensor(*tensor) && tensor->is_contiguous() && input.dim() > 1 && tensor->numel() == input.size(1),
                "lockstep::_scale_channels: want one float32 value for each of the channels of input, dim 1");
  if (!find_extent(input, /*in_any_order=*/true, &e)) {
    auto sizes = std::vector<int64_t>(input.dim(), 1);
    sizes[1] = input.size(1);
    return at::addcmul(shift.view(sizes), at::sub(input, mean.view(sizes)), factor.view(sizes));
  }
  const auto values = [](const Tensor& tensor) {
    return std::vector<float>(tensor.const_data_ptr<float>(), tensor.const_data_ptr<float>() + tensor.numel());
  };
  Scales scales(e.channels);
  scales.mean = values(mean), scales.factor = values(factor), scales.shift = values(shift);
  auto output = at::empty_like(input);
  const float* x = input.const_data_ptr<float>();
  float* y = output.mutable_data_ptr<float>();
  if (e.has_rows()) {
    scale_rows(e, x, scales, y);
  } else {
    for_channels(e, [&](int64_t c) { scale_plane(e, x, c, scales, y); });
  }
  return output;
}

// grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps, output_mask
bool try_batch_norm_backward(torch::jit::Stack& stack, bool in_any_order) {
  if (!stack[0].isTensor() || !stack[7].toBool() || at::globalContext().deterministicAlgorithms()) return false;
  auto gradient = stack[0].toTensor();
  const auto input = stack[1].toTensor();
  Extent e{};
  if (!find_extent(input, in_any_order, &e) || !is_float_tensor(gradient) || gradient.sizes() != input.sizes()) return false;
  if (in_any_order) gradient = map_in_order(gradient, input.is_contiguous() ? at::MemoryFormat::Contiguous : kChannelsLast);
  if (!in_any_order && !gradient.is_contiguous()) return false;
  const Optional weight = take_optional(stack[2]), mean = take_optional(stack[5]), inverse = take_optional(stack[6]);
  for (const auto* tensor : {&weight, &mean, &inverse})
    if (!is_plain_or_none(*tensor, e.channels)) return false;
  if (!data_or_null(mean) || !data_or_null(inverse)) return false;
  const auto wanted = stack[9].toBoolList();
  Tensor results[3];
  if (wanted[0]) results[0] = at::empty_like(input);
  for (const int i : {1, 2})
    if (wanted[i]) results[i] = at::empty({e.channels}, input.options());
  const auto data = [&](int i) { return wanted[i] ? results[i].mutable_data_ptr<float>() : nullptr; };
  (e.has_rows() ? differentiate_rows : differentiate_planes)(
      e, gradient.const_data_ptr<float>(), input.const_data_ptr<float>(), data_or_null(weight), data_or_null(mean),
      data_or_null(inverse), {data(0), data(1), data(2)});
  stack.clear();
  for (auto& result : results) stack.emplace_back(std::move(result));
  return true;
}

}  // namespace lockstep::dynamic
