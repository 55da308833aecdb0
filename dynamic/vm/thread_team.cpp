#include "dynamic/vm/thread_team.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>

#include <atomic>

namespace lockstep::dynamic {

void release_thread_team() {
  using Pause = int (*)(int kind);
  constexpr int kSoft = 1;  // omp_pause_soft: settings stay
  static const auto pause = reinterpret_cast<Pause>(dlsym(RTLD_DEFAULT, "omp_pause_resource_all"));
  if (pause) pause(kSoft);
}

void make_thread_team() {
  const int threads = at::get_num_threads();
  std::atomic<int> present{0};  // an empty loop would be left out
#pragma omp parallel num_threads(threads)
  present.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace lockstep::dynamic
