// How much an op has to do, roughly.
#pragma once

#include "dynamic/vm/event.h"

namespace lockstep::dynamic {

// Whether its kernel is done by one thread before a worker that sleeps would have come to help.
bool is_light(const Event& event);
// Whether no worker should be asked to help with it.
bool runs_alone(const Event& event);

}  // namespace lockstep::dynamic
