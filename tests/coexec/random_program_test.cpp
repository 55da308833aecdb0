// Random programs in a session against plain execution: all bits, all reads, the generator; and what merging promises.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <vector>

#include "coexec/session.h"
#include "tests/support/random_program.h"
#include "tests/support/test_host.h"

namespace lockstep::coexec {
namespace {

using support::Call;
using support::ProgramOptions;
using support::ProgramState;

// LOCKSTEP_TEST_PROGRAMS widens the search.
unsigned program_count(unsigned usual) {
  const char* wanted = std::getenv("LOCKSTEP_TEST_PROGRAMS");
  return wanted ? static_cast<unsigned>(std::atoi(wanted)) : usual;
}

constexpr unsigned kCalls = 10;

using Ways = std::vector<Way>;  // of calls, in turn

std::string compare_with_plain(unsigned seed, Function& function, const ProgramOptions& options,
                               const Ways& ways = {Way::kBehind}) {
  const auto program = support::random_program(seed, options);
  ProgramState plain(seed), led(seed);
  for (unsigned call = 0; call < kCalls; ++call) {
    const unsigned decisions = seed * 1000 + call;
    at::manual_seed(decisions);
    support::run_program(program, plain, decisions);
    const auto plain_next = options.draws ? at::rand({2}) : at::zeros({2});
    at::manual_seed(decisions);
    {
      Call in_session(function, ways[call % ways.size()]);
      support::run_program(program, led, decisions);
      in_session.end();
    }
    const auto led_next = options.draws ? at::rand({2}) : at::zeros({2});
    if (auto found = plain.difference(led); !found.empty())
      return "program " + std::to_string(seed) + ", call " + std::to_string(call) + ": " + found;
    if (!at::equal(plain_next, led_next)) return "program " + std::to_string(seed) + ": another generator state";
  }
  return "";
}

void expect_plain_bits(unsigned first, unsigned count, const Ways& ways) {
  uint64_t graph_ops = 0, ops = 0;
  for (unsigned seed = first; seed < first + count; ++seed) {
    Function function;
    ASSERT_EQ(compare_with_plain(seed, function, {}, ways), "");
    graph_ops += function.counters.graph_ops;
    ops += function.counters.ops;
  }
  EXPECT_GT(graph_ops, ops / 4);  // the comparison means something only where the graph ran
}

TEST(RandomProgram, LeavesTheBitsOfPlainExecution) { expect_plain_bits(0, program_count(120), {Way::kBehind}); }

TEST(RandomProgram, LeavesTheSameBitsInPlace) { expect_plain_bits(2000, program_count(60), {Way::kInPlace}); }

// The measurement of `auto` changes between the ways while the runner's thread is there.
TEST(RandomProgram, LeavesTheSameBitsWhereTheWaysAlternate) {
  expect_plain_bits(4000, program_count(60), {Way::kBehind, Way::kInPlace, Way::kYielding});
}

// The graph is bounded by the program, whatever ways were taken: in each line few ops, each of them once; a backward op
// once for each forward op it belongs to.
TEST(RandomProgram, TheGraphIsBoundedByTheProgram) {
  for (unsigned seed = 500; seed < 540; ++seed) {
    ProgramOptions options;
    options.trains = false;
    Function function;
    ASSERT_EQ(compare_with_plain(seed, function, options), "");
    const size_t lines = support::count_statements(support::random_program(seed, options)) + 1;
    EXPECT_LE(function.graph.op_node_count(), 12 * lines) << "program " << seed;
  }
}

// A call that was seen before, with the same decisions on the same state, takes no new way.
TEST(RandomProgram, AKnownWayDoesNotDiverge) {
  for (unsigned seed = 700; seed < 740; ++seed) {
    const auto program = support::random_program(seed);
    Function function;
    size_t nodes = 0, divergences = 0;
    for (int pass = 0; pass < 3; ++pass) {
      if (pass == 1) {
        nodes = function.graph.op_node_count();
        divergences = function.counters.divergences;
      }
      for (unsigned call = 0; call < 4; ++call) {
        ProgramState state(seed);
        at::manual_seed(call);
        Call in_session(function);
        support::run_program(program, state, call);
        in_session.end();
      }
    }
    EXPECT_EQ(function.graph.op_node_count(), nodes) << "program " << seed;
    EXPECT_EQ(function.counters.divergences, divergences) << "program " << seed;
  }
}

TEST(RandomProgram, ThreadsDoNotDisturbOneAnother) {
  support::session();
  std::vector<std::string> found(3);
  std::vector<std::thread> threads;
  ProgramOptions options;
  options.draws = false;
  // the states are drawn before, since the default generator is shared
  for (unsigned t = 0; t < found.size(); ++t)
    threads.emplace_back([&, t] {
      for (unsigned seed = 0; seed < 15 && found[t].empty(); ++seed) {
        const auto program = support::random_program(1000 + 15 * t + seed, options);
        ProgramState plain(seed), led(seed);
        for (size_t i = 0; i < plain.values.size(); ++i) led.values[i] = plain.values[i].clone();
        led.weight = plain.weight.detach().clone().requires_grad_();
        led.bias = plain.bias.detach().clone().requires_grad_();
        Function function;
        for (unsigned call = 0; call < 6; ++call) {
          support::run_program(program, plain, call);
          Call in_session(function);
          support::run_program(program, led, call);
          in_session.end();
        }
        found[t] = plain.difference(led);
      }
    });
  for (auto& thread : threads) thread.join();
  for (const auto& difference : found) EXPECT_EQ(difference, "");
}

}  // namespace
}  // namespace lockstep::coexec
