// How long a thread that waits stays awake before it sleeps. Sleep costs both sides: a call into the system for who wakes,
// and tens of microseconds until who slept runs again. So waits as short as the last ones are sat out awake; where they
// have been long, the thread sleeps soon, and the core is others'.
#pragma once

#include <xmmintrin.h>

#include <algorithm>

#include "coexec/clock.h"
#include "dynamic/threads/cores.h"

namespace lockstep::coexec {

class AdaptiveSpin {
 public:
  // Seconds awake: after long waits, and the longest wait that is sat out.
  constexpr AdaptiveSpin(double shortest, double longest) : shortest_(shortest), longest_(longest), limit_(shortest) {}

  // Returns whether `is_over` came true; if not, the thread may sleep now, and says afterwards that it woke.
  template <class F>
  bool wait(F is_over) {
    for (int pause = 0; pause < kUntimed; ++pause) {
      if (is_over()) return true;
      _mm_pause();
    }
    begin_ = now_seconds();
    double now = begin_;
    do {
      for (int pause = 0; pause < kUntimed; ++pause) {
        if (is_over()) {
          note(now - begin_);
          return true;
        }
        _mm_pause();
      }
      now = now_seconds();
    } while (now - begin_ < limit_);
    return is_over();
  }
  void woke() { note(now_seconds() - begin_); }

  // A wait that took so long, awake and asleep.
  void note(double seconds) {
    if (dynamic::has_one_core()) {  // who is waited for needs it
      limit_ = 0;
    } else if (seconds <= longest_) {
      limit_ = std::max(limit_, std::min(longest_, kMargin * seconds));
    } else {
      limit_ = std::max(shortest_, kDecay * limit_);
    }
  }
  double limit() const { return limit_; }

 private:
  static constexpr int kUntimed = 32;     // pauses between two looks at the clock: some 0.4 to 1.4 us
  static constexpr double kMargin = 1.5;  // of the longest short wait so far
  static constexpr double kDecay = 0.75;  // at every long one

  double shortest_, longest_;
  double limit_;
  double begin_ = 0;
};

}  // namespace lockstep::coexec
