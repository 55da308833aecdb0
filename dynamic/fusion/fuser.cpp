#include "dynamic/fusion/fuser.h"

#include <c10/core/CPUAllocator.h>

#include <cmath>
#include <optional>

#include "dynamic/kernels/kernel_choice.h"
#include "dynamic/shapes/shape_memo.h"
#include "dynamic/threads/thread_team.h"
#include "dynamic/vm/executor.h"
#include "dynamic/vm/hidden_layout.h"
#include "dynamic/vm/kernel_work.h"
#include "dynamic/vm/memory_log.h"
#include "dynamic/vm/packed_mask.h"
#include "dynamic/vm/skeleton_clock.h"
#include "dynamic/vm/timeline.h"

namespace lockstep::dynamic {

namespace {

constexpr size_t kMaxPlans = 1 << 14;

bool is_in_range(const c10::Scalar& scalar, jit::DType type) {
  if (scalar.isComplex() || (scalar.isBoolean() && type != jit::DType::kBool)) return false;
  if (jit::is_floating(type)) return fits(scalar.toDouble(), type);
  const int bits = static_cast<int>(8 * jit::bytes_of(type));
  if (scalar.isFloatingPoint()) return std::abs(scalar.toDouble()) < std::ldexp(1.0, bits - 1);
  if (bits == 64) return true;
  const int64_t value = scalar.toLong(), least = type == jit::DType::kUInt8 ? 0 : -(int64_t{1} << (bits - 1));
  return type == jit::DType::kBool || (value >= least && value < least + (int64_t{1} << bits));
}

// None where it does not fit the type: some ops of PyTorch raise then, others have infinity, so that they are asked.
std::optional<jit::ScalarValue> scalar_value(const FusedGroup& group, const ScalarUse& use) {
  if (use.mask >= 0) return jit::ScalarValue{.real = packed_mask(*group.buffers()[use.mask].storage)->value};
  const Event& event = *group.events()[use.event];
  const c10::Scalar scalar = use.argument >= 0  ? event.args[use.argument].toScalar()
                             : use.operand >= 0 ? event.operands[use.operand].direct.item()
                                                : c10::Scalar(use.number);
  if (!is_in_range(scalar, use.range)) return std::nullopt;
  jit::ScalarValue value{};
  if (!jit::is_floating(use.type)) {
    value.whole = scalar.to<int64_t>();
  } else if (use.type == jit::DType::kFloat32) {
    value.real = scalar.to<float>();
  } else {
    value.real = scalar.to<double>();
  }
  return value;
}

}  // namespace

FusionStatistics fusion_statistics;

Fuser::Plan& Fuser::find_plan(FusedGroup& group) {
  const uint64_t epoch = ShapeMemo::instance().epoch();
  if (plans_.size() > kMaxPlans || epoch != epoch_) plans_.clear();  // of shapes that were forgotten, nobody asks again
  epoch_ = epoch;
  auto key = group.key();
  if (const auto known = plans_.find(key); known != plans_.end()) return known->second;
  auto made = create_spec(group);
  Plan plan;
  if (!made.buffers.empty()) plan.slot = KernelService::instance().request(made.spec);
  plan.sizes = made.call_sizes();
  plan.strides = made.call_strides();
  plan.buffers = std::move(made.buffers);
  plan.scalars = std::move(made.scalars);
  fusion_statistics.kernels.fetch_add(1, std::memory_order_relaxed);
  return plans_.emplace(std::move(key), std::move(plan)).first->second;
}

void Fuser::run_fused(const FusedGroup& group, Plan& plan, const jit::Kernel& kernel,
                      at::ArrayRef<jit::ScalarValue> scalars) {
  if (!plan.prepared) {
    plan.prepared = kernel.prepare_calls({{}, plan.sizes, plan.strides, {}});
    plan.sizes = plan.strides = {};
  }
  c10::SmallVector<c10::DataPtr, 16> memories;  // all there, or no result has any
  for (size_t b = 0; b < plan.buffers.size(); ++b) {
    const auto& use = group.buffers()[plan.buffers[b]];
    auto& memory = memories.emplace_back();
    if (!use.is_produced || is_hidden(*use.storage) || use.storage->data()) continue;
    const AllocationScope allocation(group.producer_of(plan.buffers[b]));
    memory = c10::GetCPUAllocator()->allocate(use.storage->nbytes());
  }
  c10::SmallVector<void*, 16> buffers;
  for (size_t b = 0; b < plan.buffers.size(); ++b) {
    const auto& use = group.buffers()[plan.buffers[b]];
    auto* storage = use.storage;
    const bool is_map = group.is_innermost() && dynamic::is_map(*use.layout);
    if (memories[b].get() && is_map) {
      hide_map(*storage, std::move(memories[b]), use.layout->sizes);
    } else if (memories[b].get()) {
      storage->set_data_ptr_noswap(std::move(memories[b]));
    }
    if (group.is_packed(plan.buffers[b])) {
      buffers.push_back(jit::address_of_bit(packed_mask(*storage)->bits.get(), use.offset));
      continue;
    }
    void* memory = is_map ? hidden_memory(*storage) : const_cast<void*>(storage->data());
    buffers.push_back(static_cast<char*>(memory) + use.offset * jit::bytes_of(kernel.spec().buffers[b].type));
  }
  kernel.run(*plan.prepared, buffers, scalars);
}

namespace {

// The time of a group counts in equal parts for its events.
void share_time(at::ArrayRef<Event*> events, const jit::KernelSpec* spec, uint64_t begin, uint64_t ticks) {
  for (auto* event : events)
    event->node->counts.kernel_ticks += static_cast<double>(ticks) / static_cast<double>(events.size());
  if (!timeline_is_on.load(std::memory_order_relaxed)) return;
  add_span({SpanKind::kGroup, begin, begin + ticks, events[0]->node, events[0]->node->op, /*thread=*/0, spec});
  for (size_t i = 0; i < events.size(); ++i)
    add_span({SpanKind::kMember, begin + ticks * i / events.size(), begin + ticks * (i + 1) / events.size(),
              events[i]->node, events[i]->node->op});
}

}  // namespace

// False where there is no kernel, or none yet.
bool Fuser::try_run_fused(FusedGroup& group) {
  const auto& events = group.events();
  group.settle_forms();
  auto& plan = find_plan(group);
  if (plan.slot && events[0]->is_deterministic) KernelService::instance().wait_for(*plan.slot);
  const jit::Kernel* kernel = plan.slot ? plan.slot->find() : nullptr;
  if (!kernel && !plan.buffers.empty()) {
    if (plan.slot && !plan.slot->has_failed()) awaited_ = plan.slot.get();
    return false;
  }
  c10::SmallVector<jit::ScalarValue, 16> scalars;
  for (const auto& use : plan.scalars) {
    const auto value = scalar_value(group, use);
    if (!value) return false;
    scalars.push_back(*value);
  }
  const OneThreadScope alone(runs_alone(*events[0]));
  const ExcludedScope timed;
  if (kernel) run_fused(group, plan, *kernel, scalars);
  share_time(events, kernel ? &kernel->spec() : nullptr, timed.begin(), timed.elapsed());
  return true;
}

// Whether its kernel is still to come.
bool Fuser::run_alone(Event& event) {
  const bool is_run = single_.try_add(event) && try_run_fused(single_);
  single_.clear();
  if (is_run) return false;
  KernelSlot* const awaited = std::exchange(awaited_, nullptr);
  const uint64_t begin = __rdtsc();
  execute(event, has_pointwise_body(event.op()));
  if (awaited) awaited->miss(__rdtsc() - begin);
  return awaited;
}

void Fuser::run(Event*& failed, bool lets_go) {
  const auto& events = group_.events();
  failed = events[0];
  if (try_run_fused(group_)) {
    fusion_statistics.groups.fetch_add(1, std::memory_order_relaxed);
    fusion_statistics.fused_events.fetch_add(events.size(), std::memory_order_relaxed);
  } else {
    KernelSlot* const awaited = std::exchange(awaited_, nullptr);
    bool is_preparation = awaited;
    const uint64_t begin = __rdtsc();
    for (auto* event : events) {
      failed = event;
      is_preparation |= run_alone(*event);
      if (lets_go) event->release_values();
    }
    fusion_statistics.single_events.fetch_add(events.size(), std::memory_order_relaxed);
    const uint64_t ticks = __rdtsc() - begin;
    if (awaited) awaited->miss(ticks);
    if (is_preparation) add_preparation(static_cast<double>(ticks));
  }
  failed = nullptr;
  group_.clear();
}

}  // namespace lockstep::dynamic
