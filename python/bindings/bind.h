#pragma once

#include <pybind11/pybind11.h>

#include "coexec/function.h"

namespace lockstep::bindings {

// What its graph holds is not to be read then. Raises lockstep.Error.
void refuse_elsewhere(const coexec::Function& function, const char* where);

void bind_function(pybind11::module_& m);    // calling a decorated function; sessions
void bind_doors(pybind11::module_& m);       // wrapped built-ins, threads, fork, exit
void bind_recording(pybind11::module_& m);   // recorded calls, the text form of a graph
void bind_inspection(pybind11::module_& m);  // counters, graph, divergences
void bind_optimizers(pybind11::module_& m);  // steps over all parameters as one op

}  // namespace lockstep::bindings
