#include "dynamic/threads/shared_loop.h"

#include <xmmintrin.h>

#include <utility>

#include "dynamic/threads/thread_team.h"

namespace lockstep::dynamic {

namespace {

constexpr int kSpins = 2000;          // some 20 us, until who helps is done with a part; then it may want this core
constexpr uint64_t kFromBack = uint64_t{1} << 32;  // one part
constexpr int64_t kWorthWaking = 4, kHeavyWorthWaking = 2;  // parts

thread_local WorkBoard* t_board = nullptr;
thread_local int t_number = -1;  // outside of loops

}  // namespace

BoardScope::BoardScope(WorkBoard* board) : before_(std::exchange(t_board, board)) {}
BoardScope::~BoardScope() { t_board = before_; }

WorkBoard* board_of_this_thread() { return t_board && t_board->is_on() ? t_board : nullptr; }
int number_in_loop() { return t_number >= 0 ? t_number : at::get_thread_num(); }
WithoutNumber::WithoutNumber() : before_(std::exchange(t_number, -1)) {}
WithoutNumber::~WithoutNumber() { t_number = before_; }

// Kernels below use this thread alone, as they do in a parallel region.
bool WorkBoard::take_parts(Loop& loop, int thread) {
  const int64_t parts = loop.parts();
  const auto claim = [&] {  // a part; -1: none is left
    const uint64_t taken = loop.taken.fetch_add(thread == 0 ? 1 : kFromBack, std::memory_order_relaxed);
    const auto from_front = static_cast<int64_t>(taken % kFromBack), from_back = static_cast<int64_t>(taken / kFromBack);
    const int64_t left = parts - from_front - from_back;
    if (left <= 1) open_.store(nullptr, std::memory_order_seq_cst);  // nobody need look any more
    return left <= 0 ? -1 : thread == 0 ? from_front : parts - 1 - from_back;
  };
  int64_t part = claim();
  if (part < 0) return false;
  const OneThreadScope alone(true);
  const BoardScope no_board(nullptr);
  const int number = std::exchange(t_number, thread);
  try {
    for (; part >= 0; part = claim()) {
      const int64_t first = loop.begin + part * loop.step;
      loop.part(loop.body, first, std::min(first + loop.step, loop.end));
    }
  } catch (...) {
    loop.taken.store(static_cast<uint64_t>(parts), std::memory_order_relaxed);
    if (!loop.has_failed.exchange(true)) loop.error = std::current_exception();
  }
  t_number = number;
  return true;
}

void WorkBoard::run(Loop& loop) {
  loop.float_mode = _mm_getcsr();
  const int64_t parts = loop.parts();
  open_.store(&loop, std::memory_order_seq_cst);
  if (parts >= (loop.weight == Weight::kHeavy ? kHeavyWorthWaking : kWorthWaking) && helper_sleeps_.load(std::memory_order_seq_cst)) call_();
  take_parts(loop, 0);
  open_.store(nullptr, std::memory_order_seq_cst);
  for (int spin = 0; spin < kSpins && is_helped_.load(std::memory_order_seq_cst); ++spin) _mm_pause();
  is_helped_.wait(true, std::memory_order_seq_cst);
  if (loop.error) std::rethrow_exception(loop.error);
}

bool WorkBoard::help() {
  if (!open_.load(std::memory_order_relaxed) || is_helped_.exchange(true, std::memory_order_seq_cst)) return false;
  bool has_helped = false;
  if (Loop* loop = open_.load(std::memory_order_seq_cst)) {
    const unsigned mode = _mm_getcsr();
    _mm_setcsr(loop->float_mode);
    has_helped = take_parts(*loop, 1);
    _mm_setcsr(mode);
  }
  is_helped_.store(false, std::memory_order_seq_cst);
  is_helped_.notify_all();
  return has_helped;
}

}  // namespace lockstep::dynamic
