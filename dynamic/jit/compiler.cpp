#include "dynamic/jit/compiler.h"

#include <chrono>

#include "dynamic/jit/disk_cache.h"
#include "dynamic/jit/spec_text.h"
#include "dynamic/jit/spec_verifier.h"

namespace lockstep::dynamic::jit {
namespace {

constexpr int kCompilerVersion = 15;  // to be raised with every change of the code that is generated

CompileResult link(const KernelSpec& spec, LoopPlan plan, const std::string& object) {
  CompileResult result;
  auto linked = LinkedObject::link(object, &result.reason);
  if (!linked) return result;
  auto kernel = std::make_shared<Kernel>(spec, std::move(plan), std::move(linked));
  if (kernel->is_complete()) {
    result.kernel = std::move(kernel);
  } else {
    result.reason = "the object lacks functions of the kernel";
  }
  return result;
}

// The reason why a spec cannot be compiled for the target.
std::string find_obstacle(const KernelSpec& spec, const HostTarget& target) {
  if (auto problem = verify_spec(spec)) return "spec: " + *problem;
  if (target.cpu.empty()) return "host: no AVX2, FMA, F16C and BMI2";
  return {};
}

// The object comes back as well, for those who keep it.
CompileResult compile_for(const KernelSpec& spec, const HostTarget& target, std::string* object) {
  CompileResult result;
  result.reason = find_obstacle(spec, target);
  if (!result.reason.empty()) return result;
  LoopPlan plan = make_plan(spec);
  *object = compile_object(spec, plan, target, &result.reason);
  return object->empty() ? result : link(spec, std::move(plan), *object);
}

double ms_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

CompileResult compile(const KernelSpec& spec, TargetChoice choice) {
  std::string object;
  return compile_for(spec, find_target(choice), &object);
}

KernelCache::KernelCache(std::string folder, TargetChoice choice)
    : folder_(std::move(folder)), target_(find_target(choice)) {}

KernelCache::KernelCache() : KernelCache(DiskCache::default_folder()) {}

std::string KernelCache::key_of(const std::string& text) const {
  return text + "\nversion " + std::to_string(kCompilerVersion) + "\nllvm " + llvm_version() + "\ncpu " + target_.cpu +
         (target_.has_copied_tails ? " copied" : "") + "\nfeatures " + target_.features + "\n";
}

std::string KernelCache::path_of(const KernelSpec& spec) const {
  return DiskCache(folder_).path_of(key_of(print_spec(spec)));
}

CacheStatistics KernelCache::statistics() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return statistics_;
}

CompileResult KernelCache::get(const KernelSpec& spec) {
  std::string text = print_spec(spec);
  if (auto known = find(spec, text)) return *known;
  CompileResult result = make(spec, text);
  std::lock_guard<std::mutex> lock(mutex_);
  if (!result) ++statistics_.failed_count;
  return results_.emplace(std::move(text), std::move(result)).first->second;
}

std::optional<CompileResult> KernelCache::find(const KernelSpec& spec) { return find(spec, print_spec(spec)); }

std::optional<CompileResult> KernelCache::find(const KernelSpec& spec, const std::string& text) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto known = results_.find(text);
    if (known != results_.end()) {
      ++statistics_.found_count;
      return known->second;
    }
  }
  if (!find_obstacle(spec, target_).empty()) return std::nullopt;
  auto object = DiskCache(folder_).find(key_of(text));
  if (!object) return std::nullopt;
  CompileResult result = link(spec, make_plan(spec), *object);
  if (!result) return std::nullopt;  // what does not link is foreign: it is made again
  std::lock_guard<std::mutex> lock(mutex_);
  ++statistics_.loaded_count;
  return results_.emplace(text, std::move(result)).first->second;
}

CompileResult KernelCache::make(const KernelSpec& spec, const std::string& text) {
  auto start = std::chrono::steady_clock::now();
  std::string object;
  CompileResult result = compile_for(spec, target_, &object);
  if (!result) return result;
  DiskCache(folder_).insert(key_of(text), object);
  std::lock_guard<std::mutex> lock(mutex_);
  double ms = ms_since(start);
  ++statistics_.compiled_count;
  statistics_.compile_ms += ms;
  if (ms > statistics_.longest_compile_ms) statistics_.longest_compile_ms = ms;
  return result;
}

}  // namespace lockstep::dynamic::jit
