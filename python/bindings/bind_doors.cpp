#include <pybind11/stl.h>

#include "coexec/session.h"
#include "dynamic/fusion/kernel_service.h"
#include "python/bindings/bind.h"
#include "python/bindings/method_doors.h"
#include "python/bindings/op_door.h"
#include "python/bindings/python_host.h"
#include "tracer/hook.h"
#include "tracer/python_frames.h"

namespace py = pybind11;

namespace lockstep::bindings {

using coexec::Session;

void bind_doors(py::module_& m) {
  m.def("install_door", [](const py::object& callable, const std::string& kind) {
    return install_door(callable, door_kind(kind));
  });
  m.def("install_constructor_door", &install_constructor_door);
  m.def("in_reading_scope", &in_reading_scope);
  m.def("op_door", &op_door);
  m.def("configure_frames", &tracer::configure_frames);
  m.def("enable_foreign", &tracer::enable_foreign);
  m.def("set_main_thread", &set_main_thread);
  m.def("note_python_kernel", [](const std::string& name) { graph::note_python_kernel(name); });
  m.def("drain", [] {
    if (auto* session = Session::active_on_this_thread()) session->drain();
  });
  m.def("before_fork", &Session::prepare_fork);
  m.def("after_fork_in_parent", &Session::end_fork);
  m.def("after_fork_in_child", [] {
    Session::abandon_all();
    set_main_thread(PyThread_get_thread_ident());
  });
  m.def("stop_threads", [] {
    if (auto* session = Session::active_on_this_thread()) session->stay_in_place();
    py::gil_scoped_release released;
    coexec::GraphRunner::refuse_threads();
    for (Session* session : Session::all()) session->runner().stop();
    dynamic::KernelService::stop();
  });
}

}  // namespace lockstep::bindings
