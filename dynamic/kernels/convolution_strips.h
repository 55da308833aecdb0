// Convolutions of two dims as products over strips of positions: the patches of a strip are laid out as rows, which stay
// in the cache of the thread that multiplies them. What oneDNN is slow at: steps of more than a pixel, above all their
// gradients, and numbers of channels that fill no register.
//
// Maps come and go with their channels innermost. The gradient of the input is gathered, not scattered: pixels that
// the same taps reach make a convolution of their own.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "dynamic/kernels/convolution_ways.h"

namespace lockstep::dynamic {

// PyTorch was built with a BLAS that can be asked for float32 products directly, and it is worth while.
bool is_for_strips(const ConvolutionShape& shape);

at::Tensor forward_by_strips(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                             const ConvolutionShape& shape);
at::Tensor input_gradient_by_strips(const at::Tensor& gradient, const at::Tensor& weight, const ConvolutionShape& shape);
// In planes, as weights are.
at::Tensor weight_gradient_by_strips(const at::Tensor& gradient, const at::Tensor& input, const ConvolutionShape& shape);

}  // namespace lockstep::dynamic
