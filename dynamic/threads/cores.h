// What the process may run on.
#pragma once

#include <sched.h>

namespace lockstep::dynamic {

// Then a thread that runs beside another only takes its time. As it was when it was first asked. (What the standard library
// says counts cores that the process may not use.)
inline bool has_one_core() {
  static const bool is_so = [] {
    cpu_set_t allowed;
    return sched_getaffinity(0, sizeof allowed, &allowed) == 0 && CPU_COUNT(&allowed) == 1;
  }();
  return is_so;
}

}  // namespace lockstep::dynamic
