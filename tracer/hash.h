// How keys of locations are mixed.
#pragma once

#include <cstdint>

namespace lockstep::tracer {

inline uint64_t mix(uint64_t hash, uint64_t word) {
  hash ^= word + 0x9e3779b97f4a7c15ull + (hash << 6) + (hash >> 2);
  return hash * 0xff51afd7ed558ccdull;
}

}  // namespace lockstep::tracer
