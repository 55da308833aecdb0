#include <pybind11/stl.h>

#include "coexec/call_recorder.h"
#include "coexec/function.h"
#include "graph/text.h"
#include "graph/verifier.h"
#include "python/bindings/bind.h"

namespace py = pybind11;

namespace lockstep::bindings {

using coexec::CallRecorder;
using coexec::Function;

void bind_recording(py::module_& m) {
  py::class_<CallRecorder, std::shared_ptr<CallRecorder>>(m, "CallRecorder")
      .def(py::init<std::string>())
      .def_property_readonly("is_done", &CallRecorder::is_done)
      .def_property_readonly("error", &CallRecorder::error)
      .def_property_readonly("event_count", &CallRecorder::event_count)
      .def_property_readonly("opaque_count", &CallRecorder::opaque_count)
      .def_property_readonly("feed_count", &CallRecorder::feed_count)
      .def_property_readonly("refeed_count", &CallRecorder::refeed_count);
  m.def("record_next", [](Function& f, std::shared_ptr<CallRecorder> recorder) {  // false: another one waits already
    if (recorder && f.next_recorder) return false;
    f.next_recorder = std::move(recorder);
    return true;
  });
  m.def("graph_text", [](Function& f) {
    refuse_elsewhere(f, "lockstep.graph_text");
    if (!f.is_busy.load()) f.forget_stale_signatures();
    return graph::print_graph(f.graph);
  });
  m.def("check_text", [](const std::string& text) {  // parsed and printed again
    return graph::print_graph(*graph::parse_graph(text).graph);
  });
  m.def("verify_graph", [](Function& f) {
    refuse_elsewhere(f, "lockstep.graph_text");
    if (!f.is_busy.load()) f.forget_stale_signatures();
    std::vector<std::string> findings;
    for (const auto& finding : graph::verify(f.graph)) findings.push_back(finding.str());
    return findings;
  });
}

}  // namespace lockstep::bindings
