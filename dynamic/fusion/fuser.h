// Runs groups of events as fused kernels. The kernel of a group is found by what the group is; until it is compiled, and
// where there is none, the events run one by one, each as a group of its own: which events wait together is chance, and
// may not show in the bits as soon as each op has been compiled once.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <unordered_map>

#include "dynamic/fusion/fused_group.h"
#include "dynamic/fusion/group_spec.h"
#include "dynamic/fusion/kernel_service.h"

namespace lockstep::dynamic {

struct FusionStatistics {
  std::atomic<uint64_t> groups{0};       // ran as one kernel
  std::atomic<uint64_t> fused_events{0}; // in them
  std::atomic<uint64_t> single_events{0};  // could have been fused, and ran one by one
  std::atomic<uint64_t> kernels{0};      // asked for
};
extern FusionStatistics fusion_statistics;

class Fuser {
 public:
  // Shares the memo with others of the thread.
  explicit Fuser(std::shared_ptr<FusionMemo> memo = std::make_shared<FusionMemo>()) : group_(memo), single_(memo) {}
  // Whether the event joins the group that waits.
  bool try_add(Event& event) { return group_.try_add(event); }
  bool is_independent(const Event& event) const { return group_.is_independent(event); }
  const Event* first() const { return group_.events().front(); }
  void clear() {
    group_.clear();
    single_.clear();
  }
  // Runs the group. Throws what a kernel throws; `failed` is the event that did, later ones were not executed.
  // `lets_go`: events that run one by one release their values each, before the others run.
  void run(Event*& failed, bool lets_go = false);

 private:
  struct Plan {
    std::vector<int> buffers;             // of the group, one for each of the kernel's
    std::vector<ScalarUse> scalars;       // one for each of the kernel's
    std::vector<int64_t> sizes, strides;  // that the kernel leaves open, until it is prepared
    std::shared_ptr<KernelSlot> slot;
    std::shared_ptr<const jit::Kernel::Prepared> prepared;  // as soon as there is a kernel
  };
  struct KeyHash {
    size_t operator()(const GroupKey& key) const { return graph::hash_words(key); }
  };
  Plan& find_plan(FusedGroup& group);
  bool try_run_fused(FusedGroup& group);
  void run_fused(const FusedGroup& group, Plan& plan, const jit::Kernel& kernel, at::ArrayRef<jit::ScalarValue> scalars);
  bool run_alone(Event& event);

  FusedGroup group_;
  FusedGroup single_;  // for events of a group whose kernel is not there yet
  KernelSlot* awaited_ = nullptr;  // of the group that was just tried, where its kernel is still to come
  std::unordered_map<GroupKey, Plan, KeyHash> plans_;
  uint64_t epoch_ = 0;
};

}  // namespace lockstep::dynamic
