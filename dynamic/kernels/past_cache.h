// Results that the caches will not hold until somebody reads them are written past them.
#pragma once

#include <cstdint>

namespace lockstep::dynamic {

inline bool is_past_cache(int64_t bytes) { return bytes >= int64_t{32} << 20; }

}  // namespace lockstep::dynamic
