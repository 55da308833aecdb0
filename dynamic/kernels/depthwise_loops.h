// The loops under depthwise convolutions, compiled once for each instruction set and chosen at run time. Channels are
// innermost: lanes are channels.
#pragma once

#include <cstdint>

namespace lockstep::dynamic {

// Of a result's row or pixel one of those that it is made of: where it begins in the source, and its weights.
struct DepthwiseTap {
  int64_t source, weight;
};

struct DepthwiseTaps {
  const DepthwiseTap* taps;
  const int64_t* ends;  // those of row or pixel i are taps [ends[i], ends[i + 1])
};

struct DepthwiseLoops {
  // A row of `width` pixels: out[x, c] = bias[c] + sum over its row's taps r and the taps k of x of
  // source[r.source + k.source + c] * weights[r.weight + k.weight + c]. Without bias: null.
  void (*combine)(const float* source, const float* weights, const DepthwiseTap* rows, int64_t row_count,
                  DepthwiseTaps columns, const float* bias, float* out, int64_t width, int64_t channels);
  // sums[k, c] += sum over x of gradient[x, c] * source[x * step + k * spacing + c], for `window` k.
  void (*correlate)(const float* gradient, const float* source, int64_t width, int64_t step, int64_t spacing,
                    int64_t window, int64_t channels, float* sums);
};

const DepthwiseLoops& depthwise_loops();

}  // namespace lockstep::dynamic
