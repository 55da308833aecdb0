#include "dynamic/threads/disturbance.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <mutex>
#include <string>

#include "dynamic/threads/fork_guard.h"

namespace lockstep::dynamic {

namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kEnough = 5000000;  // nanoseconds in which a thread could run: about a slice of the scheduler's
// Beside one or two busy processes the runner waits for 35 to 50 %; alone on two cores for 5 to 40 %, since its process has
// more threads than that.
constexpr double kNotable = 0.2;
constexpr uint64_t kWindow = 100000000;     // nanoseconds; processors are accounted for in steps of 10 ms or less
constexpr double kNotableNeighbours = 0.25;  // of a core
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

ProcessorTimes times_of_processors() {
  ProcessorTimes times;
  std::ifstream file("/proc/stat");
  std::string word;
  uint64_t user, nice, system, idle, waiting, interrupts, soft_interrupts, stolen;
  if (!(file >> word >> user >> nice >> system >> idle >> waiting >> interrupts >> soft_interrupts >> stolen)) return {};
  rusage own{};
  getrusage(RUSAGE_SELF, &own);
  const auto nanoseconds = [](const timeval& time) { return uint64_t(time.tv_sec) * 1000000000 + uint64_t(time.tv_usec) * 1000; };
  const auto tick = 1000000000 / static_cast<uint64_t>(sysconf(_SC_CLK_TCK));
  times.busy = (user + nice + system + interrupts + soft_interrupts + stolen) * tick;
  times.own = nanoseconds(own.ru_utime) + nanoseconds(own.ru_stime);
  times.clock = static_cast<uint64_t>(std::chrono::nanoseconds(Clock::now().time_since_epoch()).count());
  return times;
}

bool NeighbourMeter::update(const ProcessorTimes& now) {
  if (last_.clock == 0 || now.clock < last_.clock || now.busy < last_.busy) {
    last_ = now;
    return are_busy_ = false;
  }
  if (now.clock - last_.clock < kWindow) return are_busy_;
  const auto busy = static_cast<double>(now.busy - last_.busy), own = static_cast<double>(now.own - last_.own);
  are_busy_ = busy - own > kNotableNeighbours * static_cast<double>(now.clock - last_.clock);
  last_ = now;
  return are_busy_;
}

namespace {

bool neighbours_are_busy() {
  struct Shared {
    std::mutex mutex;
    NeighbourMeter meter;
  };
  static auto* shared = [] {
    auto* made = new Shared;  // outlives static destruction
    hold_across_fork(ForkRank::kProcessors, made->mutex);
    return made;
  }();
  std::lock_guard lock(shared->mutex);
  return shared->meter.update(times_of_processors());
}

}  // namespace

bool is_disturbed() {
  thread_local DisturbanceMeter meter;
  thread_local Clock::time_point last_look;
  thread_local bool is_disturbed = false;
  const auto now = Clock::now();
  if (now < last_look + kBetweenLooks) return is_disturbed;
  if (now > last_look + kMemory) meter = {};
  last_look = now;
  const bool are_busy = neighbours_are_busy();  // asked each time, so that windows are short
  is_disturbed = meter.update(times_of_this_thread()) && are_busy;
  return is_disturbed;
}

}  // namespace lockstep::dynamic
