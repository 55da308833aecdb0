// What ran when and on which thread, for lockstep.profile. Switched off it is one load for each span.
#pragma once

#include <x86intrin.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "graph/trace_graph.h"

namespace lockstep::dynamic {

namespace jit {
struct KernelSpec;
}

enum class SpanKind : uint8_t {
  kCall,     // of a decorated function
  kEagerCall,  // of one, as auto chose or somebody said
  kAsk,      // an op from entry into the hook to its return
  kFetch,    // the same of an op that gives Python a value
  kNative,   // a kernel that runs within the hook, where Python asked for it
  kWait,     // for the runner
  kKernel,   // of one event
  kGroup,    // several events as one kernel
  kMember,   // the part of a group that counts as this event's
  kCompile,  // of a kernel, beside the run
};
const char* span_kind_name(SpanKind kind);

struct Span {
  SpanKind kind = SpanKind::kCall;
  uint64_t begin = 0, end = 0;        // of the time stamp counter
  const graph::Node* node = nullptr;  // to be compared only: it may have been forgotten since
  const graph::OpInfo* op = nullptr;
  uint32_t thread = 0;                // index into Timeline::threads
  const jit::KernelSpec* spec = nullptr;  // of a group; lives as long as the process
  bool is_own = false;                // a kernel of ours, where PyTorch has one, too
};

struct Timeline {
  std::vector<Span> spans;           // by thread, as they ended
  std::vector<std::string> threads;  // their names
  uint64_t dropped = 0;              // spans that found no room
};

inline std::atomic<bool> timeline_is_on{false};
void start_timeline();
Timeline stop_timeline();
void add_span(const Span& span);  // of this thread

class SpanScope {
 public:
  explicit SpanScope(SpanKind kind, const graph::Node* node = nullptr) {
    if (!timeline_is_on.load(std::memory_order_relaxed)) return;
    kind_ = kind;
    node_ = node;
    begin_ = __rdtsc();
  }
  ~SpanScope() {
    if (begin_ > 0) add_span({kind_, begin_, __rdtsc(), node_, node_ ? node_->op : nullptr, 0, nullptr, is_own_});
  }
  SpanScope(const SpanScope&) = delete;
  void set_node(const graph::Node* node) { node_ = node; }
  void set_own(bool is_own) { is_own_ = is_own; }

 private:
  SpanKind kind_ = SpanKind::kCall;
  const graph::Node* node_ = nullptr;
  uint64_t begin_ = 0;  // 0: not recorded
  bool is_own_ = false;
};

}  // namespace lockstep::dynamic
