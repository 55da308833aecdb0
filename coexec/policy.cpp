#include "coexec/policy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <utility>

namespace lockstep::coexec {

namespace {

constexpr int kWarmCalls = 5;      // typical calls in a row before the first measurement
constexpr double kTinyOp = 20e-6;  // seconds, recorded
constexpr int kMaxWarmCalls = 40;  // a function that is recorded now and then is measured all the same
constexpr int kMaxPassedOver = 12; // untypical calls of a measurement; a function that knows no others is measured by them
// There and back: what the machine does meanwhile, getting warm or being lent to others, meets all ways alike; and so do
// calls that differ in work by turns of two or three. The way in the middle has it easiest, for no change comes before its
// second round: each pass has another one there.
// Workers that sleep come first: where other programs want the cores, all that wait awake is many times slower, and is
// given up at once where that is known.
constexpr Way kTurns[] = {Way::kYielding, Way::kInPlace, Way::kEager, Way::kBehind};
constexpr int kRounds = 2 * kWayCount;
Way way_of_round(int pass, int round) {
  const int turn = round < kWayCount ? round : kRounds - 1 - round;
  return kTurns[(turn + (kWayCount - 1) * pass) % kWayCount];
}
constexpr int kSamples = 3;        // a round; each is a call, or the mean of as many as take some time
constexpr double kSampleSeconds = 0.012;
constexpr int kMaxCallsOfASample = 64;
// Calls after a change of the way that do not count: workers and caches change hands, and the system has to move threads
// that share a core apart.
constexpr int kSkipped = 2, kMaxSkipped = 100;
constexpr int kSkippedAtAGlance = 1;
constexpr double kClearAtAGlance = 0.95;  // of the time that calls take so far: calls run so until they are measured
constexpr double kSettling = 0.03;  // seconds
constexpr int kMinPasses = 2;      // through the rounds: one may meet a machine that is busy with other things
constexpr int kMinPassesOfShort = 4;  // where a sample is several calls: what disturbs one weighs more, and they cost little
constexpr int kMaxPasses = 6;      // until it is clear whether co-execution pays
constexpr double kHopeless = 1.2;  // times the fastest way: no such thing makes a pass that slow
constexpr double kClear = 3;       // standard errors between the two
constexpr double kFar = 1.1;       // or so many times the fastest in each of kFarPasses passes: where calls differ in work
constexpr int kFarPasses = 3;      // by themselves, standard errors stay large for ever
constexpr uint64_t kFirstSettle = 64;  // calls until the next measurement, at least; doubles
constexpr uint64_t kMaxSettle = 4096;
constexpr double kMaxSettleSeconds = 60;  // where more calls than that are needed to make up for the measurement
constexpr uint64_t kAdoptedSettle = 1024;  // the same, where another function's choice was adopted
constexpr double kMeasuringShare = 0.01;  // of all time that calls of the slower ways may cost, to measure them
constexpr double kClearGap = 3.8;      // standard errors; gaps in a row are alike, so that it takes many of the usual ones
constexpr double kClearGapOfAPass = 2.8;  // each of one way is longer than all of the other
constexpr double kAdvantage = 0.98;    // the other way must be this much faster to be taken: less is within the noise

constexpr int kPointlessCalls = 3;

constexpr double kLost = 3;           // times the fastest way: a call that says something by itself,
constexpr double kLostEnough = 4;     // some of which in a row say enough, together this far beyond
constexpr double kLostSeconds = 0.25; // shorter ones cost nothing
// While settled: other programs may begin or end, and the function may get other work.
constexpr int kWatchedCalls = 8;
constexpr double kWatchedSeconds = 0.25;
constexpr double kDrift = 1.6;        // times what is usual, or that part of it
constexpr double kFirstPatience = 2, kMaxPatience = 64;

constexpr int kInPass = 2 * kSamples;

struct Estimate {
  double mean, error;
};

size_t pass_count(const WaySamples& samples) { return samples.seconds.size() / kInPass; }

std::span<const double> pass_of(const WaySamples& samples, size_t pass) {
  return std::span(samples.seconds).subspan(pass * kInPass, kInPass);
}

// Without the largest sample: a pause of the machine is not the function's.
double mean_of(std::span<const double> pass) {
  return (std::accumulate(pass.begin(), pass.end(), 0.0) - *std::max_element(pass.begin(), pass.end())) / (kInPass - 1);
}

// What drifts from pass to pass meets all ways alike, so that only scatter within passes counts as an error.
Estimate estimate(const WaySamples& samples) {
  double sum = 0, squares = 0, count = 0;
  for (size_t number = 0; number < pass_count(samples); ++number) {
    const auto pass = pass_of(samples, number);
    const auto largest = std::max_element(pass.begin(), pass.end());
    const double mean = mean_of(pass);
    for (auto sample = pass.begin(); sample != pass.end(); ++sample)
      if (sample != largest) squares += (*sample - mean) * (*sample - mean);
    sum += mean * (kInPass - 1);
    count += kInPass - 1;
  }
  return {sum / count + samples.between, std::sqrt(squares / (count - 1) / count)};
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return values.size() % 2 ? *middle : (*middle + *std::max_element(values.begin(), middle)) / 2;
}

// Pass by pass: a machine that is slow for the length of one pass decides nothing.
std::vector<double> ratios(const WaySamples& samples, const WaySamples& base) {
  std::vector<double> ratios;
  for (size_t pass = 0; pass < std::min(pass_count(samples), pass_count(base)); ++pass)
    ratios.push_back((mean_of(pass_of(samples, pass)) + samples.between) / (mean_of(pass_of(base, pass)) + base.between));
  return ratios;
}

// Standard errors by which values of one kind come before those of another, by their ranks (Mann and Whitney's test).
double rank_distance(const std::vector<double>& low, const std::vector<double>& high) {
  double wins = 0;
  for (const double a : low)
    for (const double b : high) wins += a < b ? 1 : a == b ? 0.5 : 0;
  const auto n = static_cast<double>(low.size()), m = static_cast<double>(high.size());
  return (wins - n * m / 2) / std::sqrt(n * m * (n + m + 1) / 12);
}

}  // namespace

const char* way_name(Way way) {
  static const char* const names[] = {"behind", "inplace", "eager", "yielding"};
  return names[static_cast<int>(way)];
}

Policy::Policy(bool may_run_behind)
    : may_run_behind_(may_run_behind), warm_up_way_(may_run_behind ? Way::kBehind : Way::kInPlace) {
  figures_.way = warm_up_way_;
}

Way Policy::choose() const {
  switch (state_) {
    case State::kGlancing:
    case State::kMeasuring: return way_of_round(passes_, round_);
    case State::kSettled: return figures_.way;
    default: return warm_up_way_;
  }
}

void Policy::guess(double seconds_an_op) {
  if (may_run_behind_) warm_up_way_ = seconds_an_op < kTinyOp ? Way::kYielding : Way::kBehind;
}

void Policy::begin_round(bool is_another_way) {
  seen_ = 0;
  settling_ = sum_ = lost_ = 0;
  summed_calls_ = lost_calls_ = 0;
  summed_gaps_.clear();
  skipped_ = !is_another_way ? 0 : state_ == State::kGlancing ? kSkippedAtAGlance : kSkipped;
}

void Policy::start(State state) {
  state_ = state;
  round_ = 0;
  passes_ = 0;
  for (const Way way : kTurns) is_dropped_[static_cast<int>(way)] = is_left_out(way);
  while (is_dropped_[static_cast<int>(choose())]) ++round_;
  begin_round(/*is_another_way=*/true);
  if (state == State::kMeasuring) measuring_seconds_ = 0, lost_seconds_.fill(0);
  passed_over_ = 0;
  measured_calls_.fill(0);
  samples_.fill({});
}

// Of those that were not dropped, over all passes.
Way Policy::fastest_measured() const {
  int fastest = -1;
  for (int i = 0; i < kWayCount; ++i)
    if (!is_dropped_[i] && (fastest < 0 || median(ratios(samples_[i], samples_[fastest])) < 1)) fastest = i;
  return static_cast<Way>(fastest);
}

// Gaps scatter by themselves, for data are waited for and results looked at: only what is clearly apart counts, and a
// single pass says no more than that it is worth another one.
void Policy::compare_gaps() {
  const WaySamples* shortest = nullptr;
  for (int i = 0; i < kWayCount; ++i)
    if (!is_dropped_[i] && (!shortest || median(samples_[i].gaps) < median(shortest->gaps))) shortest = &samples_[i];
  may_gaps_differ_ = false;
  for (int i = 0; i < kWayCount; ++i) {
    if (is_dropped_[i]) continue;
    auto& samples = samples_[i];
    const double longer = median(samples.gaps) - median(shortest->gaps), apart = rank_distance(shortest->gaps, samples.gaps);
    samples.between = passes_ >= kMinPasses && apart > kClearGap ? longer : 0;
    const bool matters = longer > (1 - kAdvantage) * estimate(samples).mean;
    may_gaps_differ_ |= passes_ < kMinPasses && apart > kClearGapOfAPass && matters;
  }
}

void Policy::drop_slow_ways() {
  if (may_gaps_differ_) return;
  const auto& base = samples_[static_cast<int>(fastest_measured())];
  const auto best = estimate(base);
  for (int i = 0; i < kWayCount; ++i) {
    if (is_dropped_[i]) continue;
    const auto slower = ratios(samples_[i], base);
    const auto own = estimate(samples_[i]);
    const bool is_sure = passes_ >= kMinPasses || median(slower) > kHopeless;
    const bool is_always = std::all_of(slower.begin(), slower.end(), [](double ratio) { return ratio > 1; });
    const bool is_far = passes_ >= kFarPasses && *std::min_element(slower.begin(), slower.end()) > kFar;
    const bool is_apart = own.mean - best.mean > kClear * std::hypot(own.error, best.error);
    is_dropped_[i] = is_far || (is_sure && is_always && is_apart);
  }
}

// Whether co-execution pays is known; which form of it is fastest is worth a second pass, since forms that are left are
// close to each other, but not more.
bool Policy::is_clear() const {
  const auto left = std::count(is_dropped_.begin(), is_dropped_.end(), false);
  return left == 1 || (is_dropped_[static_cast<int>(Way::kEager)] && passes_ >= kMinPasses);
}

void Policy::next_round() {
  const Way last = choose();
  do {
    if (++round_ < kRounds) continue;
    round_ = 0;
    if (state_ == State::kGlancing) return end_glance();
    ++passes_;
    compare_gaps();
    drop_slow_ways();
    const int least = has_short_calls_ ? kMinPassesOfShort : 0;
    if (passes_ == kMaxPasses || (passes_ >= least && is_clear())) return decide();
  } while (is_dropped_[static_cast<int>(choose())]);
  begin_round(/*is_another_way=*/choose() != last);
}

// What disturbs a call makes it slower: the faster of two says more.
void Policy::end_glance() {
  const auto fastest = [this](Way way) {
    const auto& samples = samples_[static_cast<int>(way)].seconds;
    const bool is_known = !is_dropped_[static_cast<int>(way)] && !samples.empty();
    return is_known ? *std::min_element(samples.begin(), samples.end()) : std::numeric_limits<double>::infinity();
  };
  Way best = warm_up_way_;
  for (const Way way : kTurns)
    if (fastest(way) < fastest(best)) best = way;
  if (fastest(best) < kClearAtAGlance * fastest(warm_up_way_)) warm_up_way_ = best;
  start(State::kWarmUp);
}

// A way that is many times slower than another costs more to measure than all the others.
bool Policy::is_lost(double seconds) {
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kWayCount; ++i) {
    const auto& others = samples_[i].seconds;
    if (!is_dropped_[i] && i != static_cast<int>(choose()) && !others.empty())
      best = std::min(best, std::accumulate(others.begin(), others.end(), 0.0) / static_cast<double>(others.size()));
  }
  if (seconds < kLost * best) {
    lost_ = 0;
    lost_calls_ = 0;
    return false;
  }
  ++lost_calls_;
  lost_ += seconds / (kLost * best);
  if (lost_calls_ < 2 || lost_ < kLostEnough || lost_ * kLost * best < kLostSeconds) return false;
  lost_seconds_[static_cast<int>(choose())] = lost_ * kLost * best / lost_calls_;
  return true;
}

bool Policy::is_settling(double seconds) {
  if (skipped_ == 0 || seen_ > kMaxSkipped || (seen_ > skipped_ && settling_ >= kSettling)) return false;
  settling_ += seconds;
  return true;
}

void Policy::decide() {
  const auto& base = samples_[static_cast<int>(fastest_measured())];
  const double seconds_of_base = estimate(base).mean;
  std::vector<Way> ways;
  for (const Way way : {Way::kBehind, Way::kInPlace, Way::kYielding, Way::kEager})
    if (!is_left_out(way)) ways.push_back(way);
  for (const Way way : ways) {
    const int i = static_cast<int>(way);
    figures_.seconds[i] = lost_seconds_[i] > 0 ? lost_seconds_[i] : seconds_of_base * median(ratios(samples_[i], base));
  }
  const auto seconds = [this](Way way) { return figures_.seconds[static_cast<int>(way)]; };
  const auto is_better = [&](Way a, Way b) {  // what was dropped, was once and for all
    return std::pair(is_dropped_[static_cast<int>(a)], seconds(a)) < std::pair(is_dropped_[static_cast<int>(b)], seconds(b));
  };
  if (!figures_.is_settled) figures_.way = *std::min_element(ways.begin(), ways.end() - 1, is_better);
  const Way before = figures_.way;
  const Way fastest = *std::min_element(ways.begin(), ways.end(), is_better);
  if (seconds(fastest) < kAdvantage * seconds(figures_.way)) figures_.way = fastest;
  figures_.measurements++;
  const double chosen = seconds(figures_.way) - samples_[static_cast<int>(figures_.way)].between;
  figures_.rests_on_gaps = std::any_of(ways.begin(), ways.end(), [&](Way way) {
    return seconds(way) - samples_[static_cast<int>(way)].between < kAdvantage * chosen;
  });
  const bool was_in_vain = is_for_drift_ && figures_.way == before;
  patience_ = was_in_vain ? std::min(2 * patience_, kMaxPatience) : kFirstPatience;
  is_for_drift_ = false;
  double lost_calls = 0;  // of the chosen way, which would have run in the time that the others took longer
  for (const Way way : ways) lost_calls += measured_calls_[static_cast<int>(way)] * (seconds(way) / seconds(figures_.way) - 1);
  const double longest = std::max<double>(kMaxSettle, kMaxSettleSeconds / seconds(figures_.way));
  const auto for_cost = static_cast<uint64_t>(std::clamp<double>(lost_calls / kMeasuringShare, kFirstSettle, longest));
  settle(std::max(for_cost, std::min(2 * settle_calls_, kMaxSettle)));
}

void Policy::give_up() {
  figures_.way = Way::kEager;
  figures_.is_pointless = true;
  pointless_calls_ = 0;
  settle(std::clamp(2 * settle_calls_, kAdoptedSettle, kMaxSettle));
  usual_ = 0;
}

void Policy::settle(uint64_t calls) {
  figures_.is_settled = true;
  settle_calls_ = calls;
  settled_for_ = 0;
  settled_seconds_ = 0;
  usual_ = std::max(0.0, figures_.seconds[static_cast<int>(figures_.way)] - samples_[static_cast<int>(figures_.way)].between);
  watched_seconds_ = longest_watched_ = 0;
  watched_calls_ = 0;
  start(State::kSettled);
}

// Whether calls have taken far longer, or shorter, for some time than they did when the ways were measured.
bool Policy::has_drifted(double seconds) {
  settled_seconds_ += seconds;
  watched_seconds_ += seconds;
  longest_watched_ = std::max(longest_watched_, seconds);
  if (++watched_calls_ < kWatchedCalls || watched_seconds_ < kWatchedSeconds) return false;
  const double mean = (watched_seconds_ - longest_watched_) / (watched_calls_ - 1);
  watched_seconds_ = longest_watched_ = 0;
  watched_calls_ = 0;
  if (usual_ == 0) usual_ = mean;
  const bool is_apart = mean > kDrift * usual_ || kDrift * mean < usual_;
  return is_apart && settled_seconds_ >= patience_ * measuring_seconds_;
}

void Policy::adopt(Way way) {
  figures_.way = way;
  settle(kAdoptedSettle);
}

void Policy::note_measured(Way way, double seconds, bool does_count, double between) {
  ++measured_calls_[static_cast<int>(way)];
  measuring_seconds_ += seconds;
  if (does_count && is_lost(seconds)) {
    is_dropped_[static_cast<int>(way)] = true;
    return next_round();
  }
  if (is_settling(seconds)) return;
  if (!does_count && passed_over_ < kMaxPassedOver) {
    ++passed_over_;
    return;
  }
  auto& samples = samples_[static_cast<int>(way)];
  summed_gaps_.push_back(between);
  sum_ += seconds;
  if (++summed_calls_ < kMaxCallsOfASample && sum_ < kSampleSeconds) return;
  has_short_calls_ = summed_calls_ > 1;
  samples.seconds.push_back(std::exchange(sum_, 0) / std::exchange(summed_calls_, 0));
  samples.gaps.push_back(median(std::exchange(summed_gaps_, {})));
  if (state_ == State::kGlancing || samples.seconds.size() % kSamples == 0) next_round();
}

void Policy::note(Way way, double seconds, CallKind kind, double between) {
  ++seen_;
  if (way != Way::kEager) {
    pointless_calls_ = kind == CallKind::kPointless ? pointless_calls_ + 1 : 0;
    if (pointless_calls_ == kPointlessCalls) return give_up();
    if (kind == CallKind::kPointless) kind = CallKind::kTypical;
    if (kind == CallKind::kTypical && pointless_calls_ == 0) figures_.is_pointless = false;
  }
  switch (state_) {
    case State::kFirstCalls:
      if (kind != CallKind::kRecorded) return start(State::kGlancing);
      if (seen_ >= kMaxWarmCalls) start(State::kMeasuring);
      return;
    case State::kGlancing:
      // Only co-executed calls get on with it: eager has to wait until they can show what they are worth.
      if (kind == CallKind::kPrepared) is_dropped_[static_cast<int>(Way::kEager)] = true;
      return note_measured(way, seconds, kind != CallKind::kRecorded, between);
    case State::kWarmUp:
      warm_calls_ = kind == CallKind::kTypical ? warm_calls_ + 1 : 0;
      if (warm_calls_ >= kWarmCalls || seen_ >= kMaxWarmCalls) start(State::kMeasuring);
      return;
    case State::kMeasuring: return note_measured(way, seconds, kind == CallKind::kTypical, between);
    case State::kSettled:
      is_for_drift_ = kind == CallKind::kTypical && has_drifted(seconds);
      if (++settled_for_ >= settle_calls_ || is_for_drift_) start(State::kMeasuring);
      return;
  }
}

}  // namespace lockstep::coexec
