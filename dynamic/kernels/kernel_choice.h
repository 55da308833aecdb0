// Which of several ways to compute the same thing is the fastest on this machine. Each way computes real results: while
// a problem is measured, calls take the ways in turn; then the fastest stays, and is remembered on disk.
#pragma once

#include <x86intrin.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

#include "dynamic/kernels/flag_scope.h"
#include "dynamic/threads/disturbance.h"

namespace lockstep::dynamic {

constexpr int kMaxWays = 8;
constexpr double kPrepareShare = 0.5;

class KernelChoice {
 public:
  explicit KernelChoice(int settled_way = -1) : settled_(settled_way) {}

  // The way to go now. `allowed`: one bit a way; bit 0 is as eager does it and always allowed. `crowded`: those that would
  // need more memory now than is there, where the most so far was `peak`; who is that again and again is given up.
  int pick(uint32_t allowed, uint32_t crowded = 0, size_t peak = 0);
  // What it took, in ticks of the time stamp counter, and in memory at the most. `disturbed`: others wanted the cores
  // meanwhile, so that it says less, and each way will be measured more often. Returns whether this was the last one.
  bool note(int way, double ticks, size_t bytes = 0, bool disturbed = false);
  size_t bytes_of(int way) const;  // 0: not measured
  // Of what it took, the part beyond what the fastest way took so far; all, where none was measured yet.
  double lost_share(double ticks) const;
  void settle(int way);     // measured elsewhere
  int settled_way() const;  // -1: still measuring

 private:
  struct Figures {
    double best = std::numeric_limits<double>::infinity();
    int count = 0, times_crowded = 0;
    size_t bytes = 0, peak_when_crowded = 0;
  };
  bool is_given_up(int way) const;
  bool is_still_in(int way) const;
  void note_crowded(int way, size_t peak);
  int best_of(uint32_t ways) const;

  std::array<Figures, kMaxWays> figures_{};
  uint32_t allowed_ = 0;
  bool was_disturbed_ = false;
  int settled_;
};

// What a problem is: the op, sizes, flags, number of threads.
using Problem = std::vector<int64_t>;
// Sizes that go from call to call (a batch, a sequence) are told apart by an eighth of their magnitude: 896 to 1023 are
// one size.
constexpr int64_t rough_size(int64_t size) {
  const int shift = std::max(0, static_cast<int>(std::bit_width(static_cast<uint64_t>(size))) - 3);
  return size >> shift << shift;
}

// The highest level so far of the runner's memory, and how much may be asked for now before it is above that.
struct TrialRoom {
  size_t peak, room;
};
TrialRoom room_for_trials();
// What is asked for while it lives, at the most at a time.
class MemorySpan {
 public:
  explicit MemorySpan(bool is_on);
  size_t bytes() const;

 private:
  size_t before_ = 0;
};

// The choice for a problem; lives for ever.
KernelChoice& choice_for(const Problem& problem);
// The way that a problem goes from now on; -1 while that is not known.
int known_way(const Problem& problem);
// Writes a settled choice down for later processes, in the folder of the compiled kernels.
void remember_choice(const Problem& problem, int way);
// By how much longer things took than they will, in ticks of the time stamp counter: a choice was being measured, a kernel
// compiled, or not there yet. Of the process.
inline std::atomic<uint64_t> preparation_ticks{0};
inline void add_preparation(double ticks) {
  preparation_ticks.fetch_add(static_cast<uint64_t>(ticks), std::memory_order_relaxed);
}

// For tests: the way to go wherever it is allowed; -1: by measurement.
inline std::atomic<int> forced_way{-1};

// While it lives, this thread goes way 0, as eager does it, and measures nothing.
using FixedChoiceScope = FlagScope<struct FixedChoice>;

inline int way_by_force() { return FixedChoiceScope::is_on() ? 0 : forced_way.load(std::memory_order_relaxed); }

// What each way needs, as far as that was measured, else about. `estimate(way, bytes)`: of a way, where way 0 needs `bytes`,
// or that is not known: 0. Of those that are not allowed: the most there is.
template <class Estimate>
std::array<size_t, kMaxWays> bytes_of_ways(const KernelChoice& choice, uint32_t allowed, Estimate estimate) {
  const size_t of_eager = choice.bytes_of(0);
  std::array<size_t, kMaxWays> bytes;
  bytes.fill(std::numeric_limits<size_t>::max());
  for (int way = 0; way < kMaxWays; ++way) {
    if (!((allowed | 1) >> way & 1)) continue;
    const size_t known = choice.bytes_of(way);
    bytes[way] = known ? known : estimate(way, of_eager);
  }
  return bytes;
}

// What the next run needs: of the way that a problem goes; while that is not known, of the one that needs least.
template <class Estimate>
size_t bytes_to_run(const Problem& problem, uint32_t allowed, Estimate estimate) {
  const auto& choice = choice_for(problem);
  const auto bytes = bytes_of_ways(choice, allowed, estimate);
  const int forced = way_by_force(), way = forced >= 0 ? forced : choice.settled_way();
  return way >= 0 && allowed >> way & 1 ? bytes[way] : *std::min_element(bytes.begin(), bytes.end());
}

// Of `allowed`, the ways that need more than `room`, but not those that need least: one of them must be gone. `estimate`:
// above.
template <class Estimate>
uint32_t crowded_ways(const KernelChoice& choice, uint32_t allowed, size_t room, Estimate estimate) {
  const auto bytes = bytes_of_ways(choice, allowed, estimate);
  const size_t most = std::max(room, *std::min_element(bytes.begin(), bytes.end()));
  uint32_t crowded = 0;
  for (int way = 0; way < kMaxWays; ++way)
    if (bytes[way] > most) crowded |= 1u << way;
  return crowded & (allowed | 1);
}

// The way whose turn it is, among those that do not raise the peak of the runner's memory: that is eager's before
// something is tried. `rise`: bytes by which they may.
template <class Estimate>
int pick_in_turn(KernelChoice& choice, uint32_t allowed, Estimate estimate, size_t rise) {
  const auto [peak, room] = room_for_trials();
  return choice.pick(allowed, crowded_ways(choice, allowed, room + rise, estimate), peak);
}

// Runs the way whose turn it is, and notes what it took. `prepare(way)` counts by half: what it brings about is there
// already where a neighbour goes the same way. `work` makes problems of one rough size comparable. `handicap(way)`: a way
// is taken for that much slower than it is. `estimate`, `rise`: above.
template <class Handicap, class Estimate, class Prepare, class Run>
void run_chosen(const Problem& problem, uint32_t allowed, double work, Handicap handicap, Estimate estimate,
                Prepare prepare, Run run, size_t rise = 0) {
  if (const int way = way_by_force(); way >= 0 && allowed >> way & 1) {
    prepare(way);
    return run(way);
  }
  auto& choice = choice_for(problem);
  const bool is_settled = choice.settled_way() >= 0;
  const int way = is_settled ? choice.pick(allowed) : pick_in_turn(choice, allowed, estimate, rise);
  const MemorySpan memory(!is_settled);
  const uint64_t begin = __rdtsc();
  prepare(way);
  const uint64_t prepared = __rdtsc();
  run(way);
  const double ticks = static_cast<double>(__rdtsc() - prepared) + kPrepareShare * static_cast<double>(prepared - begin);
  if (is_settled) return;
  const double figure = handicap(way) * ticks / work;
  add_preparation(ticks * choice.lost_share(figure));
  if (choice.note(way, figure, memory.bytes(), is_disturbed()))
    remember_choice(problem, choice.settled_way());
}

// An estimate: nothing beyond the result.
inline size_t needs_nothing(int, size_t) { return 0; }

template <class Run>
void run_chosen(const Problem& problem, uint32_t allowed, double work, Run run) {
  run_chosen(problem, allowed, work, [](int) { return 1.0; }, needs_nothing, [](int) {}, run);
}
// Forgets what is in memory; what is on disk is read again at the next question. For tests.
void forget_choices();

}  // namespace lockstep::dynamic
