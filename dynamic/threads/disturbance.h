// Whether other processes take the cores that a thread could run on: what is measured then says little.
#pragma once

#include <cstdint>

namespace lockstep::dynamic {

// What the scheduler says of a thread, in nanoseconds: how long it ran, and how long it could have run and waited for a
// core. Both 0 where the system does not say.
struct CoreTimes {
  uint64_t running = 0, waiting = 0;
};
CoreTimes times_of_this_thread();

// From times read now and then, the later ones with more of both.
class DisturbanceMeter {
 public:
  // Whether the thread waited for a notable part of the time since, as soon as there has been enough of it.
  bool update(const CoreTimes& now);

 private:
  CoreTimes last_;
  bool has_last_ = false, is_disturbed_ = false;
};

// What all processors did, and this process on them, in nanoseconds; and the time. All 0 where the system does not say.
struct ProcessorTimes {
  uint64_t busy = 0, own = 0, clock = 0;
};
ProcessorTimes times_of_processors();

// The threads of a process wait for each other, too: whether other processes had a part of a core worth mentioning.
class NeighbourMeter {
 public:
  bool update(const ProcessorTimes& now);

 private:
  ProcessorTimes last_;
  bool are_busy_ = false;
};

// Whether this thread waited for a core and others had some, in the milliseconds since the last question; false for the
// first one in a while. Cheap, but for a look at the system every few milliseconds.
bool is_disturbed();

}  // namespace lockstep::dynamic
