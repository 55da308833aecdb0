#include "coexec/policy.h"

#include <algorithm>
#include <numeric>

namespace lockstep::coexec {

namespace {

constexpr int kWarmCalls = 5;      // typical calls in a row before the first measurement
constexpr int kMaxWarmCalls = 40;  // a function that is recorded now and then is measured all the same
constexpr int kMaxPassedOver = 12; // untypical calls of a measurement; a function that knows no others is measured by them
// There and back: what the machine does meanwhile, getting warm or being lent to others, meets all ways alike; and so do
// calls that differ in work by turns of two or three.
constexpr Way kRounds[] = {Way::kBehind, Way::kInPlace, Way::kEager, Way::kEager, Way::kInPlace, Way::kBehind};
constexpr int kSamples = 3;        // a round
constexpr int kSkipped = 2;        // calls after a change of the way: workers and caches change hands
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
    case State::kMeasuring: return kRounds[round_];
    case State::kSettled: return figures_.way;
    default: return Way::kBehind;
  }
}

void Policy::start(State state) {
  state_ = state;
  round_ = 0;
  seen_ = 0;
  passed_over_ = 0;
  for (auto& samples : samples_) samples.clear();
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

void Policy::note(Way way, double seconds, bool is_untypical) {
  ++seen_;
  switch (state_) {
    case State::kWarmUp:
      warm_calls_ = is_untypical ? 0 : warm_calls_ + 1;
      if (warm_calls_ >= kWarmCalls || seen_ >= kMaxWarmCalls) start(State::kMeasuring);
      return;
    case State::kMeasuring: {
      const bool changed = round_ == 0 || kRounds[round_ - 1] != kRounds[round_];
      if (changed && seen_ <= kSkipped) return;
      if (is_untypical && passed_over_ < kMaxPassedOver) {
        ++passed_over_;
        return;
      }
      auto& samples = samples_[static_cast<int>(way)];
      samples.push_back(seconds);
      if (samples.size() % kSamples != 0) return;
      seen_ = 0;
      if (++round_ < std::size(kRounds)) return;
      for (int i = 0; i < kWayCount; ++i) figures_.seconds[i] = typical(samples_[i]);
      decide();
      return;
    }
    case State::kSettled:
      if (++settled_for_ >= settle_calls_) start(State::kMeasuring);
      return;
  }
}

}  // namespace lockstep::coexec
