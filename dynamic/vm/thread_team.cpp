#include "dynamic/vm/thread_team.h"

#include <dlfcn.h>

namespace lockstep::dynamic {

void release_thread_team() {
  using Pause = int (*)(int kind);
  constexpr int kSoft = 1;  // omp_pause_soft: settings stay
  static const auto pause = reinterpret_cast<Pause>(dlsym(RTLD_DEFAULT, "omp_pause_resource_all"));
  if (pause) pause(kSoft);
}

}  // namespace lockstep::dynamic
