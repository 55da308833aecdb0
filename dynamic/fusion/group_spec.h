// From a group to the kernel that computes it.
#pragma once

#include <vector>

#include "dynamic/fusion/fused_group.h"
#include "dynamic/jit/kernel_spec.h"

namespace lockstep::dynamic {

struct GroupSpec {
  jit::KernelSpec spec;
  std::vector<int> buffers;          // of the group, one for each of the spec's
  std::vector<ScalarUse> scalars;    // one for each of the spec's
  std::vector<int64_t> sizes;        // of the spec's dims
  std::vector<std::vector<int64_t>> strides;  // of the spec's buffers, elements

  // What a call brings: those that the spec leaves open.
  std::vector<int64_t> call_sizes() const;
  std::vector<int64_t> call_strides() const;
};

// Dims that are walked alike everywhere become one; sizes and strides are given at each call, so that one kernel serves
// every shape. After group.key().
GroupSpec create_spec(const FusedGroup& group);

}  // namespace lockstep::dynamic
