// Shape functions by experience: output layouts memoised by op, constants and input layouts. The first time a signature
// is met the op itself answers (it runs at once); from then on the leading thread knows the answer in some 50 ns.
#pragma once

#include <cstddef>
#include <cstdint>

#include "graph/trace_graph.h"

namespace lockstep::dynamic {

class ShapeMemo {
 public:
  static ShapeMemo& instance();

  // Borrowed; valid until `forget_if_large` is called while no session runs.
  const graph::Signature* find(const graph::OpInfo& op, const graph::SignatureWords& words, uint64_t hash);
  // The one that is there already, where there is one.
  const graph::Signature* insert(std::unique_ptr<graph::Signature> signature);
  // Borrowed pointers made in another epoch are dead.
  uint64_t epoch() const;
  // Called at rest (no session anywhere has events): drops everything beyond the bound.
  void forget_if_large(size_t max_count);
  size_t count() const;

 private:
  struct State;
  State* state_;
  ShapeMemo();
};

}  // namespace lockstep::dynamic
