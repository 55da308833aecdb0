// The interpreter as a host of co-execution.
#pragma once

#include "coexec/host.h"

namespace lockstep::bindings {

coexec::Host& python_host();

}  // namespace lockstep::bindings
