#include "coexec/policy.h"

#include <algorithm>

namespace lockstep::coexec {

namespace {

constexpr int kWarmCalls = 3;          // unrecorded calls in a row before the first measurement
constexpr int kMaxWarmCalls = 40;      // a function that is recorded now and then is measured all the same
constexpr int kSkipped = 2;            // first calls of a run: thread teams and caches change hands
constexpr int kSamples = 5;
constexpr uint64_t kFirstSettle = 64;  // calls until the next measurement; doubles
constexpr uint64_t kMaxSettle = 4096;
constexpr double kAdvantage = 0.98;    // the other way must be this much faster to be taken

double median(std::vector<double> samples) {
  std::nth_element(samples.begin(), samples.begin() + samples.size() / 2, samples.end());
  return samples[samples.size() / 2];
}

}  // namespace

Way Policy::choose() const {
  switch (state_) {
    case State::kMeasureEager: return Way::kEager;
    case State::kSettled: return figures_.way;
    default: return Way::kLockstep;
  }
}

void Policy::start(State state) {
  state_ = state;
  seen_ = 0;
  samples_.clear();
}

void Policy::decide() {
  const double lockstep = figures_.lockstep_seconds, eager = figures_.eager_seconds;
  if (figures_.measurements == 0) {
    figures_.way = lockstep <= eager ? Way::kLockstep : Way::kEager;
  } else if (figures_.way == Way::kLockstep && eager < kAdvantage * lockstep) {
    figures_.way = Way::kEager;
  } else if (figures_.way == Way::kEager && lockstep < kAdvantage * eager) {
    figures_.way = Way::kLockstep;
  }
  figures_.measurements++;
  figures_.is_settled = true;
  settle_calls_ = std::min(settle_calls_ ? 2 * settle_calls_ : kFirstSettle, kMaxSettle);
  settled_for_ = 0;
  start(State::kSettled);
}

void Policy::note(Way way, double seconds, bool was_recorded) {
  ++seen_;
  switch (state_) {
    case State::kWarmUp:
      if (was_recorded && seen_ < kMaxWarmCalls) {
        samples_.clear();
      } else {
        samples_.push_back(seconds);
        if (static_cast<int>(samples_.size()) >= kWarmCalls) start(State::kMeasureLockstep);
      }
      return;
    case State::kMeasureLockstep:
    case State::kMeasureEager:
      if (seen_ <= kSkipped || was_recorded) return;
      samples_.push_back(seconds);
      if (static_cast<int>(samples_.size()) < kSamples) return;
      if (state_ == State::kMeasureLockstep) {
        figures_.lockstep_seconds = median(samples_);
        start(State::kMeasureEager);
      } else {
        figures_.eager_seconds = median(samples_);
        decide();
      }
      return;
    case State::kSettled:
      if (++settled_for_ >= settle_calls_) start(State::kMeasureLockstep);
      return;
  }
}

}  // namespace lockstep::coexec
