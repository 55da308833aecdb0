// The door of `torch.ops`, whose `__call__` methods are written in Python.
#pragma once

#include <pybind11/pybind11.h>

namespace lockstep::bindings {

// A method that calls `original` without a frame of its own, so that tracebacks are as without it. While a session is active
// on the thread and `may_read(op)` is true, the op runs as one behind a door of kAlone. Attributes may be set on it.
pybind11::object op_door(const pybind11::object& original, const pybind11::object& may_read);

}  // namespace lockstep::bindings
