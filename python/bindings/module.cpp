// The extension module: binds what python/lockstep/ builds on. One bind_<topic>.cpp each.
#include <pybind11/pybind11.h>

#include "coexec/session.h"
#include "dynamic/vm/allocator.h"
#include "dynamic/vm/ambient.h"
#include "python/bindings/bind.h"
#include "python/bindings/python_host.h"

PYBIND11_MODULE(_C, m) {
  lockstep::coexec::Session::set_host(lockstep::bindings::python_host());
  lockstep::coexec::install_foreign_listener();
  lockstep::dynamic::install_pool();
  lockstep::dynamic::settle_vector_math();
  lockstep::bindings::bind_function(m);
  lockstep::bindings::bind_doors(m);
  lockstep::bindings::bind_inspection(m);
  lockstep::bindings::bind_recording(m);
  lockstep::bindings::bind_optimizers(m);
}
