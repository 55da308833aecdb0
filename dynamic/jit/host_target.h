// What the code is made for: the host's instruction set, or less of it for tests.
#pragma once

#include <string>

namespace lockstep::dynamic::jit {

struct HostTarget {
  bool is_wide = false;           // AVX-512 with BW, DQ and VL; else AVX2 with FMA and F16C
  bool has_copied_tails = false;  // the last lanes go through a buffer instead of masked loads and stores
  std::string cpu;
  std::string features;
};

enum class TargetChoice { kHost, kAvx2, kCopiedTails, kAvx2CopiedTails };

// Without AVX2, FMA or F16C the result's cpu is empty: this host cannot run what is generated.
HostTarget find_target(TargetChoice choice);

}  // namespace lockstep::dynamic::jit
