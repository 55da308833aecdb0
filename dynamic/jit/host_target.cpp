#include "dynamic/jit/host_target.h"

#include <llvm/ADT/StringMap.h>
#include <llvm/TargetParser/Host.h>

#include <algorithm>
#include <vector>

namespace lockstep::dynamic::jit {

HostTarget find_target(TargetChoice choice) {
  llvm::StringMap<bool> host = llvm::sys::getHostCPUFeatures();
  auto has = [&](const char* feature) { return host.lookup(feature); };
  HostTarget target;
  if (!has("avx2") || !has("fma") || !has("f16c") || !has("bmi2")) return target;
  bool is_narrow = choice == TargetChoice::kAvx2 || choice == TargetChoice::kAvx2CopiedTails;
  target.has_copied_tails = choice == TargetChoice::kCopiedTails || choice == TargetChoice::kAvx2CopiedTails;
  target.is_wide = !is_narrow && has("avx512f") && has("avx512bw") && has("avx512dq") && has("avx512vl");
  target.cpu = is_narrow ? "haswell" : llvm::sys::getHostCPUName().str();
  if (is_narrow) return target;
  std::vector<std::string> names;
  for (const auto& entry : host) names.push_back((entry.second ? "+" : "-") + entry.first().str());
  std::sort(names.begin(), names.end());  // part of the cache's key
  for (const std::string& name : names) target.features += (target.features.empty() ? "" : ",") + name;
  return target;
}

}  // namespace lockstep::dynamic::jit
