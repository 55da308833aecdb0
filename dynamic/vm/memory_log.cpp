#include "dynamic/vm/memory_log.h"

#include <x86intrin.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "dynamic/threads/fork_guard.h"

namespace lockstep::dynamic {

namespace {

constexpr size_t kMaxBlocks = size_t{1} << 20;

thread_local const graph::Node* t_node = nullptr;
thread_local uint64_t t_op = 0;  // unique in the process; 0: none
std::atomic<uint64_t> next_op{1};

struct Live {
  size_t bytes;
  uint64_t op;   // that asked for it
  size_t index;  // in the log; kMaxBlocks: not there
};

struct State {
  std::mutex mutex;
  std::unordered_map<const void*, Live> live;
  MemoryCount count;
  bool is_counted = false, is_logged = false;  // who wants it
  MemoryLog log;

  void update_switch() {
    const bool on = is_counted || is_logged;
    if (on && !memory_log::is_on) {
      live.clear();
      count = {};
      memory_log::was_on = true;
    }
    memory_log::is_on = on;
  }
};
State& state() {
  static auto* instance = [] {
    auto* made = new State;  // outlives static destruction: tensors may still be held
    hold_across_fork(ForkRank::kMemoryLog, made->mutex);
    return made;
  }();
  return *instance;
}

}  // namespace

void count_memory(bool on) {
  std::lock_guard lock(state().mutex);
  state().is_counted = on;
  state().update_switch();
}

MemoryCount memory_count() {
  std::lock_guard lock(state().mutex);
  return state().count;
}

void start_memory_log() {
  std::lock_guard lock(state().mutex);
  state().is_logged = true;
  state().update_switch();
  for (auto& [data, live] : state().live) live.index = kMaxBlocks;
  state().count.peak_bytes = state().count.live_bytes;
  state().log = {};
  state().log.begin = __rdtsc();
}

MemoryLog stop_memory_log() {
  std::lock_guard lock(state().mutex);
  state().is_logged = false;
  state().update_switch();
  state().log.end = __rdtsc();
  return std::exchange(state().log, {});
}

namespace memory_log {

void note_allocated(const void* data, size_t bytes) {
  auto& s = state();
  std::lock_guard lock(s.mutex);
  size_t index = kMaxBlocks;
  if (s.is_logged) {
    if (s.log.blocks.size() < kMaxBlocks) {
      index = s.log.blocks.size();
      s.log.blocks.push_back({data, bytes, __rdtsc(), 0, t_node, false});
    } else {
      ++s.log.dropped;
    }
  }
  s.live.insert_or_assign(data, Live{bytes, t_op, index});
  s.count.live_bytes += bytes;
  s.count.peak_bytes = std::max(s.count.peak_bytes, s.count.live_bytes);
}

void note_freed(const void* data) {
  auto& s = state();
  std::lock_guard lock(s.mutex);
  const auto found = s.live.find(data);
  const bool is_known = found != s.live.end();
  if (s.is_logged) {
    if (is_known && found->second.index < kMaxBlocks) {
      auto& block = s.log.blocks[found->second.index];
      block.end = __rdtsc();
      block.is_workspace = t_op > 0 && found->second.op == t_op;
    } else if (s.log.blocks.size() < kMaxBlocks) {
      s.log.blocks.push_back({data, 0, 0, __rdtsc(), nullptr, false});
    }
  }
  if (!is_known) return;
  s.count.live_bytes -= found->second.bytes;
  s.live.erase(found);
}

}  // namespace memory_log

void AllocationScope::enter(const graph::Node* node) {
  enter(Asker{node, next_op.fetch_add(1, std::memory_order_relaxed)});
}

void AllocationScope::enter(const Asker& asker) {
  node_before_ = std::exchange(t_node, asker.node);
  op_ = asker.op;
  op_before_ = std::exchange(t_op, op_);
}

AllocationScope::Asker AllocationScope::asker() { return {t_node, t_op}; }

void AllocationScope::leave() {
  t_node = node_before_;
  t_op = op_before_;
}

}  // namespace lockstep::dynamic
