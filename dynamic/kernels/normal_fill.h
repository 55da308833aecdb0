// The Box-Muller transform of PyTorch's normal_ (ATen/native/cpu/DistributionTemplates.h), with the same bits.
#pragma once

#include <cstdint>

namespace lockstep::dynamic {

// Replaces uniform numbers in [0, 1) by normal ones, 16 by 16; `count` is a multiple of 16. The single-precision one is
// eager's where PyTorch took its AVX2 kernel, and needs AVX2 itself; the double one calls the same libm.
void transform_to_normal(float* data, int64_t count, float mean, float std);
void transform_to_normal(double* data, int64_t count, double mean, double std);
bool has_single_precision_normal();

}  // namespace lockstep::dynamic
