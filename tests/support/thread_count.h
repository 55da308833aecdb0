// How many threads this process has.
#pragma once

#include <filesystem>
#include <iterator>

namespace lockstep::support {

inline int thread_count() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<int>(std::distance(begin(tasks), end(tasks)));
}

}  // namespace lockstep::support
