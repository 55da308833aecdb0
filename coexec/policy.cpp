#include "coexec/policy.h"

#include <algorithm>
#include <numeric>

namespace lockstep::coexec {

namespace {

constexpr int kWarmCalls = 3;          // unrecorded calls in a row before the first measurement
constexpr int kMaxWarmCalls = 40;      // a function that is recorded now and then is measured all the same
constexpr int kSkipped = 2;            // first calls of a run: thread teams and caches change hands
constexpr int kSamples = 6;            // in a row: calls that alternate by twos or threes are met by each way alike
constexpr uint64_t kFirstSettle = 64;  // calls until the next measurement; doubles
constexpr uint64_t kMaxSettle = 4096;
constexpr double kAdvantage = 0.98;    // the other way must be this much faster to be taken

// The mean without the largest: calls may differ in work, and a pause of the machine is not the function's.
double typical(const std::vector<double>& samples) {
  const double sum = std::accumulate(samples.begin(), samples.end(), 0.0);
  return (sum - *std::max_element(samples.begin(), samples.end())) / static_cast<double>(samples.size() - 1);
}

}  // namespace

const char* way_name(Way way) {
  static const char* const names[] = {"behind", "inplace", "eager"};
  return names[static_cast<int>(way)];
}

Way Policy::choose() const {
  switch (state_) {
    case State::kMeasuring: return measured_;
    case State::kSettled: return figures_.way;
    default: return Way::kBehind;
  }
}

void Policy::start(State state) {
  state_ = state;
  measured_ = Way::kBehind;
  seen_ = 0;
  samples_.clear();
}

void Policy::decide() {
  const auto& seconds = figures_.seconds;
  const auto fastest = std::min_element(seconds.begin(), seconds.end()) - seconds.begin();
  const double kept = seconds[static_cast<int>(figures_.way)];
  if (figures_.measurements == 0 || seconds[fastest] < kAdvantage * kept) figures_.way = static_cast<Way>(fastest);
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
        if (static_cast<int>(samples_.size()) >= kWarmCalls) start(State::kMeasuring);
      }
      return;
    case State::kMeasuring:
      if (seen_ <= kSkipped || was_recorded) return;
      samples_.push_back(seconds);
      if (static_cast<int>(samples_.size()) < kSamples) return;
      figures_.seconds[static_cast<int>(measured_)] = typical(samples_);
      samples_.clear();
      seen_ = 0;
      if (measured_ == Way::kEager) {
        decide();
      } else {
        measured_ = static_cast<Way>(static_cast<int>(measured_) + 1);
      }
      return;
    case State::kSettled:
      if (++settled_for_ >= settle_calls_) start(State::kMeasuring);
      return;
  }
}

}  // namespace lockstep::coexec
