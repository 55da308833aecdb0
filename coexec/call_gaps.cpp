#include "coexec/call_gaps.h"

#include <algorithm>

namespace lockstep::coexec {

namespace {

thread_local double seconds_in_calls = 0;  // that have ended; calls within calls count once

}  // namespace

double CallGaps::begin(double now) {
  const auto thread = std::this_thread::get_id();
  const bool goes_on = thread == thread_;
  const double gap = goes_on ? now - end_ - (seconds_in_calls - others_) : 0;
  thread_ = thread;
  begin_ = now;
  others_ = seconds_in_calls;
  return std::max(0.0, gap);
}

void CallGaps::end(double now) {
  seconds_in_calls = others_ + (now - begin_);  // in place of what calls within this one added
  others_ = seconds_in_calls;
  end_ = now;
}

}  // namespace lockstep::coexec
