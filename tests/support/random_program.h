// Small programs of ATen ops with random control flow, for property tests: the same program on the same state, the same
// seed and the same decisions, run plainly (the reference) and in a session, must leave the same bits.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace lockstep::support {

enum class StatementKind : uint8_t {
  kPointwise,     // v[a] = f(v[b], v[c])
  kInPlace,       // v[a] op= v[b]
  kView,          // v[a] becomes a view of v[b]
  kInPlaceView,   // a part of v[a] is overwritten
  kReduce,        // v[a] from sums, maxima, softmax of v[b]
  kMatMul,        // v[a] = v[b] @ v[c]
  kDraw,          // random numbers into v[a]
  kAlias,         // v[a] and v[b] become one tensor
  kList,          // split and cat, stack
  kIndex,         // sizes that depend on data, indices computed before
  kOut,           // an out= variant
  kRead,          // a number goes to the log, and back into an op
  kTrain,         // forward, backward and an optimizer's step on the weights
  kIfFlip,        // a decision from outside
  kIfRead,        // a decision by a tensor's value
  kLoop,          // 0 to 3 passes, decided outside
  kRecurse,       // the whole program again, to a bounded depth
  kCount
};

struct Statement {
  StatementKind kind{};
  uint64_t line = 0;
  int a = 0, b = 0, c = 0, variant = 0;
  std::vector<Statement> body, otherwise;
};

struct ProgramOptions {
  int statement_count = 14;
  bool draws = true;   // false where several threads share the default generator
  bool trains = true;
};

std::vector<Statement> random_program(unsigned seed, const ProgramOptions& options = {});
size_t count_statements(const std::vector<Statement>& program);

struct ProgramState {
  std::vector<at::Tensor> values;   // all [n, n] float
  at::Tensor weight, bias;          // leaves that require gradients
  std::vector<double> log;          // what the program has read, and the errors it has caught

  explicit ProgramState(unsigned seed, int64_t n = 6);
  // A word on the first difference; empty where all bits are equal.
  std::string difference(const ProgramState& other) const;
};

// One call. `decisions` seeds the control flow from outside.
void run_program(const std::vector<Statement>& program, ProgramState& state, unsigned decisions);

}  // namespace lockstep::support
