// when="auto": measures calls both ways now and then and keeps the faster one. Knows no clock: times are handed in.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::coexec {

enum class Way : uint8_t { kLockstep, kEager };

class Policy {
 public:
  // How the next call shall run.
  Way choose() const;
  // After a call that ran as chosen. A call that was recorded says nothing about the speed of either way.
  void note(Way way, double seconds, bool was_recorded);

  struct Figures {
    double lockstep_seconds = 0;  // medians of the last measurement; 0: not measured yet
    double eager_seconds = 0;
    uint64_t measurements = 0;
    bool is_settled = false;
    Way way = Way::kLockstep;
  };
  Figures figures() const { return figures_; }

 private:
  enum class State : uint8_t { kWarmUp, kMeasureLockstep, kMeasureEager, kSettled };
  void start(State state);
  void decide();

  State state_ = State::kWarmUp;
  Figures figures_;
  std::vector<double> samples_;
  int seen_ = 0;            // calls in this state
  uint64_t settled_for_ = 0;
  uint64_t settle_calls_ = 0;
};

}  // namespace lockstep::coexec
