#include "dynamic/kernels/convolution_depthwise.h"

#include <ATen/Parallel.h>
#include <ATen/ceil_div.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

#include "dynamic/kernels/depthwise_loops.h"
#include "dynamic/kernels/map_order.h"
#include "dynamic/kernels/transpose.h"
#include "dynamic/threads/shared_loop.h"

namespace lockstep::dynamic {

namespace {

using at::Tensor;

constexpr int64_t kGrain = 1 << 16;         // multiplications that a thread takes at least
constexpr int64_t kMostParts = 8;           // of the sums of a gradient of weights
constexpr int64_t kPaddedValues = 1 << 16;  // of rows that are copied between zeros at a time: they stay in the cache

// A dim of a map and of the windows on it.
struct Line {
  int64_t size, out_size, window, stride, padding, dilation;
};
Line line_of(const ConvolutionShape& s, int dim) {
  return dim == 0 ? Line{s.h, s.oh, s.kh, s.stride[0], s.padding[0], s.dilation[0]}
                  : Line{s.w, s.ow, s.kw, s.stride[1], s.padding[1], s.dilation[1]};
}

// What each item along a dim of the result is made of.
struct Taps {
  std::vector<DepthwiseTap> taps;
  std::vector<int64_t> ends{0};
  DepthwiseTaps view() const { return {taps.data(), ends.data()}; }
};

// For each output the inputs under its window; `step` and `weight_step`: how far items of a dim lie apart.
Taps taps_of_outputs(const Line& line, int64_t step, int64_t weight_step) {
  Taps result;
  for (int64_t out = 0; out < line.out_size; ++out) {
    for (int64_t k = 0; k < line.window; ++k)
      if (const int64_t at = out * line.stride + k * line.dilation - line.padding; at >= 0 && at < line.size)
        result.taps.push_back({at * step, k * weight_step});
    result.ends.push_back(static_cast<int64_t>(result.taps.size()));
  }
  return result;
}

// For each input the outputs whose windows it lies under.
Taps taps_of_inputs(const Line& line, int64_t step, int64_t weight_step) {
  Taps result;
  for (int64_t in = 0; in < line.size; ++in) {
    for (int64_t k = 0; k < line.window; ++k) {
      const int64_t from = in + line.padding - k * line.dilation;
      if (from >= 0 && from % line.stride == 0 && from / line.stride < line.out_size)
        result.taps.push_back({from / line.stride * step, k * weight_step});
    }
    result.ends.push_back(static_cast<int64_t>(result.taps.size()));
  }
  return result;
}

// (channels, window) to (window, channels)
std::vector<float> turned(const Tensor& weight) {
  const int64_t channels = weight.size(0), window = weight.numel() / channels;
  std::vector<float> result(weight.numel());
  transpose(weight.const_data_ptr<float>(), window, result.data(), channels, channels, window);
  return result;
}

// All rows of a map of (n, h, w, channels) out of another one.
void combine_rows(const ConvolutionShape& s, const Tensor& source, const Tensor& weight, const Taps& rows,
                  const Taps& columns, const float* bias, const Tensor& out) {
  const auto& loops = depthwise_loops();
  const auto weights = turned(weight);
  const int64_t h = out.size(2), w = out.size(3);
  const auto* from = source.const_data_ptr<float>();
  auto* to = out.mutable_data_ptr<float>();
  const int64_t source_values = source.size(2) * source.size(3) * s.c, row_values = w * s.c;
  shared_loop(0, s.n * h, std::max<int64_t>(1, kGrain / (row_values * s.kh * s.kw)), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t sample = task / h, y = task % h, first = rows.ends[y];
      loops.combine(from + sample * source_values, weights.data(), rows.taps.data() + first, rows.ends[y + 1] - first,
                    columns.view(), bias, to + task * row_values, w, s.c);
    }
  });
}

// Rows of the input between zeros, for some rows of the gradient of one sample.
class PaddedRows {
 public:
  explicit PaddedRows(const ConvolutionShape& s)
      : s_(s), width_(std::max((s.ow - 1) * s.stride[1] + (s.kw - 1) * s.dilation[1] + 1, s.w + s.padding[1])) {}

  // So many rows of the gradient at a time.
  int64_t most_outputs() const {
    const int64_t rows = kPaddedValues / (width_ * s_.c), extent = (s_.kh - 1) * s_.dilation[0] + 1;
    return std::max<int64_t>(1, (rows - extent) / s_.stride[0] + 1);
  }
  int64_t bytes() const {
    const int64_t rows = (most_outputs() - 1) * s_.stride[0] + (s_.kh - 1) * s_.dilation[0] + 1;
    return rows * width_ * s_.c * static_cast<int64_t>(sizeof(float));
  }

  void fill(const float* sample, int64_t first_output, int64_t outputs) {
    first_ = first_output * s_.stride[0] - s_.padding[0];
    const int64_t rows = (outputs - 1) * s_.stride[0] + (s_.kh - 1) * s_.dilation[0] + 1;
    values_.assign(rows * width_ * s_.c, 0);
    for (int64_t row = std::max<int64_t>(0, -first_); row < rows && first_ + row < s_.h; ++row)
      std::copy_n(sample + (first_ + row) * s_.w * s_.c, s_.w * s_.c, values_.data() + (row * width_ + s_.padding[1]) * s_.c);
  }
  // Null where the row lies outside of the map.
  const float* row_for(int64_t output, int64_t ky) const {
    const int64_t y = output * s_.stride[0] + ky * s_.dilation[0] - s_.padding[0];
    return y < 0 || y >= s_.h ? nullptr : values_.data() + (y - first_) * width_ * s_.c;
  }

 private:
  const ConvolutionShape& s_;
  const int64_t width_;
  int64_t first_ = 0;  // the map's row with which they begin
  std::vector<float> values_;
};

}  // namespace

Tensor forward_by_channels(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                           const ConvolutionShape& s) {
  const auto out = create_innermost_map(s.n, s.c, s.oh, s.ow, input);
  combine_rows(s, input, weight, taps_of_outputs(line_of(s, 0), s.w * s.c, s.kw * s.c),
               taps_of_outputs(line_of(s, 1), s.c, s.c), bias ? bias->const_data_ptr<float>() : nullptr, out);
  return out;
}

Tensor input_gradient_by_channels(const Tensor& gradient, const Tensor& weight, const ConvolutionShape& s) {
  const auto out = create_innermost_map(s.n, s.c, s.h, s.w, gradient);
  combine_rows(s, gradient, weight, taps_of_inputs(line_of(s, 0), s.ow * s.c, s.kw * s.c),
               taps_of_inputs(line_of(s, 1), s.c, s.c), nullptr, out);
  return out;
}

int64_t padded_bytes_by_channels(const ConvolutionShape& s) { return PaddedRows(s).bytes(); }

Tensor weight_gradient_by_channels(const Tensor& gradient, const Tensor& input, const ConvolutionShape& s) {
  const auto& loops = depthwise_loops();
  const auto* slopes = gradient.const_data_ptr<float>();
  const auto* values = input.const_data_ptr<float>();
  const int64_t window = s.kh * s.kw, rows = s.n * s.oh;
  const int64_t parts = std::clamp<int64_t>(rows * s.ow * s.c * window / kGrain, 1, std::min(kMostParts, rows));
  std::vector<std::vector<float>> sums(parts);
  shared_loop(0, parts, 1, [&](int64_t begin, int64_t end) {
    PaddedRows padded(s);
    for (int64_t part = begin; part < end; ++part) {
      sums[part].assign(window * s.c, 0);
      for (int64_t row = part * rows / parts, last = (part + 1) * rows / parts; row < last;) {
        const int64_t sample = row / s.oh, first = row % s.oh;
        const int64_t count = std::min({padded.most_outputs(), s.oh - first, last - row});
        padded.fill(values + sample * s.h * s.w * s.c, first, count);
        for (int64_t y = first; y < first + count; ++y)
          for (int64_t ky = 0; ky < s.kh; ++ky)
            if (const float* source = padded.row_for(y, ky))
              loops.correlate(slopes + (sample * s.oh + y) * s.ow * s.c, source, s.ow, s.stride[1] * s.c, s.dilation[1] * s.c,
                              s.kw, s.c, sums[part].data() + ky * s.kw * s.c);
        row += count;
      }
    }
  });
  for (int64_t part = 1; part < parts; ++part)
    for (int64_t i = 0; i < window * s.c; ++i) sums[0][i] += sums[part][i];
  auto result = at::empty({s.c, 1, s.kh, s.kw}, gradient.options());
  transpose(sums[0].data(), s.c, result.mutable_data_ptr<float>(), window, window, s.c);
  return result;
}

}  // namespace lockstep::dynamic
