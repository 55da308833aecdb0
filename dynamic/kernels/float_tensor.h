// What the kernels of this folder take: values in plain memory, most of them float32.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::dynamic {

// Of any type.
inline bool is_plain_tensor(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cpu() && tensor.layout() == at::kStrided && !tensor.is_neg() && !tensor.is_conj() &&
         !tensor.is_quantized() && !tensor._is_zerotensor() &&
         tensor.suggest_memory_format() == at::MemoryFormat::Contiguous;
}

inline bool is_float_tensor(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cpu() && tensor.layout() == at::kStrided && tensor.scalar_type() == at::kFloat &&
         !tensor.is_neg();
}

// Without holes, so that its values can be walked over in the order of memory.
inline bool is_whole_float_tensor(const at::Tensor& tensor) {
  return is_float_tensor(tensor) && tensor.has_storage() && !tensor._is_zerotensor() && tensor.is_non_overlapping_and_dense();
}

}  // namespace lockstep::dynamic
