#include "tests/support/test_host.h"

#include <ATen/Parallel.h>

#include <mutex>
#include <utility>

#include "dynamic/vm/allocator.h"

namespace lockstep::support {

namespace {

thread_local Position t_position;

class ScriptedCounter final : public tracer::ProgramCounter {
 public:
  Reading read() override {
    Reading reading;
    reading.key = t_position.line;
    reading.in_engine = t_position.in_engine;
    reading.unrecorded = t_position.unrecorded;
    return reading;
  }
  tracer::LocationDetails describe() override {
    return {"script:" + std::to_string(t_position.line), "", t_position.plain_bool};
  }
};

}  // namespace

Position& position() { return t_position; }

void TestHost::act() {
  ++wait_count;
  if (auto action = std::exchange(action_, nullptr)) action();
}

void TestHost::wait_released(bool (*wait)(void*), void* argument) {
  act();
  while (!wait(argument)) {
  }
}

void TestHost::wait_released_uninterrupted(bool (*wait)(void*), void* argument) {
  act();
  while (!wait(argument)) {
  }
}

std::unique_ptr<tracer::ProgramCounter> TestHost::create_program_counter() {
  return std::make_unique<ScriptedCounter>();
}

TestHost& test_host() {
  static auto* host = new TestHost;
  return *host;
}

coexec::Session& session() {
  static std::once_flag once;
  std::call_once(once, [] {
    at::set_num_threads(1);
    dynamic::install_pool();
    coexec::install_foreign_listener();
    coexec::Session::set_host(test_host());
  });
  return coexec::Session::of_this_thread();
}

}  // namespace lockstep::support
