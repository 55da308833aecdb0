#include "coexec/call_gaps.h"

#include <algorithm>
#include <atomic>

namespace lockstep::coexec {

namespace {

std::atomic<uint64_t> threads{0};
thread_local const uint64_t this_thread = ++threads;  // the system gives its own numbers again
thread_local double seconds_in_calls = 0;  // that have ended; calls within calls count once

}  // namespace

double CallGaps::begin(double now) {
  const double gap = thread_ == this_thread ? now - end_ - (seconds_in_calls - others_) : 0;
  thread_ = this_thread;
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
