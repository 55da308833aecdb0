// Convolutions of two dims in which each channel has a window of its own. Lanes are channels, so that windows may be of
// any size, and maps as small as they like. Maps come and go with their channels innermost.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "dynamic/kernels/convolution_ways.h"

namespace lockstep::dynamic {

// Weight (C, 1, KH, KW), contiguous, as many groups as channels; of the shape, `c` and `o` are C.
at::Tensor forward_by_channels(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                               const ConvolutionShape& shape);
at::Tensor input_gradient_by_channels(const at::Tensor& gradient, const at::Tensor& weight, const ConvolutionShape& shape);
// What a thread copies at a time for a gradient of weights.
int64_t padded_bytes_by_channels(const ConvolutionShape& shape);
// In planes, as weights are. Multiplies by the zeros around the map.
at::Tensor weight_gradient_by_channels(const at::Tensor& gradient, const at::Tensor& input, const ConvolutionShape& shape);

}  // namespace lockstep::dynamic
