// Ambient state: what kernels read besides their arguments when they run. One place that names all of it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::dynamic {

// By name and number, in a fixed order; equal states have equal vectors. Of the calling thread where it is a thread's.
std::vector<std::pair<const char*, int64_t>> read_ambient();
// "threads=2 default_dtype=6 ..."
std::string print_ambient(const std::vector<std::pair<const char*, int64_t>>& state);
// Sets what differs from the state in force. Throws std::runtime_error for a name that is not known.
void apply_ambient(std::string_view text);

// MKL's vector functions (sqrt, log, ...) choose their code at the first call. Where two threads are first at once, one of
// them gets other code, with other last bits. So one thread is first: before any kernel runs, once in a process.
void settle_vector_math();

}  // namespace lockstep::dynamic
