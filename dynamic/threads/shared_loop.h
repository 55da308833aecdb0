// Loops whose parts are taken by whoever has time: the thread that runs kernels, and the leading one while it waits.
// On two cores a worker of a team is a third thread: as long as Python runs, it shares a core with it, and all wait for
// the part that it was given. So here Python's thread is the second worker, when it has nothing else to do.
// Who computes a part changes no bits; how many parts there are depends on the loop alone. One thread takes them from the
// front and the other one from the back, so that in the next loop over the same memory it has what it had before: cores
// may be far from each other.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/ceil_div.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <utility>

namespace lockstep::dynamic {

// Of a loop: whether two of its parts are worth waking who helps, which takes tens of microseconds.
enum class Weight { kUsual, kHeavy };

// Where a thread that runs kernels puts its loop, for another one to take parts of.
class WorkBoard {
 public:
  static constexpr int kThreads = 2;  // the one that runs kernels, and one that waits
  // `call`: wakes who is asleep in a SleepScope.
  explicit WorkBoard(std::function<void()> call) : call_(std::move(call)) {}

  // Whether loops go on it; by the thread that runs kernels, between two of them.
  void set_on(bool is_on) { is_on_ = is_on; }
  bool is_on() const { return is_on_; }

  // Runs the parts of a loop with whoever helps; raises what one of them raised. On one thread at a time.
  struct Loop;
  void run(Loop& loop);
  // Takes parts until none is left; whether it took one. On any thread; a second one at a time is sent away.
  bool help();

  // While it lives, its thread is asleep until it is called for a loop.
  class SleepScope {
   public:
    explicit SleepScope(WorkBoard& board) : board_(board) {
      board_.helper_sleeps_.store(true, std::memory_order_seq_cst);
    }
    ~SleepScope() { board_.helper_sleeps_.store(false, std::memory_order_relaxed); }
    SleepScope(const SleepScope&) = delete;

   private:
    WorkBoard& board_;
  };
  bool has_work() const { return open_.load(std::memory_order_seq_cst) != nullptr; }

  struct Loop {
    void (*part)(const void* body, int64_t begin, int64_t end);
    const void* body;
    int64_t begin, end, step;  // a part has `step` items, the last one what is left
    Weight weight = Weight::kUsual;
    std::atomic<uint64_t> taken{0};  // parts from the front, and in the upper half from the back
    unsigned float_mode = 0;
    std::exception_ptr error = nullptr;
    std::atomic<bool> has_failed{false};
    int64_t parts() const { return at::ceil_div(end - begin, step); }
  };

 private:
  bool take_parts(Loop& loop, int thread);

  const std::function<void()> call_;
  bool is_on_ = false;
  std::atomic<Loop*> open_{nullptr};
  std::atomic<bool> is_helped_{false};  // somebody may look at the loop that is open
  std::atomic<bool> helper_sleeps_{false};
};

// While it lives, loops of this thread go on the board.
class BoardScope {
 public:
  explicit BoardScope(WorkBoard* board);
  ~BoardScope();
  BoardScope(const BoardScope&) = delete;

 private:
  WorkBoard* before_;
};

WorkBoard* board_of_this_thread();  // if it is on
inline bool has_board() { return board_of_this_thread() != nullptr; }
// How many threads a shared loop has, at most.
inline int loop_threads() { return has_board() ? WorkBoard::kThreads : at::get_num_threads(); }
// What a loop of an OpenMP team is taken for, where there is a choice: on a board, its workers sleep, and take Python's
// core when they wake up, which the best of some measurements does not show.
inline double team_handicap() { return has_board() ? 1.6 : 1.0; }
// In a part of a loop: which of the threads this is.
int number_in_loop();
// A loop within a part, on that part's thread alone, counts from 0.
class WithoutNumber {
 public:
  WithoutNumber();
  ~WithoutNumber();
  WithoutNumber(const WithoutNumber&) = delete;

 private:
  int before_;
};

// body(begin, end) for parts of [begin, end), each with `grain` items at least if there are as many. Like
// at::parallel_for, which it is where there is no board.
template <class Body>
void shared_loop(int64_t begin, int64_t end, int64_t grain, const Body& body, Weight weight = Weight::kUsual) {
  constexpr int64_t kParts = 8;
  WorkBoard* board = board_of_this_thread();
  if (!board) {
    const WithoutNumber numbers_of_its_own;
    return at::parallel_for(begin, end, grain, body);
  }
  if (end <= begin) return;
  if (end - begin <= grain) return body(begin, end);
  const auto part = [](const void* argument, int64_t first, int64_t last) {
    (*static_cast<const Body*>(argument))(first, last);
  };
  WorkBoard::Loop loop{part, &body, begin, end, std::max(grain, at::ceil_div(end - begin, kParts)), weight};
  board->run(loop);
}

}  // namespace lockstep::dynamic
