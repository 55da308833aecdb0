#include "dynamic/vm/replay.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <unordered_map>

#include "dynamic/vm/ambient.h"
#include "dynamic/vm/executor.h"
#include "graph/value_text.h"

namespace lockstep::dynamic {

namespace {

using graph::ArgKind;
using graph::Layout;
using graph::Node;
using graph::OpKind;

// What is not equal; ends the replay.
struct Unequal : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] void contradiction(const std::string& message) {
  throw std::runtime_error("the recording contradicts itself: " + message);
}

// Memory at the address modulo kFeedAlignment that the recorded storage had.
StorageRef create_fed_storage(const Chunk& feed, const char* bytes) {
  void* block = nullptr;
  if (posix_memalign(&block, kFeedAlignment, feed.bytes + kFeedAlignment) != 0) throw std::bad_alloc();
  char* data = static_cast<char*>(block) + feed.misalignment % kFeedAlignment;
  std::memcpy(data, bytes, feed.bytes);
  auto storage = create_empty_storage(static_cast<int64_t>(feed.bytes));
  storage->set_data_ptr_noswap(c10::DataPtr(data, block, &std::free, c10::Device(c10::DeviceType::CPU)));
  return storage;
}

class Replay {
 public:
  explicit Replay(RecordedCall& call) : call_(call), cursor_(call.graph.graph->entry()) {}

  ReplayReport run() {
    const c10::AutoGradMode grad_mode(false);  // until the recording says what it was
    const c10::impl::ForceDispatchKeyGuard below_autograd(
        c10::default_included_set, c10::default_excluded_set | c10::autograd_dispatch_keyset_with_ADInplaceOrView);
    find_last_uses();
    try {
      for (size_t i = 0; i < call_.steps.size(); ++i) {
        std::visit([this](const auto& step) { take(step); }, call_.steps[i]);
        for (uint64_t id : dying_[i]) storages_.erase(id);
      }
      compare_end();
    } catch (const Unequal& unequal) {
      report_.failure = std::string(unequal.what()) + "; first event that left other bytes: " +
                        report_.first_unlike.value_or("none");
    }
    return std::move(report_);
  }

 private:
  // ---- storages and generators

  void find_last_uses() {
    std::unordered_map<uint64_t, size_t> last;
    for (size_t i = 0; i < call_.steps.size(); ++i) {
      if (const auto* feed = std::get_if<FeedStep>(&call_.steps[i])) last[feed->id] = i;
      const auto* event = std::get_if<EventStep>(&call_.steps[i]);
      if (!event) continue;
      for (const auto& tensor : event->in) last[tensor.storage] = i;
      for (const auto& tensor : event->out) last[tensor.storage] = i;
    }
    for (const auto& chunk : call_.expected) last.erase(chunk.id);
    dying_.resize(call_.steps.size());
    for (const auto& [id, step] : last) dying_[step].push_back(id);
  }

  const StorageRef& storage_of(uint64_t id) {
    const auto found = storages_.find(id);
    if (found == storages_.end()) contradiction("storage " + std::to_string(id) + " has no data yet");
    return found->second;
  }

  at::Generator& generator_of(uint64_t id) {
    auto& generator = generators_[id];
    if (!generator.defined())
      generator = id == 0 ? at::detail::getDefaultCPUGenerator() : at::detail::createCPUGenerator();
    return generator;
  }

  // ---- steps

  void take(const AmbientStep& step) { apply_ambient(step.text); }

  void take(const FeedStep& feed) {
    ++report_.feed_count;
    const char* bytes = RecordedCall::bytes_at(call_.feeds, feed);
    auto known = storages_.find(feed.id);
    if (known != storages_.end() && known->second->nbytes() == feed.bytes) {
      std::memcpy(known->second->mutable_data(), bytes, feed.bytes);
    } else {
      storages_[feed.id] = create_fed_storage(feed, bytes);
    }
  }

  void take(const StateStep& state) {
    auto bytes = at::empty({static_cast<int64_t>(state.bytes)}, at::kByte);
    std::memcpy(bytes.mutable_data_ptr(), RecordedCall::bytes_at(call_.feeds, state), state.bytes);
    auto& generator = generator_of(state.id);
    std::lock_guard lock(generator.mutex());
    generator.set_state(bytes);
  }

  void take(const EndStep&) { move_to(call_.graph.graph->exit(), 0); }

  void take(const EventStep& step) {
    ++report_.event_count;
    Node* node = call_.graph.graph->node_at(static_cast<uint32_t>(step.node));
    if (!node || !node->op) contradiction("no op is node " + std::to_string(step.node));
    move_to(node, step.line);
    if (step.is_opaque) {
      ++report_.opaque_count;
      return;
    }
    run_event(step, *node);
    compare_after(step, *node);
  }

  void move_to(Node* node, size_t line) {
    if (!call_.graph.graph->find_edge(cursor_, node))
      contradiction("the graph has no edge from node " + std::to_string(cursor_->id) + " to " +
                    std::to_string(node->id) + (line ? " (way.txt line " + std::to_string(line) + ")" : ""));
    cursor_ = node;
  }

  // ---- events

  void fill_arguments(const EventStep& step, const Node& node, Event& event) {
    const auto& op = *node.op;
    event.args = node.constants;
    event.args.resize(op.args.size());
    for (size_t a = 0; a < op.args.size(); ++a)
      if (op.args[a].kind == ArgKind::kTensor) event.args[a] = true;
    auto argument = [&](uint64_t index) -> c10::IValue& {
      if (index >= event.args.size()) contradiction(op.name + " has no argument " + std::to_string(index));
      return event.args[index];
    };
    for (const auto& [index, value] : step.args) argument(index) = value;
    for (const auto& [index, generator] : step.generators) argument(index) = generator_of(generator);
    for (const auto& [index, length] : step.lists) argument(index) = static_cast<int64_t>(length);
  }

  void fill_operands(const EventStep& step, Event& event, graph::Signature& signature) {
    for (const auto& tensor : step.in) {
      Operand operand;
      if (tensor.storage != TensorRecord::kNone) {
        operand.storage = storage_of(tensor.storage);
        operand.offset = tensor.layout.offset;
        operand.same_as = static_cast<int>(tensor.same_as);
        if (tensor.layout.wrapped_number) {
          operand.direct = tensor_over(operand.storage, tensor.layout, operand.offset);
          operand.direct.unsafeGetTensorImpl()->set_wrapped_number(true);
        }
      }
      signature.inputs.push_back(tensor.layout);
      event.operands.push_back(std::move(operand));
    }
  }

  // Whether all results are new, so that they can be promised. Then each storage of them has a twin.
  bool promise_outputs(const EventStep& step, const Node& node, Event& event, graph::Signature& signature) {
    if (node.op->kind != OpKind::kCompute || step.throws) return false;
    for (const auto& tensor : step.out)
      if (tensor.storage != TensorRecord::kNone && storages_.count(tensor.storage)) return false;
    std::vector<uint64_t> groups;
    for (const auto& tensor : step.out) {
      Layout layout = tensor.layout;
      if (layout.is_defined()) {
        size_t group = 0;
        while (group < groups.size() && groups[group] != tensor.storage) ++group;
        if (group == groups.size()) {
          groups.push_back(tensor.storage);
          event.outputs.push_back(create_empty_storage(layout.storage_bytes));
        }
        layout.storage_group = static_cast<int>(group);
      }
      signature.outputs.push_back(std::move(layout));
    }
    made_ = std::move(groups);
    return true;
  }

  void run_event(const EventStep& step, Node& node) {
    Event event;
    graph::Signature signature;
    signature.op = node.op;
    event.node = &node;
    event.signature = &signature;
    fill_arguments(step, node, event);
    fill_operands(step, event, signature);
    Capture capture;
    const bool is_promised = promise_outputs(step, node, event, signature);
    if (!is_promised) event.capture = &capture;
    const auto twins = event.outputs;
    std::optional<std::string> raised;
    try {
      execute(event);
    } catch (const std::exception& error) {
      raised = error.what();
    }
    if (raised.has_value() != step.throws)
      differs(step, node, raised ? "raised: " + raised->substr(0, raised->find('\n')) : "did not raise");
    if (raised) return;
    if (is_promised) {
      for (size_t i = 0; i < made_.size(); ++i) storages_[made_[i]] = twins[i];
    } else {
      take_results(step, node, capture.results);
    }
  }

  void take_results(const EventStep& step, const Node& node, const torch::jit::Stack& results) {
    const auto tensors = fresh_results(*node.op, results);
    if (tensors.size() != step.out.size())
      differs(step, node, "returned " + std::to_string(tensors.size()) + " tensors");
    for (size_t i = 0; i < tensors.size(); ++i) {
      const auto& promised = step.out[i];
      if (tensors[i].defined() != (promised.storage != TensorRecord::kNone))
        differs(step, node, "result " + std::to_string(i) + " is defined in one only");
      if (!tensors[i].defined()) continue;
      auto storage = tensors[i].storage().getWeakStorageImpl().lock();
      const auto known = storages_.find(promised.storage);
      if (known == storages_.end()) {
        storages_[promised.storage] = storage;
      } else if (known->second != storage) {
        differs(step, node, "result " + std::to_string(i) + " is an alias of another storage");
      }
      const auto layout = graph::layout_of(tensors[i]);
      if (!layout.same_geometry(promised.layout))
        differs(step, node, "result " + std::to_string(i) + " is " + graph::print_layout(layout));
    }
    compare_values(step, node, results);
  }

  // ---- comparing

  [[noreturn]] void differs(const EventStep& step, const Node& node, const std::string& what) {
    throw Unequal(describe(step, node) + ": " + what);
  }

  std::string describe(const EventStep& step, const Node& node) const {
    return "event " + std::to_string(report_.event_count) + ", " + node.op->name + " (node " +
           std::to_string(node.id) + ", way.txt line " + std::to_string(step.line) + ") at " + node.where;
  }

  void compare_values(const EventStep& step, const Node& node, const torch::jit::Stack& results) {
    size_t next = 0;
    for (size_t r = 0; r < node.op->returns.size() && r < results.size(); ++r) {
      if (node.op->returns[r].is_tensor) continue;
      if (next >= step.values.size()) contradiction("a value of " + describe(step, node) + " is missing");
      const auto found = graph::print_value(results[r]);
      const auto expected = graph::print_value(step.values[next++]);
      ++report_.fetch_count;
      if (found != expected) differs(step, node, "fetched " + found.value_or("?") + ", expected " + *expected);
    }
  }

  void compare_after(const EventStep& step, const Node& node) {
    for (const auto& after : step.after) {
      const auto& storage = storage_of(after.storage);
      if (storage->nbytes() >= after.bytes && hash_storage(storage->data(), after.bytes) == after.hash)
        continue;
      ++report_.unlike_count;
      if (!report_.first_unlike)
        report_.first_unlike = describe(step, node) + ": storage " + std::to_string(after.storage);
      break;
    }
  }

  void compare_end() {
    for (const auto& chunk : call_.expected) {
      ++report_.expected_count;
      const auto& storage = storage_of(chunk.id);
      const char* bytes = RecordedCall::bytes_at(call_.expected_bytes, chunk);
      if (storage->nbytes() < chunk.bytes || std::memcmp(storage->data(), bytes, chunk.bytes) != 0)
        fail_at_end("storage " + std::to_string(chunk.id));
    }
    for (const auto& chunk : call_.expected_states) {
      ++report_.expected_count;
      auto& generator = generator_of(chunk.id);
      const auto state = [&] {
        std::lock_guard lock(generator.mutex());
        return generator.get_state();
      }();
      const char* bytes = RecordedCall::bytes_at(call_.expected_bytes, chunk);
      if (static_cast<uint64_t>(state.numel()) != chunk.bytes ||
          std::memcmp(state.const_data_ptr(), bytes, chunk.bytes) != 0)
        fail_at_end("the state of generator " + std::to_string(chunk.id));
    }
  }

  [[noreturn]] void fail_at_end(const std::string& what) {
    throw Unequal(what + " differs at the end");
  }

  RecordedCall& call_;
  Node* cursor_;
  ReplayReport report_;
  std::unordered_map<uint64_t, StorageRef> storages_;
  std::unordered_map<uint64_t, at::Generator> generators_;
  std::vector<std::vector<uint64_t>> dying_;  // by step: storages that nothing uses afterwards
  std::vector<uint64_t> made_;                // by storage group of the event that runs
};

}  // namespace

std::string ReplayReport::str() const {
  return std::to_string(event_count) + " events, " + std::to_string(opaque_count) + " opaque, " +
         std::to_string(feed_count) + " feeds, " + std::to_string(fetch_count) + " fetches, " +
         std::to_string(expected_count) + " compared at the end, " + std::to_string(unlike_count) +
         " events left other bytes";
}

ReplayReport replay(RecordedCall& call) {
  settle_vector_math();
  return Replay(call).run();
}

}  // namespace lockstep::dynamic
