// What co-execution needs from the language that leads it. python/bindings hands in the interpreter's; tests their own.
#pragma once

#include <memory>

#include "tracer/location.h"

namespace lockstep::coexec {

class Host {
 public:
  virtual ~Host() = default;
  // Runs `wait` (which may block) with the language's lock released if this thread holds it. `wait` returns true when
  // it is done and false after a while at the latest; in between pending signals are handled, whose exception leaves.
  virtual void wait_released(bool (*wait)(void*), void* argument) = 0;
  // The same without signals: a kernel that was started is not interrupted in eager either.
  virtual void wait_released_uninterrupted(bool (*wait)(void*), void* argument) = 0;
  virtual std::unique_ptr<tracer::ProgramCounter> create_program_counter() = 0;
  // This thread leads a call from now on: the language's other threads have to wait for what is pending, where they do
  // not yet (tracer::enable_foreign), before they go on. Called with the language's lock held.
  virtual void call_begins() {}
};

}  // namespace lockstep::coexec
