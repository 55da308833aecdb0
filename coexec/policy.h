// when="auto": measures calls all ways (executed behind the leading thread, with workers that wait awake or asleep, in
// place by it, or eagerly) now and then and keeps the fastest. What lies between calls counts as far as it clearly takes
// longer with one way than with another: workers that are left awake are in its way. Knows no clock: times are handed in.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace lockstep::coexec {

enum class Way : uint8_t {
  kBehind,    // the workers of the runner's kernels stay awake between parallel loops, as in eager
  kInPlace,
  kEager,
  // Behind, and the workers sleep as soon as they have nothing to do: the core is Python's meanwhile. Where last bits may
  // differ from eager's, kernels with little to do leave them asleep.
  kYielding,
};
constexpr int kWayCount = 4;
const char* way_name(Way way);

// What the time of a call says: all that such calls take, what they take while kernels are chosen and compiled, or what
// recording takes. Or that there is nothing to gain: most ops run eagerly by themselves, for their devices or types, and
// what is left of them takes next to nothing.
enum class CallKind : uint8_t { kTypical, kPrepared, kRecorded, kPointless };

// Of the calls of one way that count.
struct WaySamples {
  std::vector<double> seconds;  // of a call each, or the mean of several
  std::vector<double> gaps;     // seconds before it, or the median
  double between = 0;           // seconds that gaps are longer than with another way, as far as that is clear
};

class Policy {
 public:
  // Where nothing may run behind, since there is one core, in place and eager are the ways.
  explicit Policy(bool may_run_behind = true);
  // As if nothing had been measured.
  void reset() { *this = Policy(may_run_behind_); }
  // How the next call shall run.
  Way choose() const;
  // Until a first glance at all ways, by what a recorded call took an op: where ops are tiny, workers that wait awake are
  // in Python's way.
  void guess(double seconds_an_op);
  // Begins with what a function like this one chose, and measures later.
  void adopt(Way way);
  // After a call that ran as chosen, `between` seconds after the last one. Only typical ones decide; what prepared ones
  // take is good enough for a glance, which says how calls run until enough typical ones have come.
  void note(Way way, double seconds, CallKind kind, double between = 0);

  struct Figures {
    // Of a call, and what lies between calls took longer; at the last measurement. 0: not measured.
    std::array<double, kWayCount> seconds{};
    uint64_t measurements = 0;
    bool rests_on_gaps = false;  // calls alone are faster another way
    bool is_settled = false;
    bool is_pointless = false;  // there is nothing to gain: eagerly, and not measured
    Way way = Way::kBehind;
  };
  Figures figures() const { return figures_; }

 private:
  enum class State : uint8_t { kFirstCalls, kGlancing, kWarmUp, kMeasuring, kSettled };
  bool is_left_out(Way way) const { return !may_run_behind_ && (way == Way::kBehind || way == Way::kYielding); }
  void start(State state);
  void begin_round(bool is_another_way);
  void note_measured(Way way, double seconds, bool does_count, double between);
  void next_round();
  void end_glance();
  bool is_settling(double seconds);
  Way fastest_measured() const;
  void compare_gaps();
  void drop_slow_ways();
  bool is_clear() const;
  void decide();
  void give_up();
  void settle(uint64_t calls);  // measures again after so many, or where calls take far longer or shorter
  bool is_lost(double seconds);
  bool has_drifted(double seconds);

  bool may_run_behind_;
  State state_ = State::kFirstCalls;
  Way warm_up_way_;
  Figures figures_;
  std::array<WaySamples, kWayCount> samples_;
  std::array<bool, kWayCount> is_dropped_{};  // clearly slower than another: not measured further
  bool may_gaps_differ_ = false;               // after the first pass
  std::array<double, kWayCount> lost_seconds_{};  // of a call, of a way given up in the middle of a pass; or 0
  int round_ = 0;           // of the measurement
  int passes_ = 0;          // through all rounds
  int skipped_ = 0;         // calls at the begin of this round, at least
  double settling_ = 0;     // seconds of this round so far that do not count
  double sum_ = 0;          // of the calls that become the next sample
  int summed_calls_ = 0;
  std::vector<double> summed_gaps_;
  bool has_short_calls_ = false;  // several to a sample
  int pointless_calls_ = 0; // in a row
  int seen_ = 0;            // calls in this state, or in this round
  int warm_calls_ = 0;      // typical ones in a row
  int passed_over_ = 0;     // untypical ones of this measurement
  std::array<int, kWayCount> measured_calls_{};  // of this measurement, also those that do not count
  double lost_ = 0;             // how far the last calls of this round are behind the fastest way
  int lost_calls_ = 0;
  double measuring_seconds_ = 0;  // of the present measurement, or the last
  bool is_for_drift_ = false;     // the present measurement
  uint64_t settled_for_ = 0;
  uint64_t settle_calls_ = 0;
  double settled_seconds_ = 0;
  double usual_ = 0;      // seconds of a call since the last measurement; 0: not known yet
  double patience_ = 0;   // times a measurement's length until calls that drift are measured again
  double watched_seconds_ = 0, longest_watched_ = 0;  // of the present watch
  int watched_calls_ = 0;
};

}  // namespace lockstep::coexec
