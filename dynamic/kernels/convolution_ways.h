// Convolutions of two dims as matrix products, with the layouts that eager has: what oneDNN is slow at (small maps with
// many channels, gradients of large weights).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lockstep::dynamic {

// Input (N, C, H, W), weight (O, C, KH, KW), contiguous float32; no groups, not transposed.
struct ConvolutionShape {
  int64_t n, c, h, w, o, kh, kw, oh, ow;
  int64_t stride[2], padding[2], dilation[2];
  int64_t positions() const { return n * oh * ow; }
  int64_t depth() const { return c * kh * kw; }
  bool is_pointwise() const {  // a product as it stands
    return kh == 1 && kw == 1 && stride[0] == 1 && stride[1] == 1 && padding[0] == 0 && padding[1] == 0;
  }
  int64_t columns_bytes() const { return depth() * positions() * 4; }
};

// Whether the products below run in parts of a shared loop: on a board.
bool products_are_shared();

// The patches of the input as columns: (C*KH*KW, N*OH*OW).
at::Tensor columns_of(const at::Tensor& input, const ConvolutionShape& shape);
// The sum of the columns' entries where they came from: (N, C, H, W).
at::Tensor sum_of_columns(const at::Tensor& columns, const ConvolutionShape& shape);

// One product over all positions of all samples.
at::Tensor forward_by_columns(const at::Tensor& input, const at::Tensor& weight, const ConvolutionShape& shape);
at::Tensor input_gradient_by_columns(const at::Tensor& gradient, const at::Tensor& weight,
                                     const ConvolutionShape& shape);
at::Tensor weight_gradient_by_columns(const at::Tensor& gradient, const at::Tensor& input,
                                      const ConvolutionShape& shape);

// One product a sample, without any copy; pointwise shapes only.
at::Tensor forward_by_samples(const at::Tensor& input, const at::Tensor& weight, const ConvolutionShape& shape);
at::Tensor input_gradient_by_samples(const at::Tensor& gradient, const at::Tensor& weight,
                                     const ConvolutionShape& shape);
at::Tensor weight_gradient_by_samples(const at::Tensor& gradient, const at::Tensor& input,
                                      const ConvolutionShape& shape);

}  // namespace lockstep::dynamic
