// Maps: (samples, channels, height, width), one behind the other for everybody who sees them. Kernels may take and give
// them with their channels innermost instead, where nobody looks (vm/hidden_layout.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <vector>

#include "graph/layout.h"

namespace lockstep::dynamic {

// Whether an op takes maps with channels innermost: not at all, all of its maps alike, or each as it comes.
enum class MapOrder { kPlanes, kAllAlike, kAny };

// Contiguous, and in another order where channels are innermost.
inline bool is_map(const graph::Layout& layout) {
  const auto& s = layout.sizes;
  return s.size() == 4 && s[1] > 1 && s[2] * s[3] > 1 && s[0] > 0 && !layout.conj && !layout.neg && layout.is_contiguous();
}

// A map that is all of its storage.
inline bool is_whole_map(const graph::Layout& layout, int64_t offset, int64_t storage_bytes) {
  return offset == 0 && is_map(layout) &&
         storage_bytes == layout.numel() * static_cast<int64_t>(c10::elementSize(layout.dtype));
}

// Strides of such sizes with channels innermost.
inline std::vector<int64_t> innermost_strides(at::IntArrayRef sizes) {
  return {sizes[1] * sizes[2] * sizes[3], 1, sizes[1] * sizes[3], sizes[1]};
}

// Turns `count` matrices, one behind the other, from (rows, columns) to (columns, rows): calls no op. In parallel where
// this thread has workers.
void turn_matrices(const void* from, void* to, int64_t item_bytes, int64_t count, int64_t rows, int64_t columns,
                   bool in_parallel);

// One with its channels innermost, of the type of `like`, without values.
at::Tensor create_innermost_map(int64_t n, int64_t channels, int64_t h, int64_t w, const at::Tensor& like);

// The map, dense, with its planes or its channels innermost as `order` says; itself where it is so already.
at::Tensor map_in_order(const at::Tensor& map, at::MemoryFormat order);

}  // namespace lockstep::dynamic
