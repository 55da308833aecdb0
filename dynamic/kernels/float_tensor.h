// What the float32 kernels of this folder take: values in plain memory.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::dynamic {

inline bool is_float_tensor(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cpu() && tensor.layout() == at::kStrided && tensor.scalar_type() == at::kFloat &&
         !tensor.is_neg();
}

}  // namespace lockstep::dynamic
