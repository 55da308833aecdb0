// Doors that cannot be subclassed: built-in functions and methods whose C function is replaced in the type's or module's
// method table, which catches every way to reach them.
#pragma once

#include <pybind11/pybind11.h>

#include <functional>
#include <string>

namespace lockstep::bindings {

enum class DoorKind {
  kDrain,   // wait for everything that was asked
  kRead,    // the value of `self` (or of the first argument) is read now
  kConvert,  // the same, where nothing else shows that: other C++ makes a number of it with the hook switched off
  kSettle,  // C++ above the hook reads the memory of every tensor argument
  kSettleIntegers,  // ... of those that hold integers, and of nothing that it asks for
  kExpose,  // the memory of `self` (or of the first argument) can be seen from now on
  kLend,    // ... until what comes back dies
  kScope,   // what is exposed on the way is so only meanwhile
  kAlone,   // C++ that may read any memory: nothing is pending before it, and nothing that it asks for stays so
};

// `callable` is a method descriptor or a built-in function. False where it has no C function to replace.
DoorKind door_kind(const std::string& name);
bool install_door(pybind11::handle callable, DoorKind kind);

// A type of tensors, whose constructor reads tensors in the lists that it is given; and all that derive from it.
void install_constructor_door(pybind11::handle type);

// A method that calls `original`, a Python function, in a scope as of kScope, without a frame of its own.
pybind11::object in_reading_scope(const pybind11::object& original);
// Calls a function as one with a door of kAlone. Null where a Python exception is set.
PyObject* call_alone(const std::function<PyObject*()>& call);

}  // namespace lockstep::bindings
