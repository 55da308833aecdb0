// The one clock for durations.
#pragma once

#include <chrono>

namespace lockstep::coexec {

inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace lockstep::coexec
