// Nanoseconds until one core sees what another one wrote: the least of some rounds, since who else wants the cores makes
// it longer. JSON on the standard output. Cores of one cache are some tens apart; cores of two, or of two sockets, hundreds,
// and what threads hand each other then takes longer. The host of a virtual machine may move its cores from the one to
// the other from second to second.
//     ninja -C build lockstep_bench_core_distance && build/lockstep_bench_core_distance [rounds]
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

constexpr int kTrips = 20000, kFirstTrips = 2000;  // until both threads are where they belong
constexpr std::chrono::milliseconds kQuiet{30};  // until threads that ran before have gone to sleep

std::vector<int> allowed_cores() {
  cpu_set_t set;
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  return cores;
}

void stay_on(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  sched_setaffinity(0, sizeof set, &set);
}

double one_way(int core, int other) {
  alignas(64) std::atomic<int> ball{0};  // odd: the other thread's
  std::thread partner([&] {
    stay_on(other);
    for (int trip = 0; trip < kFirstTrips + kTrips; ++trip) {
      while (ball.load(std::memory_order_acquire) != 2 * trip + 1) {
      }
      ball.store(2 * trip + 2, std::memory_order_release);
    }
  });
  stay_on(core);
  auto begin = std::chrono::steady_clock::now();
  for (int trip = 0; trip < kFirstTrips + kTrips; ++trip) {
    if (trip == kFirstTrips) begin = std::chrono::steady_clock::now();
    ball.store(2 * trip + 1, std::memory_order_release);
    while (ball.load(std::memory_order_acquire) != 2 * trip + 2) {
    }
  }
  const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - begin;
  partner.join();
  return taken.count() / kTrips / 2;
}

}  // namespace

int main(int argc, char** argv) {
  const auto cores = allowed_cores();
  if (cores.size() < 2) {
    std::puts("null");
    return 0;
  }
  std::this_thread::sleep_for(kQuiet);
  double least = one_way(cores[0], cores[1]);
  for (int round = argc > 1 ? std::atoi(argv[1]) : 5; round > 1; --round) least = std::min(least, one_way(cores[0], cores[1]));
  std::printf("%.0f\n", least);
}
