#include "coexec/event_log.h"

#include <cstdio>

namespace lockstep::coexec {

namespace {
constexpr const char* kNames[] = {
#define X(name, sentence) #name,
    LOCKSTEP_LOG_KINDS(X)
#undef X
};
constexpr const char* kSentences[] = {
#define X(name, sentence) sentence,
    LOCKSTEP_LOG_KINDS(X)
#undef X
};
}  // namespace

std::atomic<uint32_t> log_mask{0};

void set_log(const std::vector<std::string>& kinds) {
  uint32_t mask = 0;
  for (const auto& kind : kinds)
    for (size_t i = 0; i < std::size(kNames); ++i)
      if (kind == kNames[i]) mask |= 1u << i;
  log_mask.store(mask);
}

std::vector<std::pair<std::string, std::string>> log_kinds() {
  std::vector<std::pair<std::string, std::string>> kinds;
  for (size_t i = 0; i < std::size(kNames); ++i) kinds.emplace_back(kNames[i], kSentences[i]);
  return kinds;
}

void write_log(LogKind kind, std::string_view function, std::string_view text) {
  std::string line = "lockstep ";
  line.append(kNames[static_cast<int>(kind)]).append(": ").append(function).append(": ").append(text).append("\n");
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace lockstep::coexec
