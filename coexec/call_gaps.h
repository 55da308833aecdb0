// What a thread does between two calls of a function, calls of others aside. How the calls run bears on it: workers that
// they leave awake hold a core, and its own were ended. Knows no clock: times are handed in.
#pragma once

#include <cstdint>

namespace lockstep::coexec {

class CallGaps {
 public:
  // Seconds since the last call. 0 where it ran on another thread, or there was none.
  double begin(double now);
  void end(double now);

 private:
  uint64_t thread_ = 0;  // of the last call
  double begin_ = 0, end_ = 0;
  double others_ = 0;  // seconds that this thread spent in calls until then
};

}  // namespace lockstep::coexec
