// Runs a recorded call from its feeds and the way taken alone: no Python, no autograd, PyTorch's kernels one by one
// through `execute`. What a call fetched, the storages that outlived it and the generators must come out bit for bit.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "dynamic/vm/recorded_call.h"

namespace lockstep::dynamic {

struct ReplayReport {
  size_t event_count = 0;      // all on the way
  size_t opaque_count = 0;     // of them: not run, their results were fed
  size_t feed_count = 0;
  size_t fetch_count = 0;      // host values that were compared
  size_t expected_count = 0;   // storages and generators that were compared at the end
  size_t unlike_count = 0;     // events that left other bytes in some storage: uninitialized memory, or the failure
  std::optional<std::string> first_unlike;
  std::optional<std::string> failure;  // what is not equal; nothing where the call came out bit for bit

  std::string str() const;
};

// Throws std::runtime_error for a recording that contradicts itself.
ReplayReport replay(RecordedCall& call);

}  // namespace lockstep::dynamic
