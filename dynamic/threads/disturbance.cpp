#include "dynamic/threads/disturbance.h"

#include <chrono>
#include <fstream>

namespace lockstep::dynamic {

namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kEnough = 5000000;  // nanoseconds in which a thread could run: about a slice of the scheduler's
// The runner waits for some 5 % where it is alone on two cores, and for 35 to 50 % beside one or two busy processes.
constexpr double kNotable = 0.2;
constexpr std::chrono::milliseconds kBetweenLooks{5}, kMemory{100};

}  // namespace

CoreTimes times_of_this_thread() {
  CoreTimes times;
  std::ifstream file("/proc/thread-self/schedstat");
  if (!(file >> times.running >> times.waiting)) return {};
  return times;
}

bool DisturbanceMeter::update(const CoreTimes& now) {
  if (!has_last_ || now.running < last_.running || now.waiting < last_.waiting) {
    last_ = now;
    has_last_ = true;
    return is_disturbed_;
  }
  const uint64_t running = now.running - last_.running, waiting = now.waiting - last_.waiting;
  if (running + waiting < kEnough) return is_disturbed_;
  is_disturbed_ = static_cast<double>(waiting) > kNotable * static_cast<double>(running + waiting);
  last_ = now;
  return is_disturbed_;
}

bool is_disturbed() {
  thread_local DisturbanceMeter meter;
  thread_local Clock::time_point last_look;
  thread_local bool is_disturbed = false;
  const auto now = Clock::now();
  if (now < last_look + kBetweenLooks) return is_disturbed;
  if (now > last_look + kMemory) meter = {};
  last_look = now;
  is_disturbed = meter.update(times_of_this_thread());
  return is_disturbed;
}

}  // namespace lockstep::dynamic
