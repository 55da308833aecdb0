// LOCKSTEP_LOG: one line an event on standard error, for the kinds that were asked for. Off, it costs one load.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::coexec {

// name, what one line tells
#define LOCKSTEP_LOG_KINDS(X)                                                   \
  X(call, "a call begins, and how: recorded or in lockstep")                    \
  X(trace, "a call was recorded in part, and what the graph gained by it")      \
  X(diverge, "Python took a way that the graph lacks")                          \
  X(fallback, "an op ran eagerly, for a reason other than recording")           \
  X(wait, "Python waited for a value")                                          \
  X(auto, "a way to run was chosen, and on what figures")

enum class LogKind : uint8_t {
#define X(name, sentence) k_##name,
  LOCKSTEP_LOG_KINDS(X)
#undef X
};

// Kinds by name; unknown names are left out.
void set_log(const std::vector<std::string>& kinds);
std::vector<std::pair<std::string, std::string>> log_kinds();

extern std::atomic<uint32_t> log_mask;
inline bool is_logged(LogKind kind) {
  return log_mask.load(std::memory_order_relaxed) & (1u << static_cast<int>(kind));
}

// Writes "lockstep <kind>: <function>: <text>" in one piece.
void write_log(LogKind kind, std::string_view function, std::string_view text);

}  // namespace lockstep::coexec
