// Whether the workers of the runner's kernels stay awake between parallel loops, where no calls are measured (sessions,
// when="always"). One that is awake holds a core that Python could run on; one that sleeps is woken for each loop. What
// helps is tried now and then, where Python does not just wait for kernels, and where the program has become far slower,
// or faster: other programs may want the cores. Knows no clock: times are handed in.
#pragma once

#include <array>
#include <cstdint>

namespace lockstep::coexec {

class WorkerHabit {
 public:
  bool sleeps() const { return sleeps_; }
  // Python ran in lockstep for so many seconds, waited so many of them for the runner, and asked for so many events.
  // Returns whether they are to sleep from now on and did not, or the other way round.
  bool note(double seconds, double waited, uint64_t events);
  bool is_trying() const { return is_trying_; }
  double gain() const { return gain_; }  // events a second of sleeping over awake, in the last trial
  int trials() const { return trials_; }
  // Begins with what a function like this one came to, and tries later.
  void adopt(bool sleeps);

 private:
  // There and back, so that what the machine does meanwhile meets both alike.
  static constexpr std::array<bool, 4> kRounds = {false, true, true, false};
  static constexpr int kPasses = 3;             // of a trial, through the rounds
  static constexpr double kStretch = 0.05;      // seconds of one round
  static constexpr double kSettling = 0.03;     // seconds after a change that do not count: threads find their cores
  static constexpr double kMostWaiting = 0.8;   // share of time; above it kernels are what counts, and loops are frequent
  static constexpr double kAdvantage = 1.03;    // sleeping must be this much faster
  static constexpr int kFirstRest = 400, kMaxRest = 12800;  // stretches between two trials
  static constexpr double kDrift = 1.6;         // times the usual rate, or that part of it
  static constexpr int kDriftStretches = 6;     // in a row
  static constexpr int kFirstPatience = 40;     // stretches between a trial and one for drift
  static constexpr double kForgetting = 0.05;   // of the usual rate, a stretch

  bool change(bool sleeps);
  bool go_on_trying(double rate);
  bool has_drifted(double rate);

  bool sleeps_ = false, is_trying_ = false;
  double seconds_ = 0, waited_ = 0;  // of the present stretch
  uint64_t events_ = 0;
  double settling_ = 0;  // seconds that are left
  int resting_ = 1;      // stretches that are left
  int rest_ = kFirstRest;
  double usual_ = 0;     // rate since the last trial; 0: not known yet
  int drifting_ = 0;     // stretches in a row with another
  int since_trial_ = 0;  // stretches
  int patience_ = kFirstPatience;
  bool is_for_drift_ = false, sleeps_before_ = false;  // the present trial
  size_t round_ = 0;
  std::array<double, 4> rates_{};
  std::array<double, kPasses> gains_{};
  size_t pass_ = 0;
  double gain_ = 0;
  int trials_ = 0;
};

}  // namespace lockstep::coexec
