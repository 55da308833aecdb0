#include "dynamic/kernels/kernel_choice.h"

#include <fcntl.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <unordered_map>

#include "dynamic/jit/disk_cache.h"
#include "dynamic/threads/fork_guard.h"
#include "dynamic/vm/allocator.h"
#include "graph/layout.h"

namespace lockstep::dynamic {

namespace {

constexpr int kRounds = 2;               // measurements of a way; the first pays for what is made once
constexpr int kFinalRounds = 4;          // of those that are near the fastest
constexpr double kNear = 1.25;
constexpr int kTimesMore = 3;            // rounds, where others wanted the cores
constexpr double kNearWhereDisturbed = 2.5;
constexpr double kWorthwhile = 0.97;     // of the time of way 0, to leave it
constexpr int kMostTimesCrowded = 8;     // then it is given up
constexpr const char* kFileName = "kernel-choices-11.txt";  // the number is that of the format and of the ways' meaning

// One for all choices: what is done under it is little.
std::mutex& figures_mutex() {
  static auto* instance = new std::mutex;
  return *instance;
}

struct ProblemHash {
  size_t operator()(const Problem& problem) const { return graph::hash_words(problem); }
};

struct Choices {
  std::mutex mutex;
  bool was_read = false;
  std::unordered_map<Problem, std::unique_ptr<KernelChoice>, ProblemHash> all;
};
Choices& choices() {
  static auto* instance = [] {
    auto* made = new Choices;
    hold_across_fork(ForkRank::kChoices, made->mutex);
    hold_across_fork(ForkRank::kFigures, figures_mutex());
    return made;
  }();
  return *instance;
}

// Figures of another machine say nothing here.
const std::string& machine() {
  static const std::string name = [] {
    std::ifstream info("/proc/cpuinfo");
    std::string model, flags;
    for (std::string line; std::getline(info, line) && (model.empty() || flags.empty());) {
      if (line.starts_with("model name") && model.empty()) model = line;
      if (line.starts_with("flags") && flags.empty()) flags = line;
    }
    char text[32];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(jit::hash_bytes(model + flags, 0)));
    return std::string(text);
  }();
  return name;
}

std::string choices_file() {
  const auto folder = jit::DiskCache::default_folder();
  return folder.empty() ? "" : folder + "/" + kFileName;
}

// One line a choice: machine, way, problem. A line that is not like this is passed over.
void read_choices_locked(Choices& known) {
  known.was_read = true;
  std::ifstream file = jit::open_cached(choices_file());
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string on;
    int way = -1;
    if (!(words >> on >> way) || on != machine() || way < 0 || way >= kMaxWays) continue;
    Problem problem;
    for (int64_t word; words >> word;) problem.push_back(word);
    if (words.eof()) known.all.insert_or_assign(std::move(problem), std::make_unique<KernelChoice>(way));
  }
}

}  // namespace

bool KernelChoice::is_given_up(int way) const { return figures_[way].times_crowded >= kMostTimesCrowded; }

bool KernelChoice::is_still_in(int way) const {
  if (!(allowed_ >> way & 1) || is_given_up(way)) return false;
  const auto& own = figures_[way];
  const int times = was_disturbed_ ? kTimesMore : 1;
  const double near = was_disturbed_ ? kNearWhereDisturbed : kNear;
  if (own.count < times * kRounds) return true;
  if (own.count >= times * kFinalRounds) return false;
  double fastest = own.best;
  bool has_rival = false;
  for (int other = 0; other < kMaxWays; ++other) {
    fastest = std::min(fastest, figures_[other].best);
    has_rival |= other != way && figures_[other].best < near * own.best;
  }
  return has_rival && own.best < near * fastest;
}

// While the peak still rises there may be room later: the first calls of a program have no optimizer state yet.
void KernelChoice::note_crowded(int way, size_t peak) {
  auto& own = figures_[way];
  if (peak > own.peak_when_crowded) own.times_crowded = 0;
  own.peak_when_crowded = peak;
  if (++own.times_crowded == kMostTimesCrowded) own.best = std::numeric_limits<double>::infinity();
}

// The fastest as far as that is known; the first where it is not.
int KernelChoice::best_of(uint32_t ways) const {
  int best = std::countr_zero(ways);
  for (int way = 0; way < kMaxWays; ++way)
    if (ways >> way & 1 && figures_[way].best < figures_[best].best) best = way;
  return best;
}

int KernelChoice::pick(uint32_t allowed, uint32_t crowded, size_t peak) {
  std::lock_guard lock(figures_mutex());
  if (settled_ >= 0) return allowed >> settled_ & 1 ? settled_ : 0;
  allowed_ = allowed | 1;
  int next = -1;  // the one that was measured least
  for (int way = 0; way < kMaxWays; ++way) {
    if (!is_still_in(way)) continue;
    if (crowded >> way & 1) {
      note_crowded(way, peak);
    } else if (next < 0 || figures_[way].count < figures_[next].count) {
      next = way;
    }
  }
  const uint32_t roomy = allowed_ & ~crowded;
  return next >= 0 ? next : best_of(roomy ? roomy : allowed_);
}

bool KernelChoice::note(int way, double ticks, size_t bytes, bool disturbed) {
  std::lock_guard lock(figures_mutex());
  if (settled_ >= 0) return false;
  was_disturbed_ |= disturbed;
  figures_[way].count++;
  figures_[way].bytes = std::max(figures_[way].bytes, bytes);
  if (!is_given_up(way)) figures_[way].best = std::min(figures_[way].best, ticks);
  int fastest = 0;
  for (int other = 0; other < kMaxWays; ++other) {
    if (is_still_in(other)) return false;
    if (figures_[other].best < figures_[fastest].best) fastest = other;
  }
  const bool pays = figures_[fastest].best < kWorthwhile * figures_[0].best;
  settled_ = pays ? fastest : 0;
  return true;
}

void KernelChoice::settle(int way) {
  std::lock_guard lock(figures_mutex());
  settled_ = way;
}

int KernelChoice::settled_way() const {
  std::lock_guard lock(figures_mutex());
  return settled_;
}

size_t KernelChoice::bytes_of(int way) const {
  std::lock_guard lock(figures_mutex());
  return figures_[way].bytes;
}

double KernelChoice::lost_share(double ticks) const {
  std::lock_guard lock(figures_mutex());
  double fastest = std::numeric_limits<double>::infinity();
  for (const auto& own : figures_) fastest = std::min(fastest, own.best);
  return std::isinf(fastest) ? 1 : std::max(0.0, 1 - fastest / ticks);
}

TrialRoom room_for_trials() {
  const auto memory = Pool::instance().statistics();
  return {memory.peak_used_bytes, memory.peak_used_bytes - memory.used_bytes};
}

MemorySpan::MemorySpan(bool is_on) {
  if (is_on) before_ = Pool::instance().begin_span();
}
size_t MemorySpan::bytes() const {
  const size_t peak = Pool::instance().span_peak();
  return peak - std::min(peak, before_);  // another thread may have begun one
}

KernelChoice& choice_for(const Problem& problem) {
  auto& known = choices();
  std::lock_guard lock(known.mutex);
  if (!known.was_read) read_choices_locked(known);
  auto& choice = known.all[problem];
  if (!choice) choice = std::make_unique<KernelChoice>();
  return *choice;
}

int known_way(const Problem& problem) {
  const int forced = way_by_force();
  return forced >= 0 ? forced : choice_for(problem).settled_way();
}

// One write to a file opened for appending: lines of several processes do not mix.
void remember_choice(const Problem& problem, int way) {
  const auto path = choices_file();
  if (path.empty()) return;
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  std::string line = machine() + " " + std::to_string(way);
  for (const int64_t word : problem) line += " " + std::to_string(word);
  line += "\n";
  const int file = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0644);  // not for a pipe's reader
  if (file < 0) return;
  [[maybe_unused]] const auto written = ::write(file, line.data(), line.size());
  ::close(file);
}

void forget_choices() {
  auto& known = choices();
  std::lock_guard lock(known.mutex);
  known.all.clear();
  known.was_read = false;
}

}  // namespace lockstep::dynamic
