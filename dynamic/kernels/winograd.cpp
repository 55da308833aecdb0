#include "dynamic/kernels/winograd.h"

#include <ATen/Parallel.h>
#include <ATen/ceil_div.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <optional>
#include <unordered_map>
#include <vector>

#include "dynamic/kernels/map_order.h"
#include "dynamic/kernels/product_loops.h"
#include "dynamic/kernels/transpose.h"
#include "dynamic/kernels/winograd_loops.h"
#include "dynamic/threads/shared_loop.h"

namespace lockstep::dynamic {

namespace {

using at::Tensor;

constexpr int64_t kTile = 16, kTaps = 9;       // numbers of a tile, of a window
constexpr int64_t kFewestChannels = 16;        // a register of the loops under products
constexpr int64_t kMostWindows = 1 << 17;      // beyond, their tiles take much memory, and maps are mostly small
constexpr int64_t kFewestPositions = 1 << 10;  // that a gradient of weights is added up over: few taps see zeros alone
constexpr float kRounding = 32 * std::numeric_limits<float>::epsilon();  // of what a tap is the difference of: left by it
constexpr int64_t kBlockFloats = 1 << 17;      // tiles of both maps that a thread holds: its cache
constexpr int64_t kSmallestBlock = 32, kLargestBlock = 512;  // tiles
constexpr int64_t kNarrowestSlice = 32;  // of channels that a thread adds up for: it turns all of the input into tiles

// A map, channels innermost, cut into tiles of 2x2 outputs.
struct Tiles {
  int64_t h, w, channels;  // of the map
  int64_t across, in_map;  // tiles
  int64_t side;            // pixels of the map that a tile covers, and
  int64_t above, left;     // where the first tile begins

  // pixels[i] of tile number `tile`; `outside` where there is none.
  template <class Value>
  void find(Value* map, int64_t tile, Value* outside, Value** pixels) const {
    const int64_t n = tile / in_map, y0 = tile % in_map / across * 2 - above, x0 = tile % across * 2 - left;
    for (int64_t y = y0; y < y0 + side; ++y)
      for (int64_t x = x0; x < x0 + side; ++x)
        *pixels++ = y >= 0 && y < h && x >= 0 && x < w ? map + ((n * h + y) * w + x) * channels : outside;
  }
};

int64_t tiles_across(int64_t size) { return at::ceil_div<int64_t>(size, 2); }

// Those of a map that is read, for outputs of (out_h, out_w), and of these.
Tiles read_tiles(int64_t h, int64_t w, int64_t channels, int64_t out_h, int64_t out_w, const int64_t* padding) {
  return {h, w, channels, tiles_across(out_w), tiles_across(out_h) * tiles_across(out_w), 4, padding[0], padding[1]};
}
Tiles written_tiles(int64_t h, int64_t w, int64_t channels) {
  return {h, w, channels, tiles_across(w), tiles_across(h) * tiles_across(w), 2, 0, 0};
}

// Of so many tiles, with so many channels of both maps together.
int64_t block_size(int64_t channels, int64_t count) {
  const int64_t block = std::clamp(kBlockFloats / (kTile * channels), kSmallestBlock, kLargestBlock);
  return std::min(block, at::ceil_div<int64_t>(count, loop_threads()));
}

// Whether some pixel of a map is zero in all of its channels.
bool has_empty_pixel(const Tensor& map) {
  const int64_t channels = map.size(1), count = map.numel() / channels;
  const auto* values = map.const_data_ptr<float>();
  std::atomic<bool> found{false};
  shared_loop(0, count, 1 << 12, [&](int64_t begin, int64_t end) {
    for (const float* pixel = values + begin * channels; pixel < values + end * channels; pixel += channels)
      if (std::all_of(pixel, pixel + channels, [](float value) { return value == 0; })) {
        found = true;
        return;
      }
  });
  return found;
}

// Whether some windows have taps that are zero beside others that are not, such as masks leave: sums of those would let
// a little through of pixels that must not count.
bool has_masked_windows(const Tensor& weight) {
  const auto* taps = weight.const_data_ptr<float>();
  std::atomic<bool> found{false};
  shared_loop(0, weight.numel() / kTaps, 1 << 12, [&](int64_t begin, int64_t end) {
    int64_t zeros = 0;
#pragma omp simd reduction(+ : zeros)
    for (int64_t i = begin * kTaps; i < end * kTaps; ++i) zeros += taps[i] == 0;
    for (int64_t w = begin; zeros > 0 && w < end; ++w) {
      const auto of_window = std::count(taps + w * kTaps, taps + (w + 1) * kTaps, 0.0f);
      if (of_window > 0 && of_window < kTaps) found = true;
    }
  });
  return found;
}

// Windows (from, 9, to) as tiles (16, from, to). The windows are gone then.
Tensor transformed(Tensor&& given) {
  const Tensor windows = std::move(given);
  const int64_t from = windows.size(0), to = windows.size(2);
  auto tiles = at::empty({kTile, from, to}, windows.options());
  const auto* taps = windows.const_data_ptr<float>();
  auto* out = tiles.mutable_data_ptr<float>();
  shared_loop(0, from, std::max<int64_t>(1, (1 << 12) / to), [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c)
      winograd_loops().from_window(taps + c * kTaps * to, to, to, out + c * to, from * to);
  });
  return tiles;
}

// The convolution of `input` with windows that are tiles already: (16, from, to).
Tensor convolve(const Tensor& input, const Tensor& windows, const std::optional<Tensor>& bias, int64_t out_h,
                int64_t out_w, const int64_t* padding) {
  const int64_t n = input.size(0), from = windows.size(1), to = windows.size(2);
  const auto read = read_tiles(input.size(2), input.size(3), from, out_h, out_w, padding);
  const auto written = written_tiles(out_h, out_w, to);
  auto result = create_innermost_map(n, to, out_h, out_w, input);
  const auto* source = input.const_data_ptr<float>();
  auto* target = result.mutable_data_ptr<float>();
  const int64_t count = n * read.in_map, block = block_size(from + to, count);
  const std::vector<float> zeros(std::max(from, to));
  const auto dense_bias = bias ? bias->contiguous() : Tensor();
  const float* shift = bias ? dense_bias.const_data_ptr<float>() : zeros.data();
  const auto* factors = windows.const_data_ptr<float>();
  const auto& loops = winograd_loops();
  const auto multiply = product_loops_for(to).multiply;
  const auto tiles = at::empty({loop_threads(), kTile * block * from}, input.options());
  const auto products = at::empty({loop_threads(), kTile * block * to}, input.options());
  auto* all_in = tiles.mutable_data_ptr<float>();
  auto* all_out = products.mutable_data_ptr<float>();
  std::atomic<bool> is_finite{true};
  shared_loop(0, at::ceil_div(count, block), 1, [&](int64_t begin, int64_t end) {
    auto* in = all_in + number_in_loop() * tiles.size(1);
    auto* out = all_out + number_in_loop() * products.size(1);
    std::vector<float> unused(to);
    bool is_own_finite = true;
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = b * block, size = std::min(block, count - first);
      for (int64_t t = 0; t < size; ++t) {
        const float* pixels[16];
        read.find(source, first + t, zeros.data(), pixels);
        loops.from_pixels(pixels, from, in + t * from, block * from);
      }
      for (int64_t i = 0; i < kTile; ++i)
        multiply(in + i * block * from, {from, 1}, factors + i * from * to, to, out + i * block * to, to, size, from,
                 to);
      for (int64_t t = 0; t < size; ++t) {
        float* pixels[4];
        written.find(target, first + t, unused.data(), pixels);
        is_own_finite &= loops.to_pixels(out + t * to, block * to, to, shift, pixels);
      }
    }
    if (!is_own_finite) is_finite = false;
  }, Weight::kHeavy);
  return is_finite ? result : Tensor();
}

// Who adds up what of a gradient of weights: each part has some channels of the gradient, since a sum for each thread would
// take as much memory as there are threads, and where those are few, some of the tiles.
struct SumParts {
  int64_t channels, slices, ranges;  // of the gradient; parts of these; parts of the blocks of tiles
  int64_t slice_begin(int64_t slice) const {
    return slice == slices ? channels : slice * channels / slices / kFewestChannels * kFewestChannels;
  }
  int64_t widest_slice() const { return std::min(channels, at::ceil_div(channels, slices) + kFewestChannels - 1); }
};
SumParts parts_of_sum(int64_t channels, int64_t blocks) {
  const int64_t threads = loop_threads(), slices = std::clamp<int64_t>(channels / kNarrowestSlice, 1, threads);
  return {channels, slices, std::clamp<int64_t>(threads / slices, 1, blocks)};
}

// (ranges, 16, C, O), of which the first is the gradient of the windows' tiles. The tiles of the maps are gone then.
Tensor sum_of_tiles(const Tensor& gradient, const Tensor& input, const ConvolutionShape& s) {
  const auto read = read_tiles(s.h, s.w, s.c, s.oh, s.ow, s.padding);
  const auto written = written_tiles(s.oh, s.ow, s.o);
  const auto* slopes = gradient.const_data_ptr<float>();
  const auto* values = input.const_data_ptr<float>();
  const std::vector<float> zeros(std::max(s.c, s.o));
  const int64_t count = s.n * read.in_map, block = block_size(s.c + s.o, count), blocks = at::ceil_div(count, block);
  const auto sum_parts = parts_of_sum(s.o, blocks);
  const int64_t slices = sum_parts.slices, ranges = sum_parts.ranges, widest = sum_parts.widest_slice();
  const int64_t parts = slices * ranges, window_count = s.c * s.o;
  const auto& loops = winograd_loops();
  const auto tiles = at::empty({parts, kTile * block * s.c}, input.options());
  const auto slope_tiles = at::empty({parts, kTile * block * widest}, input.options());
  const auto products = at::empty({parts, s.c * widest}, input.options());
  auto sums = at::empty({ranges, kTile, window_count}, input.options());
  auto* all_in = tiles.mutable_data_ptr<float>();
  auto* all_slope_in = slope_tiles.mutable_data_ptr<float>();
  auto* all_products = products.mutable_data_ptr<float>();
  auto* all_sums = sums.mutable_data_ptr<float>();
  shared_loop(0, parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      auto* in = all_in + part * tiles.size(1);
      auto* slope_in = all_slope_in + part * slope_tiles.size(1);
      auto* product = all_products + part * products.size(1);
      const int64_t range = part / slices, slice = part % slices;
      const int64_t channel = sum_parts.slice_begin(slice), width = sum_parts.slice_begin(slice + 1) - channel;
      auto* sum = all_sums + range * kTile * window_count + channel;
      const auto multiply = product_loops_for(width).multiply;
      const int64_t first_block = range * blocks / ranges;
      for (int64_t b = first_block; b < (range + 1) * blocks / ranges; ++b) {
        const int64_t first = b * block, size = std::min(block, count - first);
        for (int64_t t = 0; t < size; ++t) {
          const float* pixels[16];
          read.find(values, first + t, zeros.data(), pixels);
          loops.from_pixels(pixels, s.c, in + t * s.c, block * s.c);
          written.find(slopes + channel, first + t, zeros.data(), pixels);
          loops.from_gradient(pixels, width, slope_in + t * width, block * width);
        }
        for (int64_t i = 0; i < kTile; ++i) {
          const auto *left = in + i * block * s.c, *right = slope_in + i * block * width;
          auto* total = sum + i * window_count;
          if (b == first_block) {
            multiply(left, {1, s.c}, right, width, total, s.o, s.c, size, width);
            continue;
          }
          multiply(left, {1, s.c}, right, width, product, width, s.c, size, width);
          for (int64_t c = 0; c < s.c; ++c)
            for (int64_t o = 0; o < width; ++o) total[c * s.o + o] += product[c * width + o];
        }
      }
    }
  }, Weight::kHeavy);
  for (int64_t range = 1; range < ranges; ++range) sums[0].add_(sums[range]);
  return sums;
}

// Of a map, channels innermost: where one of them is not zero.
struct Support {
  static constexpr size_t kMost = 256;
  std::vector<int64_t> positions;
  bool is_complete = true;  // else there are more
};
// Which taps of the gradient of windows are sums of zeros alone: eager's are zero then, exactly.
class ZeroTaps {
 public:
  ZeroTaps(const Tensor& gradient, const Tensor& input, const ConvolutionShape& s)
      : s_(s), slopes_(gradient.const_data_ptr<float>()), values_(input.const_data_ptr<float>()) {}

  // Not known where it would take long to find out.
  std::optional<bool> are_all_zero(int64_t o, int64_t c, int tap) {
    const int64_t down = tap / 3 - s_.padding[0], right = tap % 3 - s_.padding[1];
    const auto& slopes = known(slope_support_, slopes_, s_.o, o, s_.positions());
    if (meets(slopes, s_.oh, s_.ow, s_.h, s_.w, down, right, values_ + c, s_.c)) return false;
    if (slopes.is_complete && checks_ < kMostChecks) return true;
    const auto& values = known(value_support_, values_, s_.c, c, s_.n * s_.h * s_.w);
    if (meets(values, s_.h, s_.w, s_.oh, s_.ow, -down, -right, slopes_ + o, s_.o)) return false;
    if (values.is_complete && checks_ < kMostChecks) return true;
    return std::nullopt;
  }

 private:
  static constexpr int64_t kMostChecks = 1 << 20;  // a few milliseconds
  using Supports = std::unordered_map<int64_t, Support>;

  const Support& known(Supports& supports, const float* map, int64_t channels, int64_t channel, int64_t count) {
    const auto [place, is_new] = supports.try_emplace(channel);
    Support& support = place->second;
    int64_t at = 0;
    for (; is_new && at < count && checks_ + at < kMostChecks; ++at) {
      if (map[at * channels + channel] == 0) continue;
      if (support.positions.size() == Support::kMost) break;
      support.positions.push_back(at);
    }
    if (is_new) support.is_complete = at == count;
    checks_ += at;
    return support;
  }

  // Whether another map's channel is not zero somewhere so far down and to the right of the support.
  bool meets(const Support& support, int64_t h, int64_t w, int64_t other_h, int64_t other_w, int64_t down, int64_t right,
             const float* other, int64_t channels) {
    for (const int64_t at : support.positions) {
      if (++checks_ >= kMostChecks) return false;
      const int64_t y = at / w % h + down, x = at % w + right;
      if (y < 0 || y >= other_h || x < 0 || x >= other_w) continue;
      if (other[((at / (h * w) * other_h + y) * other_w + x) * channels] != 0) return true;
    }
    return false;
  }

  const ConvolutionShape& s_;
  const float *slopes_, *values_;
  Supports slope_support_, value_support_;
  int64_t checks_ = 0;
};

// Those of the taps (9, O) of an input channel that are next to nothing beside the tiles (16, O), `row` apart, that they are
// differences of, as rounding leaves them. `first`: the number of the first tap.
void find_remainders(const float* tiles, int64_t row, const float* taps, int64_t count, int64_t first,
                     std::vector<int64_t>& found) {
  for (int64_t o = 0; o < count; ++o) {
    float largest = 0;
    for (int64_t i = 0; i < kTile; ++i) largest = std::max(largest, std::abs(tiles[i * row + o]));
    for (int64_t t = 0; t < kTaps; ++t)
      if (const float tap = taps[t * count + o]; tap != 0 && std::abs(tap) < kRounding * largest)
        found.push_back(first + t * count + o);
  }
}

// Of the taps (C, 9, O), those that should be zero are made so. False where that is not known.
bool clear_remainders(const std::vector<std::vector<int64_t>>& remainders, float* taps, ZeroTaps zero_taps,
                      const ConvolutionShape& s) {
  for (const auto& of_channel : remainders) {
    for (const int64_t at : of_channel) {
      const int64_t o = at % s.o, tap = at / s.o % kTaps, c = at / s.o / kTaps;
      const auto is_zero = zero_taps.are_all_zero(o, c, static_cast<int>(tap));
      if (!is_zero) return false;
      if (*is_zero) taps[at] = 0;
    }
  }
  return true;
}

}  // namespace

bool is_for_winograd(const ConvolutionShape& s) {
  const auto fits = [](int64_t stride, int64_t padding, int64_t dilation) {
    return stride == 1 && dilation == 1 && padding >= 0 && padding <= 2;
  };
  return s.kh == 3 && s.kw == 3 && fits(s.stride[0], s.padding[0], s.dilation[0]) &&
         fits(s.stride[1], s.padding[1], s.dilation[1]) && s.c >= kFewestChannels && s.o >= kFewestChannels &&
         s.c * s.o <= kMostWindows;
}

bool is_weight_gradient_for_winograd(const ConvolutionShape& s) {
  return is_for_winograd(s) && s.positions() >= kFewestPositions;
}

size_t winograd_block_bytes() { return loop_threads() * kBlockFloats * sizeof(float); }

Tensor forward_by_winograd(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                           const ConvolutionShape& s) {
  if (has_masked_windows(weight) || has_empty_pixel(input)) return {};
  auto taps = at::empty({s.c, kTaps, s.o}, weight.options());
  turn_matrices(weight.const_data_ptr<float>(), taps.mutable_data_ptr<float>(), sizeof(float), 1, s.o, s.c * kTaps,
                /*in_parallel=*/true);
  return convolve(input, transformed(std::move(taps)), bias, s.oh, s.ow, s.padding);
}

// A convolution of the gradient with the windows turned round.
Tensor input_gradient_by_winograd(const Tensor& gradient, const Tensor& weight, const ConvolutionShape& s) {
  if (has_masked_windows(weight) || has_empty_pixel(gradient)) return {};
  auto taps = at::empty({s.o, kTaps, s.c}, weight.options());
  auto* turned = taps.mutable_data_ptr<float>();
  const auto* windows = weight.const_data_ptr<float>();
  shared_loop(0, s.o, std::max<int64_t>(1, (1 << 12) / s.c), [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o)  // the last tap first
      transpose(windows + o * s.c * kTaps, kTaps, turned + ((o + 1) * kTaps - 1) * s.c, -s.c, s.c, kTaps);
  });
  const int64_t padding[] = {2 - s.padding[0], 2 - s.padding[1]};
  return convolve(gradient, transformed(std::move(taps)), std::nullopt, s.h, s.w, padding);
}

Tensor weight_gradient_by_winograd(const Tensor& gradient, const Tensor& input, const ConvolutionShape& s) {
  const auto sums = sum_of_tiles(gradient, input, s);
  const auto& loops = winograd_loops();
  const int64_t window_count = s.c * s.o;
  const auto taps = at::empty({s.c, kTaps, s.o}, input.options());
  const auto* total = sums.const_data_ptr<float>();
  std::atomic<bool> is_finite{true};
  std::vector<std::vector<int64_t>> remainders(s.c);
  auto* out = taps.mutable_data_ptr<float>();
  shared_loop(0, s.c, std::max<int64_t>(1, (1 << 12) / s.o), [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      float* of_channel = out + c * kTaps * s.o;
      const auto found = loops.to_window(total + c * s.o, window_count, s.o, kRounding, of_channel, s.o);
      if (!found.is_finite) is_finite = false;
      if (found.has_remainders)
        find_remainders(total + c * s.o, window_count, of_channel, s.o, c * kTaps * s.o, remainders[c]);
    }
  });
  if (!is_finite || !clear_remainders(remainders, out, {gradient, input, s}, s)) return {};
  auto result = at::empty({s.o, s.c, 3, 3}, input.options());
  turn_matrices(taps.const_data_ptr<float>(), result.mutable_data_ptr<float>(), sizeof(float), 1, s.c * kTaps, s.o,
                /*in_parallel=*/true);
  return result;
}

}  // namespace lockstep::dynamic
