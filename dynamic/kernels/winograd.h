// Convolutions with windows of 3x3 and stride 1 by Winograd's F(2x2, 3x3): 16 multiplications where there are 36, for
// some additions more. Maps come and go with their channels innermost; within float32's accuracy, in other last bits.
//
// Undefined results where more than last bits would differ: infinities spread over a tile; and where a window sees
// nothing but zeros, eager gives zero and differences of tiles do not, which ReLU or Adam would make much of. The same
// holds for a tap of a gradient of weights, which is made zero where it should be; where that is not soon known, or there are
// few positions, it is left to others.
#pragma once

#include <ATen/core/Tensor.h>

#include "dynamic/kernels/convolution_ways.h"

namespace lockstep::dynamic {

bool is_for_winograd(const ConvolutionShape& shape);
bool is_weight_gradient_for_winograd(const ConvolutionShape& shape);
size_t winograd_block_bytes();  // the tiles that all threads have at a time, about

at::Tensor forward_by_winograd(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                               const ConvolutionShape& shape);
at::Tensor input_gradient_by_winograd(const at::Tensor& gradient, const at::Tensor& weight,
                                      const ConvolutionShape& shape);
// In planes, as weights are.
at::Tensor weight_gradient_by_winograd(const at::Tensor& gradient, const at::Tensor& input,
                                       const ConvolutionShape& shape);

}  // namespace lockstep::dynamic
