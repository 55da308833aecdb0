#include "python/bindings/python_host.h"

#include <Python.h>
#include <torch/csrc/Exceptions.h>

#include <atomic>

#include "tracer/hook.h"
#include "tracer/python_frames.h"

namespace lockstep::bindings {

namespace {

// PyGILState_Check says yes everywhere once there was a second interpreter.
bool holds_gil() {
  if (!Py_IsInitialized()) return false;
  const PyThreadState* own = PyGILState_GetThisThreadState();
  return own && own == _PyThreadState_UncheckedGet();
}

// Releases the GIL if this thread holds it, for as long as the object lives.
class ReleasedGil {
 public:
  ReleasedGil() : state_(holds_gil() ? PyEval_SaveThread() : nullptr) {}
  ~ReleasedGil() {
    if (state_) PyEval_RestoreThread(state_);
  }
  ReleasedGil(const ReleasedGil&) = delete;

 private:
  PyThreadState* state_;
};

// A program's handlers may ask for ops, which cannot be where another op is being asked: they come after it, as after a
// kernel. Python's own for Ctrl-C only raises.
bool has_handlers_of_its_own() {
  constexpr int kSignals = 64;
  static PyObject* const module = PyImport_ImportModule("_signal");
  static PyObject* const of_python = module ? PyObject_GetAttrString(module, "default_int_handler") : nullptr;
  bool found = false;
  for (int number = 1; of_python && !found && number <= kSignals; ++number) {
    PyObject* handler = PyObject_CallMethod(module, "getsignal", "i", number);
    found = handler && handler != of_python && PyCallable_Check(handler) != 0;
    Py_XDECREF(handler);
  }
  if (!PyErr_Occurred()) return found;
  PyErr_Clear();
  return true;
}

void check_signals() {
  PyGILState_STATE gil = PyGILState_Ensure();
  if (!has_handlers_of_its_own() && PyErr_CheckSignals() != 0) {
    python_error error;
    error.persist();
    PyGILState_Release(gil);
    throw error;
  }
  PyGILState_Release(gil);
}

// The main thread runs before `import lockstep`, and is not to pay for each op where other threads make no calls. Of the
// first that one makes it is told as it is told of signals, and from then on it is like any other thread: it may wait in
// C code for what a later one hands over, and hears of nothing there. Later ones tell it again: it may have been told
// where somebody puts back the thread's state afterwards, as a backward pass does.
std::atomic<unsigned long> main_thread{0};
std::atomic<bool> is_main_thread_told{false};

int tell_main_thread(void*) {
  is_main_thread_told = false;
  tracer::enable_foreign(true);
  return 0;
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
  void call_begins() override {
    if (PyThread_get_thread_ident() == main_thread || is_main_thread_told.exchange(true)) return;
    if (Py_AddPendingCall(&tell_main_thread, nullptr) != 0) is_main_thread_told = false;
  }
};

}  // namespace

void set_main_thread(unsigned long ident) {
  main_thread = ident;
  is_main_thread_told = false;
}

coexec::Host& python_host() {
  static auto* host = new PythonHost;
  return *host;
}

}  // namespace lockstep::bindings
