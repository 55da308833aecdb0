#include "coexec/worker_habit.h"

#include <algorithm>
#include <cmath>

namespace lockstep::coexec {

bool WorkerHabit::change(bool sleeps) {
  if (sleeps_ == sleeps) return false;
  sleeps_ = sleeps;
  settling_ = kSettling;
  return true;
}

void WorkerHabit::adopt(bool sleeps) {
  sleeps_ = sleeps;
  is_trying_ = false;
  settling_ = kSettling;
  resting_ = kMaxRest;
}

bool WorkerHabit::note(double seconds, double waited, uint64_t events) {
  if (settling_ > 0) {
    settling_ -= seconds;
    return false;
  }
  seconds_ += seconds;
  waited_ += std::clamp(waited, 0.0, seconds);
  events_ += events;
  if (seconds_ < kStretch) return false;
  const double share = waited_ / seconds_, rate = static_cast<double>(events_) / seconds_;
  seconds_ = waited_ = 0;
  events_ = 0;
  if (is_trying_) return go_on_trying(rate);
  is_for_drift_ = has_drifted(rate);
  if (!is_for_drift_ && (--resting_ > 0 || share > kMostWaiting || rate == 0)) return false;
  is_trying_ = true;
  sleeps_before_ = sleeps_;
  round_ = pass_ = 0;
  return change(kRounds[0]);
}

bool WorkerHabit::has_drifted(double rate) {
  ++since_trial_;
  if (usual_ == 0) usual_ = rate;
  const bool is_apart = rate * kDrift < usual_ || usual_ * kDrift < rate;
  drifting_ = is_apart ? drifting_ + 1 : 0;
  if (!is_apart) usual_ += kForgetting * (rate - usual_);
  return drifting_ >= kDriftStretches && since_trial_ >= patience_;
}

bool WorkerHabit::go_on_trying(double rate) {
  rates_[round_] = rate;
  if (++round_ < kRounds.size()) return change(kRounds[round_]);
  round_ = 0;
  gains_[pass_] = std::sqrt(rates_[1] * rates_[2] / (rates_[0] * rates_[3]));
  if (++pass_ < kPasses) return change(kRounds[0]);
  std::nth_element(gains_.begin(), gains_.begin() + kPasses / 2, gains_.end());
  gain_ = gains_[kPasses / 2];
  is_trying_ = false;
  ++trials_;
  resting_ = rest_;
  rest_ = std::min(2 * rest_, kMaxRest);
  const bool will_sleep = gain_ > kAdvantage;
  patience_ = is_for_drift_ && will_sleep == sleeps_before_ ? std::min(2 * patience_, kMaxRest) : kFirstPatience;
  usual_ = 0;
  drifting_ = since_trial_ = 0;
  return change(will_sleep);
}

}  // namespace lockstep::coexec
