#include "dynamic/kernels/convolution_strips.h"

#include <ATen/Parallel.h>
#include <ATen/ceil_div.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "dynamic/kernels/blas.h"
#include "dynamic/kernels/map_order.h"
#include "dynamic/kernels/transpose.h"
#include "dynamic/threads/shared_loop.h"

namespace lockstep::dynamic {

namespace {

using at::Tensor;

constexpr int64_t kStripFloats = 1 << 16;     // of patches: half of a common second cache
constexpr int64_t kFewestRows = 32, kMostRows = 512;
constexpr int64_t kFewestSummed = 128;        // rows that are added to the gradient of a weight at a time
constexpr int64_t kMostWeights = 1 << 20;     // each thread has a sum of its own for them
constexpr int64_t kCommonChannels = 8;          // a multiple of them fills registers

// One dim of a map that is read at positions: tap t of position p is pixel begin + p * stride + t * step.
struct Axis {
  int64_t size, positions, taps, begin, stride, step;
  int64_t pixel(int64_t position, int64_t tap) const { return begin + position * stride + tap * step; }
};

// Which pixels make a patch. A patch is a row: taps along y, then along x, then channels.
struct Patches {
  Axis y, x;
  int64_t channels;

  int64_t count(int64_t maps) const { return maps * y.positions * x.positions; }
  int64_t row() const { return y.taps * x.taps * channels; }
  // Those of positions [first, first + size), of all maps one after the other.
  void copy(const float* map, int64_t first, int64_t size, float* out) const {
    for (int64_t i = first; i < first + size; ++i) {
      const int64_t column = i % x.positions, line = i / x.positions % y.positions, n = i / x.positions / y.positions;
      for (int64_t t = 0; t < y.taps; ++t, out += x.taps * channels) {
        const int64_t at = y.pixel(line, t);
        if (at < 0 || at >= y.size) {
          std::fill_n(out, x.taps * channels, 0.0f);
        } else {
          copy_line(map + (n * y.size + at) * x.size * channels, column, out);
        }
      }
    }
  }

 private:
  void copy_line(const float* line, int64_t column, float* out) const {
    const int64_t begin = x.pixel(column, 0), last = x.pixel(column, x.taps - 1);
    if (x.step == 1 && begin >= 0 && last < x.size) {
      std::memcpy(out, line + begin * channels, sizeof(float) * x.taps * channels);
      return;
    }
    for (int64_t t = 0; t < x.taps; ++t, out += channels) {
      const int64_t at = x.pixel(column, t);
      if (at < 0 || at >= x.size) {
        std::fill_n(out, channels, 0.0f);
      } else {
        std::memcpy(out, line + at * channels, sizeof(float) * channels);
      }
    }
  }
};

Patches patches_of_input(const ConvolutionShape& s) {
  const auto axis = [&](int dim, int64_t size, int64_t positions, int64_t taps) {
    return Axis{size, positions, taps, -s.padding[dim], s.stride[dim], s.dilation[dim]};
  };
  return {axis(0, s.h, s.oh, s.kh), axis(1, s.w, s.ow, s.kw), s.c};
}

int64_t rows_of_strip(int64_t row, int64_t fewest, int64_t count) {
  const int64_t rows = std::clamp(kStripFloats / row, fewest, kMostRows);
  return std::max<int64_t>(1, std::min(rows, at::ceil_div<int64_t>(count, loop_threads())));
}

// Pixels first, first + apart, ... of one dim of the input's gradient, which all see the same taps of the window; the
// first of these is the last of the window, so that what they read lies in rising order.
struct PixelClass {
  Axis axis;
  int64_t first, apart, last_tap, between_taps;
};

std::vector<PixelClass> pixel_classes(const ConvolutionShape& s, int dim) {
  const int64_t size = dim ? s.w : s.h, out_size = dim ? s.ow : s.oh, taps = dim ? s.kw : s.kh;
  const int64_t stride = s.stride[dim], dilation = s.dilation[dim], padding = s.padding[dim];
  const int64_t between = stride / std::gcd(stride, dilation);  // of two taps that a pixel sees
  std::vector<PixelClass> classes;
  for (int64_t first = 0; first < std::min(stride, size); ++first) {
    PixelClass c{{out_size, at::ceil_div(size - first, stride), 0, 0, 1, between * dilation / stride}, first, stride, 0,
                 between};
    for (int64_t tap = 0; tap < taps; ++tap) {
      if ((first + padding - tap * dilation) % stride != 0) continue;
      ++c.axis.taps;
      c.last_tap = tap;
    }
    c.axis.begin = (first + padding - c.last_tap * dilation) / stride;
    classes.push_back(c);
  }
  return classes;
}

// A convolution of the output's gradient.
struct GradientPart {
  PixelClass y, x;
  Patches patches;
  std::vector<float> windows;  // (taps along y, taps along x, O, C)
};

GradientPart part_of(const ConvolutionShape& s, const PixelClass& y, const PixelClass& x, const float* weight) {
  GradientPart part{y, x, {y.axis, x.axis, s.o}, {}};
  part.windows.resize(part.patches.row() * s.c);
  const int64_t window = s.kh * s.kw;
  shared_loop(0, s.o, std::max<int64_t>(1, (1 << 14) / (s.c * window)), [&](int64_t begin, int64_t end) {
    for (int64_t i = 0; i < y.axis.taps; ++i)
      for (int64_t j = 0; j < x.axis.taps; ++j) {
        const int64_t tap = (y.last_tap - i * y.between_taps) * s.kw + x.last_tap - j * x.between_taps;
        for (int64_t o = begin; o < end; ++o) {
          float* out = part.windows.data() + ((i * x.axis.taps + j) * s.o + o) * s.c;
          for (int64_t c = 0; c < s.c; ++c) out[c] = weight[(o * s.c + c) * window + tap];
        }
      }
  });
  return part;
}

}  // namespace

// What oneDNN has good kernels for is not tried.
bool is_for_strips(const ConvolutionShape& s) {
  const bool is_common = s.stride[0] == 1 && s.stride[1] == 1 && s.c % kCommonChannels == 0 && s.o % kCommonChannels == 0;
  return has_blas() && !is_common && !s.is_pointwise() && s.o * s.depth() <= kMostWeights;
}

Tensor forward_by_strips(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                         const ConvolutionShape& s) {
  const Patches patches = patches_of_input(s);
  const int64_t row = patches.row(), count = patches.count(s.n), strip = rows_of_strip(row, kFewestRows, count);
  const auto windows = map_in_order(weight, at::MemoryFormat::ChannelsLast);  // (O, KH, KW, C)
  const auto dense_bias = bias ? bias->contiguous() : Tensor();
  auto result = create_innermost_map(s.n, s.o, s.oh, s.ow, input);
  const auto* source = input.const_data_ptr<float>();
  const auto* factors = windows.const_data_ptr<float>();
  const auto* shift = bias ? dense_bias.const_data_ptr<float>() : nullptr;
  auto* target = result.mutable_data_ptr<float>();
  shared_loop(0, at::ceil_div(count, strip), 1, [&](int64_t begin, int64_t end) {
    std::vector<float> rows(strip * row);
    for (int64_t first = begin * strip; first < std::min(end * strip, count); first += strip) {
      const int64_t size = std::min(strip, count - first);
      float* out = target + first * s.o;
      patches.copy(source, first, size, rows.data());
      for (int64_t i = 0; shift && i < size; ++i) std::copy_n(shift, s.o, out + i * s.o);
      multiply({rows.data(), row}, {factors, row, true}, {out, s.o}, size, row, s.o, shift ? 1.0f : 0.0f);
    }
  }, Weight::kHeavy);
  return result;
}

Tensor input_gradient_by_strips(const Tensor& gradient, const Tensor& weight, const ConvolutionShape& s) {
  std::vector<GradientPart> parts;
  int64_t longest = 0, most = 0;
  for (const auto& y : pixel_classes(s, 0))
    for (const auto& x : pixel_classes(s, 1)) {
      parts.push_back(part_of(s, y, x, weight.const_data_ptr<float>()));
      longest = std::max(longest, parts.back().patches.row());
      most = std::max(most, parts.back().patches.count(s.n));
    }
  auto result = create_innermost_map(s.n, s.c, s.h, s.w, gradient);
  const auto* source = gradient.const_data_ptr<float>();
  auto* target = result.mutable_data_ptr<float>();
  const int64_t strip = rows_of_strip(std::max<int64_t>(1, longest), kFewestRows, most);
  const auto part_count = static_cast<int64_t>(parts.size());
  shared_loop(0, at::ceil_div(most, strip) * part_count, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> rows(strip * longest), pixels(strip * s.c);
    for (int64_t i = begin; i < end; ++i) {  // the same strip of all parts, then the next one: threads get the same
      const auto& part = parts[i % part_count];
      const int64_t row = part.patches.row(), first = i / part_count * strip;
      const int64_t size = std::min(strip, part.patches.count(s.n) - first);
      if (size <= 0) continue;
      const bool is_dense = part_count == 1;
      float* out = is_dense ? target + first * s.c : pixels.data();
      if (row == 0) {
        std::fill_n(out, size * s.c, 0.0f);
      } else {
        part.patches.copy(source, first, size, rows.data());
        multiply({rows.data(), row}, {part.windows.data(), s.c}, {out, s.c}, size, row, s.c, 0);
      }
      if (is_dense) continue;
      const int64_t width = part.x.axis.positions, height = part.y.axis.positions;
      for (int64_t p = first; p < first + size; ++p) {
        const int64_t y = part.y.first + p / width % height * part.y.apart, x = part.x.first + p % width * part.x.apart;
        std::copy_n(pixels.data() + (p - first) * s.c, s.c, target + ((p / width / height * s.h + y) * s.w + x) * s.c);
      }
    }
  }, Weight::kHeavy);
  return result;
}

Tensor weight_gradient_by_strips(const Tensor& gradient, const Tensor& input, const ConvolutionShape& s) {
  const Patches patches = patches_of_input(s);
  const int64_t row = patches.row(), count = patches.count(s.n), strip = rows_of_strip(row, kFewestSummed, count);
  const int64_t strips = at::ceil_div(count, strip), parts = std::min<int64_t>(loop_threads(), strips);
  const auto* slopes = gradient.const_data_ptr<float>();
  const auto* values = input.const_data_ptr<float>();
  auto sums = at::empty({parts, s.o, row}, input.options().memory_format(at::MemoryFormat::Contiguous));
  auto* all_sums = sums.mutable_data_ptr<float>();
  shared_loop(0, parts, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> rows(strip * row);
    for (int64_t part = begin; part < end; ++part) {
      const int64_t from = part * strips / parts * strip, to = std::min((part + 1) * strips / parts * strip, count);
      for (int64_t first = from; first < to; first += strip) {
        const int64_t size = std::min(strip, to - first);
        patches.copy(values, first, size, rows.data());
        multiply({slopes + first * s.o, s.o, true}, {rows.data(), row}, {all_sums + part * s.o * row, row}, s.o, size, row,
                 first > from ? 1.0f : 0.0f);
      }
    }
  }, Weight::kHeavy);
  const int64_t window = s.kh * s.kw;
  auto result = at::empty({s.o, s.c, s.kh, s.kw}, input.options().memory_format(at::MemoryFormat::Contiguous));
  auto* out = result.mutable_data_ptr<float>();
  shared_loop(0, s.o, std::max<int64_t>(1, (1 << 14) / row), [&](int64_t begin, int64_t end) {
    for (int64_t part = 1; part < parts; ++part)
      for (int64_t i = begin * row; i < end * row; ++i) all_sums[i] += all_sums[part * s.o * row + i];
    for (int64_t o = begin; o < end; ++o) transpose(all_sums + o * row, s.c, out + o * row, window, window, s.c);
  });
  return result;
}

}  // namespace lockstep::dynamic
