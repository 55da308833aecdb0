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

}  // namespace lockstep::tracer
