// A board that loops of this thread go on, and a thread that helps with them.
#pragma once

#include <atomic>
#include <thread>

#include "dynamic/threads/shared_loop.h"

namespace lockstep::dynamic {

class HelpedBoard {
 public:
  HelpedBoard() {
    board_.set_on(true);
    helper_ = std::thread([this] {
      while (!is_over_) helped_ += board_.help();
    });
  }
  ~HelpedBoard() {
    is_over_ = true;
    helper_.join();
  }
  HelpedBoard(const HelpedBoard&) = delete;

  int helped() const { return helped_; }  // loops that it took a part of

 private:
  WorkBoard board_{[] {}};
  BoardScope scope_{&board_};
  std::atomic<bool> is_over_{false};
  std::atomic<int> helped_{0};
  std::thread helper_;
};

}  // namespace lockstep::dynamic
