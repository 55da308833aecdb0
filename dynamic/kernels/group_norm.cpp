#include "dynamic/kernels/group_norm.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ceil_div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>
#include <optional>
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

constexpr auto kChannelsLast = at::MemoryFormat::ChannelsLast;
constexpr int64_t kPartValues = 1 << 14;  // of a part where channels are innermost: they stay in the nearest cache
constexpr int64_t kGrain = 1 << 14;       // values a thread
constexpr int64_t kSmallestWidth = 64;    // narrow rows of channels are taken several at a time

// Maps are worked on in parts: a plane, or some pixels with their channels innermost.
struct Maps {
  int64_t samples, channels, pixels, groups;
  bool is_innermost;

  int64_t group_channels() const { return channels / groups; }
  double group_values() const { return static_cast<double>(group_channels() * pixels); }
  // With channels innermost: several pixels as one wide row, so that few channels fill the registers.
  int64_t folds() const { return std::max<int64_t>(1, kSmallestWidth / channels); }
  int64_t part_pixels() const {
    return is_innermost ? at::round_up(std::max<int64_t>(1, kPartValues / channels), folds()) : pixels;
  }
  int64_t parts() const { return is_innermost ? at::ceil_div(pixels, part_pixels()) : channels; }  // of a sample
  bool is_large() const { return is_past_cache(samples * channels * pixels * int64_t{sizeof(float)}); }
  int64_t part_values() const { return is_innermost ? part_pixels() * channels : pixels; }
};

// What a part knows of each of its channels, or has of each (part, channel): of one channel where parts are planes.
struct Table {
  int64_t kinds, width;
  std::vector<float> values;
  Table(const Maps& m, int64_t kinds)
      : kinds(kinds), width(m.is_innermost ? m.channels : 1), values(m.samples * m.parts() * kinds * width) {}
  float* row(int64_t part, int64_t kind) { return values.data() + (part * kinds + kind) * width; }
};

// body(part of all, sample, first value of the part, pixels)
template <class Body>
void for_parts(const Maps& m, Body body) {
  const int64_t parts = m.parts();
  shared_loop(0, m.samples * parts, std::max<int64_t>(1, kGrain / m.part_values()), [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      const int64_t sample = part / parts, first = part % parts * m.part_pixels();
      const int64_t at = sample * m.channels * m.pixels + part % parts * m.part_values();
      body(part, sample, at, m.is_innermost ? std::min(m.part_pixels(), m.pixels - first) : m.pixels);
    }
  });
}

// run(offset in the part, rows, width) over wide rows, and over those of single pixels that are left.
template <class Run>
void for_rows(const Maps& m, int64_t pixels, Run run) {
  const int64_t folds = m.folds(), wide = pixels / folds, rest = pixels - wide * folds;
  if (wide > 0) run(0, wide, folds * m.channels);
  if (rest > 0) run(wide * folds * m.channels, rest, m.channels);
}

// What comes by channel, as often as a wide row has it.
std::vector<float> spread(const Maps& m, const float* channels) {
  std::vector<float> wide;
  for (int64_t i = 0; i < m.folds(); ++i) wide.insert(wide.end(), channels, channels + m.channels);
  return wide;
}

// Sums over the pixels of a part into rows of a table, by channel: add(offset, rows, width, sums of `kinds` wide rows).
template <class Add>
void sum_rows(const Maps& m, int64_t pixels, int64_t kinds, float* const* into, Add add) {
  std::vector<float> sums(kinds * m.folds() * m.channels);
  for (int64_t kind = 0; kind < kinds; ++kind) std::fill_n(into[kind], m.channels, 0.0f);
  for_rows(m, pixels, [&](int64_t at, int64_t rows, int64_t width) {
    std::fill(sums.begin(), sums.end(), 0.0f);
    add(at, rows, width, sums.data());
    for (int64_t kind = 0; kind < kinds; ++kind)
      for (int64_t i = 0; i < width; ++i) into[kind][i % m.channels] += sums[kind * width + i];
  });
}

// visit(part of all, channel of its row, pixels) for each of a channel's parts in a sample.
template <class Visit>
void for_channel(const Maps& m, int64_t sample, int64_t channel, Visit visit) {
  const int64_t parts = m.parts();
  if (!m.is_innermost) return visit(sample * parts + channel, 0, m.pixels);
  for (int64_t part = 0; part < parts; ++part)
    visit(sample * parts + part, channel, std::min(m.part_pixels(), m.pixels - part * m.part_pixels()));
}

// Of a channel in a part: its mean, what that lacks for being rounded, and the squares of what is apart from both.
enum Moment : int64_t { kMean, kRest, kSquares, kMomentCount };

Table find_moments(const Maps& m, const float* x) {
  const auto& loops = channel_loops();
  Table table(m, kMomentCount);
  for_parts(m, [&](int64_t part, int64_t, int64_t at, int64_t pixels) {
    float *mean = table.row(part, kMean), *squares = table.row(part, kSquares);
    const float* values = x + at;
    if (!m.is_innermost) {
      const float about = middle_of(values, pixels);
      double sum = 0, squares_apart = 0;
      loops.moments(values, pixels, about, &sum, &squares_apart);
      const auto moments = plane_moments(about, sum, squares_apart, pixels,
                                         [&](float rounded) { return loops.squares(values, pixels, rounded); });
      *mean = moments.rounded;
      if (std::isfinite(*mean)) *table.row(part, kRest) = static_cast<float>(moments.mean - *mean);  // else zero
      *squares = static_cast<float>(moments.squares);
      return;
    }
    sum_rows(m, pixels, 1, &mean, [&](int64_t from, int64_t rows, int64_t width, float* sums) {
      loops.column_sums(values + from, rows, width, sums);
    });
    for (int64_t c = 0; c < m.channels; ++c) mean[c] /= static_cast<float>(pixels);
    const auto means = spread(m, mean);
    sum_rows(m, pixels, 1, &squares, [&](int64_t from, int64_t rows, int64_t width, float* sums) {
      loops.column_squares(values + from, rows, width, means.data(), sums);
    });
  });
  return table;
}

struct Moments {
  double mean, variance;
};

// Of a group in a sample, from those of its parts (Chan, Golub and LeVeque 1979).
Moments combine(const Maps& m, Table& table, int64_t sample, int64_t group) {
  const int64_t first = group * m.group_channels(), last = first + m.group_channels();
  double sum = 0, squares = 0;
  const auto for_group = [&](auto visit) {
    for (int64_t c = first; c < last; ++c) for_channel(m, sample, c, visit);
  };
  const auto mean_of = [&](int64_t part, int64_t c) { return double{table.row(part, kMean)[c]} + table.row(part, kRest)[c]; };
  for_group([&](int64_t part, int64_t c, int64_t pixels) { sum += static_cast<double>(pixels) * mean_of(part, c); });
  const double mean = sum / m.group_values();
  for_group([&](int64_t part, int64_t c, int64_t pixels) {
    const double apart = mean_of(part, c) - mean;
    squares += table.row(part, kSquares)[c] + static_cast<double>(pixels) * apart * apart;
  });
  return {mean, squares / m.group_values()};
}

// By (sample, channel).
struct Lines {
  std::vector<float> mean, factor, shift, of_x;
  explicit Lines(const Maps& m)
      : mean(m.samples * m.channels), factor(mean.size()), shift(mean.size()), of_x(mean.size()) {}
};

void scale(const Maps& m, const float* x, const Lines& lines, float* y) {
  const auto& loops = channel_loops();
  for_parts(m, [&](int64_t part, int64_t sample, int64_t at, int64_t pixels) {
    if (!m.is_innermost)
      return loops.scale(x + at, pixels, lines.mean[part], lines.factor[part], lines.shift[part], y + at, m.is_large());
    const auto wide = [&](const std::vector<float>& values) { return spread(m, values.data() + sample * m.channels); };
    const auto mean = wide(lines.mean), factor = wide(lines.factor), shift = wide(lines.shift);
    for_rows(m, pixels, [&](int64_t from, int64_t rows, int64_t width) {
      loops.column_scale(x + at + from, rows, width, mean.data(), factor.data(), shift.data(), y + at + from, m.is_large());
    });
  });
}

enum Product : int64_t { kSum, kDot };  // of the gradient, and of it and what the input is apart from its mean

Table find_products(const Maps& m, const float* g, const float* x, const Lines& lines) {
  const auto& loops = channel_loops();
  Table table(m, 2);
  for_parts(m, [&](int64_t part, int64_t sample, int64_t at, int64_t pixels) {
    float* const into[] = {table.row(part, kSum), table.row(part, kDot)};
    if (!m.is_innermost) {
      double sum = 0, dot = 0;
      loops.products(g + at, x + at, pixels, lines.mean[part], &sum, &dot);
      *into[kSum] = static_cast<float>(sum), *into[kDot] = static_cast<float>(dot);
      return;
    }
    const auto mean = spread(m, lines.mean.data() + sample * m.channels);
    sum_rows(m, pixels, 2, into, [&](int64_t from, int64_t rows, int64_t width, float* sums) {
      loops.column_products(g + at + from, x + at + from, rows, width, mean.data(), sums, sums + width);
    });
  });
  return table;
}

// g * factor + (x - mean) * of_x + shift
void differentiate(const Maps& m, const float* g, const float* x, const Lines& lines, float* out) {
  const auto& loops = channel_loops();
  for_parts(m, [&](int64_t part, int64_t sample, int64_t at, int64_t pixels) {
    if (!m.is_innermost)
      return loops.gradient(g + at, x + at, pixels, lines.mean[part], lines.factor[part], lines.of_x[part],
                            lines.shift[part], out + at, m.is_large());
    const auto wide = [&](const std::vector<float>& values) { return spread(m, values.data() + sample * m.channels); };
    const auto mean = wide(lines.mean), of_g = wide(lines.factor), of_x = wide(lines.of_x), shift = wide(lines.shift);
    for_rows(m, pixels, [&](int64_t from, int64_t rows, int64_t width) {
      loops.column_gradient(g + at + from, x + at + from, rows, width, mean.data(), of_g.data(), of_x.data(), shift.data(),
                            out + at + from, m.is_large());
    });
  });
}

// ---- what is asked for

bool is_plain_or_none(const Optional& tensor, int64_t count) {
  return !tensor || !tensor->defined() || (is_float_tensor(*tensor) && tensor->is_contiguous() && tensor->numel() == count);
}

Optional take_optional(const c10::IValue& value) { return value.isTensor() ? Optional(value.toTensor()) : std::nullopt; }

const float* data_or_null(const Optional& tensor) {
  return tensor && tensor->defined() ? tensor->const_data_ptr<float>() : nullptr;
}

// As PyTorch's kernel has it: dims of one element have the strides of the format, whatever the input says.
Tensor empty_as(const Tensor& input) { return at::empty_like(input, input.suggest_memory_format()); }

// `sizes`: N, C, pixels, groups, as they stand on the stack.
std::optional<Maps> maps_of(const Tensor& input, at::ArrayRef<c10::IValue> sizes, bool in_any_order) {
  if (at::globalContext().deterministicAlgorithms() || !is_float_tensor(input) || input.dim() < 2 || input.numel() == 0)
    return std::nullopt;
  const bool is_innermost = !input.is_contiguous();
  if (is_innermost && !(in_any_order && input.is_contiguous(kChannelsLast))) return std::nullopt;
  const Maps m{sizes[0].toInt(), sizes[1].toInt(), sizes[2].toInt(), sizes[3].toInt(), is_innermost};
  const bool fits = m.samples == input.size(0) && m.channels == input.size(1) && m.groups > 0 &&
                    m.channels % m.groups == 0 && m.samples * m.channels * m.pixels == input.numel();
  return fits ? std::optional(m) : std::nullopt;
}

}  // namespace

// input, weight, bias, N, C, pixels, groups, eps
bool try_group_norm(torch::jit::Stack& stack, bool in_any_order) {
  const auto input = stack[0].toTensor();
  const auto m = maps_of(input, at::ArrayRef(stack).slice(3, 4), in_any_order);
  const Optional weight = take_optional(stack[1]), bias = take_optional(stack[2]);
  if (!m || !is_plain_or_none(weight, m->channels) || !is_plain_or_none(bias, m->channels)) return false;
  const double eps = stack[7].toDouble();
  auto output = empty_as(input), mean = at::empty({m->samples, m->groups}, input.options());
  auto inverse = at::empty_like(mean);
  const float *factors = data_or_null(weight), *shifts = data_or_null(bias);
  auto table = find_moments(*m, input.const_data_ptr<float>());
  Lines lines(*m);
  for (int64_t n = 0; n < m->samples; ++n)
    for (int64_t group = 0; group < m->groups; ++group) {
      const auto [group_mean, variance] = combine(*m, table, n, group);
      const double group_inverse = 1 / std::sqrt(variance + eps);
      mean.mutable_data_ptr<float>()[n * m->groups + group] = static_cast<float>(group_mean);
      inverse.mutable_data_ptr<float>()[n * m->groups + group] = static_cast<float>(group_inverse);
      for (int64_t c = group * m->group_channels(); c < (group + 1) * m->group_channels(); ++c) {
        const int64_t line = n * m->channels + c;
        lines.mean[line] = static_cast<float>(group_mean);
        lines.factor[line] = static_cast<float>(group_inverse * (factors ? factors[c] : 1.0));
        lines.shift[line] = shifts ? shifts[c] : 0.0f;
      }
    }
  scale(*m, input.const_data_ptr<float>(), lines, output.mutable_data_ptr<float>());
  stack.clear();
  for (auto* result : {&output, &mean, &inverse}) stack.emplace_back(std::move(*result));
  return true;
}

// grad_out, input, mean, rstd, weight, N, C, pixels, groups, output_mask
bool try_group_norm_backward(torch::jit::Stack& stack, bool in_any_order) {
  auto gradient = stack[0].toTensor();
  const auto input = stack[1].toTensor();
  const auto m = maps_of(input, at::ArrayRef(stack).slice(5, 4), in_any_order);
  if (!m || !is_float_tensor(gradient) || gradient.sizes() != input.sizes() || gradient._is_zerotensor()) return false;
  if (in_any_order && input.dim() == 4)
    gradient = map_in_order(gradient, m->is_innermost ? kChannelsLast : at::MemoryFormat::Contiguous);
  if (!m->is_innermost && !gradient.is_contiguous()) return false;
  const Optional mean = take_optional(stack[2]), inverse = take_optional(stack[3]), weight = take_optional(stack[4]);
  for (const auto* tensor : {&mean, &inverse})
    if (!data_or_null(*tensor) || !is_plain_or_none(*tensor, m->samples * m->groups)) return false;
  if (!is_plain_or_none(weight, m->channels)) return false;
  const float *means = data_or_null(mean), *inverses = data_or_null(inverse), *factors = data_or_null(weight);
  const float *g = gradient.const_data_ptr<float>(), *x = input.const_data_ptr<float>();
  Lines lines(*m);
  for (size_t line = 0; line < lines.mean.size(); ++line) lines.mean[line] = means[line / m->group_channels()];
  auto table = find_products(*m, g, x, lines);
  std::vector<double> of_weight(m->channels), of_bias(m->channels);
  for (int64_t n = 0; n < m->samples; ++n)
    for (int64_t group = 0; group < m->groups; ++group) {
      const double by = inverses[n * m->groups + group];
      double group_sum = 0, group_dot = 0;
      const int64_t first = group * m->group_channels(), last = first + m->group_channels();
      for (int64_t c = first; c < last; ++c) {
        double sum = 0, dot = 0;
        for_channel(*m, n, c, [&](int64_t part, int64_t column, int64_t) {
          sum += table.row(part, kSum)[column];
          dot += table.row(part, kDot)[column];
        });
        of_weight[c] += dot * by;
        of_bias[c] += sum;
        const double factor = factors ? factors[c] : 1.0;
        group_sum += factor * sum;
        group_dot += factor * dot;
        lines.factor[n * m->channels + c] = static_cast<float>(factor * by);
      }
      for (int64_t line = n * m->channels + first; line < n * m->channels + last; ++line) {
        lines.of_x[line] = static_cast<float>(-by * by * by * group_dot / m->group_values());
        lines.shift[line] = static_cast<float>(-by * group_sum / m->group_values());
      }
    }
  const auto wanted = stack[9].toBoolList();
  Tensor results[3];
  if (wanted[0]) {
    results[0] = empty_as(input);
    differentiate(*m, g, x, lines, results[0].mutable_data_ptr<float>());
  }
  for (const int i : {1, 2}) {
    if (!wanted[i]) continue;
    results[i] = at::empty({m->channels}, input.options());
    const auto& sums = i == 1 ? of_weight : of_bias;
    std::copy(sums.begin(), sums.end(), results[i].mutable_data_ptr<float>());
  }
  stack.clear();
  for (auto& result : results) stack.emplace_back(std::move(result));
  return true;
}

}  // namespace lockstep::dynamic
