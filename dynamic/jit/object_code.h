// From a spec to machine code in an object file, and from an object file to functions. Behind this header is LLVM.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dynamic/jit/host_target.h"
#include "dynamic/jit/loop_plan.h"

namespace lockstep::dynamic::jit {

using KernelFunction = void (*)(const int64_t* words, int64_t begin, int64_t end, char* scratch);

// What LLVM wants before anything else, compiling and linking; any number of times.
void prepare_llvm();

// The bytes of an object file; empty where it failed, `reason` then says why.
std::string compile_object(const KernelSpec& spec, const LoopPlan& plan, const HostTarget& target, std::string* reason);

// The code as text, for people.
std::string print_code(const KernelSpec& spec, const LoopPlan& plan, const HostTarget& target);

// Code that is linked into this process; it goes away with the object.
class LinkedObject {
 public:
  static std::unique_ptr<LinkedObject> link(const std::string& object, std::string* reason);
  ~LinkedObject();
  KernelFunction find(const std::string& name) const;  // null if there is none

 private:
  LinkedObject();
  struct State;
  std::unique_ptr<State> state_;
};

// The version of the compiler behind it, for the cache's key.
std::string llvm_version();

}  // namespace lockstep::dynamic::jit
