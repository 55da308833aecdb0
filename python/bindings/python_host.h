// The interpreter as a host of co-execution.
#pragma once

#include "coexec/host.h"

namespace lockstep::bindings {

coexec::Host& python_host();
// Which thread runs the interpreter's pending calls.
void set_main_thread(unsigned long ident);

}  // namespace lockstep::bindings
