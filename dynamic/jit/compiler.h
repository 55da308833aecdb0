// The way in: compile a spec, or find the kernel that was compiled from the same text before, here or by another
// process. Thread-safe; meant for a thread beside the run.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "dynamic/jit/host_target.h"
#include "dynamic/jit/kernel.h"

namespace lockstep::dynamic::jit {

// A kernel, or the reason why there is none.
struct CompileResult {
  std::shared_ptr<const Kernel> kernel;
  std::string reason;
  explicit operator bool() const { return kernel != nullptr; }
};

CompileResult compile(const KernelSpec& spec, TargetChoice choice = TargetChoice::kHost);

struct CacheStatistics {
  int64_t found_count = 0;   // in memory
  int64_t loaded_count = 0;  // from disk
  int64_t compiled_count = 0;
  int64_t failed_count = 0;
  double compile_ms = 0;  // all of them together, linking included
  double longest_compile_ms = 0;
};

class KernelCache {
 public:
  // The folder for objects; empty for none. By default $LOCKSTEP_CACHE, else ~/.cache/lockstep.
  explicit KernelCache(std::string folder, TargetChoice choice = TargetChoice::kHost);
  KernelCache();

  // Two threads that ask for the same spec at once may both compile it; they get the same kernel. A failure is
  // remembered, too.
  CompileResult get(const KernelSpec& spec);
  // The same without compiling: what this process or the folder has already.
  std::optional<CompileResult> find(const KernelSpec& spec);
  CacheStatistics statistics() const;
  std::string path_of(const KernelSpec& spec) const;  // where its object lies, or would
  // While the process forks nobody is in the middle of something.
  void hold() const { mutex_.lock(); }
  void release() const { mutex_.unlock(); }

 private:
  std::string key_of(const std::string& text) const;
  std::optional<CompileResult> find(const KernelSpec& spec, const std::string& text);
  CompileResult make(const KernelSpec& spec, const std::string& text);

  std::string folder_;
  HostTarget target_;
  mutable std::mutex mutex_;
  std::unordered_map<std::string, CompileResult> results_;  // by spec text
  CacheStatistics statistics_;
};

}  // namespace lockstep::dynamic::jit
