// The interpreter's program counter. Everything that depends on CPython 3.11's frames stands in python_frames.cpp.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tracer/location.h"

namespace lockstep::tracer {

// Call once with the GIL held: folders of library code, and the inline cache sizes by opcode (module `opcode`).
void configure_frames(std::vector<std::string> library_folders, std::vector<int> cache_entries,
                      int precall_opcode, std::vector<int> truth_test_opcodes);
std::unique_ptr<ProgramCounter> create_python_program_counter();

// While it lives, as much recursion is left to this thread as if a decorated function were called directly: the way
// through C++ counts for two levels more.
class RecursionAllowance {
 public:
  RecursionAllowance();
  ~RecursionAllowance();
  RecursionAllowance(const RecursionAllowance&) = delete;
};
// Whether this thread's C stack has room for another decorated call: Python's calls of Python take none, ours do.
bool has_stack_for_call();
// Whether it never has, to speak of: no recursion is needed to come to its end.
bool has_small_stack();

}  // namespace lockstep::tracer
