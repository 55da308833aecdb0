// The loops between the products of attention, compiled once for each instruction set and chosen at run time. Scores lie
// turned: a row for each key, in it a column for each of a few queries, so that what goes over all keys of a query goes
// by whole registers.
#pragma once

#include <cstdint>

namespace lockstep::dynamic {

// What is added to scores: nothing, a value for each key, or one for each key and query, which lie as the scores do.
struct ScoreMask {
  enum class Kind { kNone, kByKey, kByPair };
  Kind kind = Kind::kNone;
  const float* values = nullptr;
};

// Scores and what has their shape: (keys, columns), dense; columns are 1 to `kMostRegisters` registers.
struct AttentionLoops {
  static constexpr int kMostRegisters = 3;
  int lanes;  // of a register
  // scores = exp(scores * scale + mask - largest), where `largest` is that of a column, and 0 where all are -inf; `sums` of
  // what comes out.
  void (*exponentiate)(float* scores, int64_t keys, int64_t columns, float scale, ScoreMask mask, float* largest,
                       float* sums);
  // scores = exp(scores * scale + mask - logarithm of the column's sum)
  void (*restore)(float* scores, int64_t keys, int64_t columns, float scale, ScoreMask mask, const float* logarithms);
  // gradient = weights * (gradient - dot of the column) * scale
  void (*differentiate)(const float* weights, float* gradient, int64_t keys, int64_t columns, float scale, const float* dots);
};

const AttentionLoops& attention_loops();

}  // namespace lockstep::dynamic
