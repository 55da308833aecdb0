// Ops that are done in two parts where that saves reading and writing a map: what needs all values before the first
// result is known, at once; the rest, an op on each value, joins the ops that go on with it. The bits are the same either
// way, since which events wait together is chance.
#pragma once

#include <memory>
#include <unordered_map>

#include "dynamic/vm/event.h"

namespace lockstep::dynamic {

class Splitter {
 public:
  // Whether there is something to split at all; looks at nothing that another thread writes.
  static bool may_split(const Event& event);
  // Does the first part, and leaves the rest in the event, where the next one goes on with each of its values; else
  // nothing has happened. Throws what the kernel throws.
  bool try_split(Event& event, const Event& next);

 private:
  const graph::Signature& rest_of(const graph::Signature& whole);

  std::unordered_map<const graph::Signature*, std::unique_ptr<graph::Signature>> rests_;
  uint64_t epoch_ = 0;
};

}  // namespace lockstep::dynamic
