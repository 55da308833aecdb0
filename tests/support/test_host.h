// A host without an interpreter: the program counter is what the test says, and a wait does what the test wants.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

#include "coexec/host.h"
#include "coexec/session.h"

namespace lockstep::support {

// Where the program of this thread stands. `line` plays the part of the innermost frame's instruction.
struct Position {
  uint64_t line = 0;
  bool in_engine = false;
  bool unrecorded = false;
  bool plain_bool = false;
};
Position& position();

// Sets the line and runs one expression there: at(12), x.add(y).
inline void at_line(uint64_t line) { position().line = line; }

// While it lives, ops belong to a backward pass.
class InEngine {
 public:
  InEngine() { position().in_engine = true; }
  ~InEngine() { position().in_engine = false; }
};

struct Interrupted : std::runtime_error {
  Interrupted() : std::runtime_error("interrupted") {}
};

class TestHost final : public coexec::Host {
 public:
  void wait_released(bool (*wait)(void*), void* argument) override;
  void wait_released_uninterrupted(bool (*wait)(void*), void* argument) override;
  std::unique_ptr<tracer::ProgramCounter> create_program_counter() override;

  // Called once at the start of the next wait, on the waiting thread; it may throw if the wait may be interrupted.
  void on_next_wait(std::function<void()> action) { action_ = std::move(action); }
  std::atomic<int> wait_count{0};

 private:
  void act();
  std::function<void()> action_;
};

TestHost& test_host();
// The session of this thread, with the test host, the pool and the listener of foreign threads installed.
coexec::Session& session();

// One call: begins in the constructor, ends in `end` (which throws what nobody waited for) or quietly in the destructor.
class Call {
 public:
  explicit Call(coexec::Function& function, coexec::Way way = coexec::Way::kBehind) { session().begin(function, way); }
  Call(coexec::Function& function, bool in_place)
      : Call(function, in_place ? coexec::Way::kInPlace : coexec::Way::kBehind) {}
  ~Call() {
    if (!ended_) session().end_quietly();
  }
  void end() {
    ended_ = true;
    session().end();
  }

 private:
  bool ended_ = false;
};

}  // namespace lockstep::support
