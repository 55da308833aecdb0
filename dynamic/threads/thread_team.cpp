#include "dynamic/threads/thread_team.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <omp.h>
#include <sched.h>

#include <atomic>
#include <mutex>

#include "dynamic/threads/fork_guard.h"

namespace lockstep::dynamic {

namespace {

// Held while workers end, for they take locks of MKL's, which a child would find locked for ever. Nobody needs a lock of
// ours meanwhile that is held by who forks.
std::mutex& ending_mutex() {
  static auto* mutex = [] {
    auto* made = new std::mutex;
    hold_across_fork(ForkRank::kTeams, *made);
    return made;
  }();
  return *mutex;
}

}  // namespace

void release_thread_team() {
  using Pause = int (*)(int kind);
  constexpr int kSoft = 1;  // omp_pause_soft: settings stay
  static const auto pause = reinterpret_cast<Pause>(dlsym(RTLD_DEFAULT, "omp_pause_resource_all"));
  if (!pause) return;
  const std::lock_guard lock(ending_mutex());
  pause(kSoft);  // returns when they have ended
}

void make_thread_team() {
  const int threads = at::get_num_threads();
  std::atomic<int> present{0};  // an empty loop would be left out
#pragma omp parallel num_threads(threads)
  present.fetch_add(1, std::memory_order_relaxed);
}

void spread_thread_team() {
  const int threads = at::get_num_threads(), here = sched_getcpu();
#pragma omp parallel num_threads(threads)
  {
    cpu_set_t allowed;
    if (omp_get_thread_num() > 0 && sched_getcpu() == here && sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
      cpu_set_t elsewhere = allowed;
      CPU_CLR(here, &elsewhere);
      if (CPU_COUNT(&elsewhere) > 0 && sched_setaffinity(0, sizeof elsewhere, &elsewhere) == 0)
        sched_setaffinity(0, sizeof allowed, &allowed);
    }
  }
}

namespace {

// MKL has a number of its own for each thread, as at::set_num_threads sets it.
int set_mkl_threads(int count) {
  using Set = int (*)(int count);
  static const auto set = reinterpret_cast<Set>(dlsym(RTLD_DEFAULT, "MKL_Set_Num_Threads_Local"));
  return set ? set(count) : 0;
}

}  // namespace

// A thread that is new to ATen begins with the number that somebody set last, in whichever thread.
void set_threads_of_this_thread(int count) {
  at::init_num_threads();
  if (at::get_num_threads() == count) return;
  omp_set_num_threads(count);
  set_mkl_threads(count);
}

OneThreadScope::OneThreadScope(bool is_on) {
  if (!is_on || at::get_num_threads() == 1) return;
  threads_ = at::get_num_threads();
  omp_set_num_threads(1);
  mkl_threads_ = set_mkl_threads(1);
}

OneThreadScope::~OneThreadScope() {
  if (threads_ == 0) return;
  omp_set_num_threads(threads_);
  set_mkl_threads(mkl_threads_);
}

}  // namespace lockstep::dynamic
