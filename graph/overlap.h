// Whether two views of one storage have elements in common, by their sizes and strides alone.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>

namespace lockstep::graph {

// A view in elements of its storage.
struct Part {
  at::IntArrayRef sizes, strides;
  int64_t offset = 0;
};

// True: they have none, as chunks and slices of one tensor do. False also where that is not plain to see.
bool are_apart(const Part& one, const Part& other);

}  // namespace lockstep::graph
