// Maps: (samples, channels, height, width), one behind the other for everybody who sees them. Kernels may take and give
// them with their channels innermost instead, where nobody looks (vm/hidden_layout.h).
#pragma once

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

// Strides of such sizes with channels innermost.
inline std::vector<int64_t> innermost_strides(at::IntArrayRef sizes) {
  return {sizes[1] * sizes[2] * sizes[3], 1, sizes[1] * sizes[3], sizes[1]};
}

}  // namespace lockstep::dynamic
