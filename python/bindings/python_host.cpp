#include "python/bindings/python_host.h"

#include <Python.h>
#include <torch/csrc/Exceptions.h>

#include "tracer/python_frames.h"

namespace lockstep::bindings {

namespace {

// Releases the GIL if this thread holds it, for as long as the object lives.
class ReleasedGil {
 public:
  ReleasedGil() : state_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~ReleasedGil() {
    if (state_) PyEval_RestoreThread(state_);
  }
  ReleasedGil(const ReleasedGil&) = delete;

 private:
  PyThreadState* state_;
};

void check_signals() {
  PyGILState_STATE gil = PyGILState_Ensure();
  if (PyErr_CheckSignals() != 0) {
    python_error error;
    error.persist();
    PyGILState_Release(gil);
    throw error;
  }
  PyGILState_Release(gil);
}

class PythonHost final : public coexec::Host {
 public:
  void wait_released(bool (*wait)(void*), void* argument) override {
    for (;;) {
      {
        ReleasedGil released;
        if (wait(argument)) return;
      }
      check_signals();
    }
  }
  void wait_released_uninterrupted(bool (*wait)(void*), void* argument) override {
    ReleasedGil released;
    while (!wait(argument)) {
    }
  }
  std::unique_ptr<tracer::ProgramCounter> create_program_counter() override {
    return tracer::create_python_program_counter();
  }
};

}  // namespace

coexec::Host& python_host() {
  static auto* host = new PythonHost;
  return *host;
}

}  // namespace lockstep::bindings
