#include "dynamic/vm/timeline.h"

#include <pthread.h>

#include <memory>
#include <mutex>

#include "dynamic/threads/fork_guard.h"

namespace lockstep::dynamic {

namespace {

constexpr size_t kMaxSpans = size_t{1} << 20;  // of a thread

struct Buffer {
  std::mutex mutex;  // with whoever starts or stops
  std::string name;
  std::vector<Span> spans;
  uint64_t dropped = 0;
};

struct Buffers {
  std::mutex mutex;
  std::vector<std::shared_ptr<Buffer>> all;
};
thread_local std::shared_ptr<Buffer> own_buffer;

// Another thread's buffer may have been locked, and that thread is not there any more.
void leave_in_child(void* all) {
  auto& known = *static_cast<Buffers*>(all);
  std::erase_if(known.all, [](const auto& buffer) { return buffer != own_buffer; });
  known.mutex.unlock();
}

Buffers& buffers() {
  static auto* instance = [] {
    auto* made = new Buffers;  // outlives static destruction: threads may still run
    hold_across_fork(ForkRank::kTimeline, ForkLock{made, [](void* all) { static_cast<Buffers*>(all)->mutex.lock(); },
                                                   [](void* all) { static_cast<Buffers*>(all)->mutex.unlock(); },
                                                   &leave_in_child});
    return made;
  }();
  return *instance;
}

Buffer& buffer_of_this_thread() {
  if (!own_buffer) {
    auto made = std::make_shared<Buffer>();
    char name[16] = "";
    pthread_getname_np(pthread_self(), name, sizeof name);
    made->name = name;
    std::lock_guard lock(buffers().mutex);
    buffers().all.push_back(made);
    own_buffer = std::move(made);
  }
  return *own_buffer;
}

}  // namespace

const char* span_kind_name(SpanKind kind) {
  switch (kind) {
    case SpanKind::kCall: return "call";
    case SpanKind::kEagerCall: return "eager call";
    case SpanKind::kAsk: return "ask";
    case SpanKind::kFetch: return "fetch";
    case SpanKind::kNative: return "native";
    case SpanKind::kWait: return "wait";
    case SpanKind::kKernel: return "kernel";
    case SpanKind::kGroup: return "group";
    case SpanKind::kMember: return "member";
    case SpanKind::kCompile: return "compile";
  }
  return "?";
}

void start_timeline() {
  std::lock_guard lock(buffers().mutex);
  std::erase_if(buffers().all, [](const auto& buffer) { return buffer.use_count() == 1; });  // its thread has ended
  for (auto& buffer : buffers().all) {
    std::lock_guard one(buffer->mutex);
    buffer->spans.clear();
    buffer->dropped = 0;
  }
  timeline_is_on.store(true, std::memory_order_relaxed);
}

Timeline stop_timeline() {
  timeline_is_on.store(false, std::memory_order_relaxed);
  Timeline timeline;
  std::lock_guard lock(buffers().mutex);
  for (auto& buffer : buffers().all) {
    std::lock_guard one(buffer->mutex);
    for (auto& span : buffer->spans) {
      span.thread = static_cast<uint32_t>(timeline.threads.size());
      timeline.spans.push_back(span);
    }
    timeline.threads.push_back(buffer->name);
    timeline.dropped += buffer->dropped;
    buffer->spans = {};
    buffer->dropped = 0;
  }
  return timeline;
}

void add_span(const Span& span) {
  auto& buffer = buffer_of_this_thread();
  std::lock_guard lock(buffer.mutex);
  if (!timeline_is_on.load(std::memory_order_relaxed)) return;  // it was stopped meanwhile
  if (buffer.spans.size() < kMaxSpans) {
    buffer.spans.push_back(span);
  } else {
    ++buffer.dropped;
  }
}

}  // namespace lockstep::dynamic
