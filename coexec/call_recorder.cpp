#include "coexec/call_recorder.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdio>
#include <stdexcept>

#include "coexec/session.h"
#include "dynamic/vm/ambient.h"
#include "dynamic/vm/executor.h"
#include "dynamic/vm/recorded_call.h"
#include "graph/text.h"

namespace lockstep::coexec {

using graph::ArgKind;

namespace {

std::string number(uint64_t value) { return std::to_string(value); }

const void* data_of(const c10::StorageImpl* storage) { return storage->data_ptr().get(); }

uint64_t hash_of(const c10::StorageImpl* storage, uint64_t bytes) {
  const void* data = data_of(storage);
  return dynamic::hash_storage(data, data ? std::min<uint64_t>(bytes, storage->nbytes()) : 0);
}

std::string state_of(const at::Generator& generator) {
  auto copy = generator;
  std::lock_guard lock(copy.mutex());
  const auto state = copy.get_state();
  return {static_cast<const char*>(state.const_data_ptr()), static_cast<size_t>(state.numel())};
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  out.close();
  if (!out) throw std::runtime_error(path + " cannot be written");
}

}  // namespace

CallRecorder::CallRecorder(std::string folder)
    : folder_(std::move(folder)), feeds_(folder_ + "/feeds.bin", std::ios::binary | std::ios::app) {
  if (!feeds_) throw std::runtime_error(folder_ + "/feeds.bin cannot be written");
}

void CallRecorder::begin() {
  feeds_.close();
  feeds_.open(folder_ + "/feeds.bin", std::ios::binary | std::ios::trunc);
  way_ = "lockstep-way " + number(dynamic::kWayVersion) + '\n';
  generator_id(at::detail::getDefaultCPUGenerator());
}

// ---- before an op

void CallRecorder::before(const graph::OpInfo& op, at::ArrayRef<c10::IValue> args, bool is_opaque) {
  pending_ = {};
  pending_.is_opaque = is_opaque || !can_replay(op, args);
  if (pending_.is_opaque) return;
  see_ambient();
  see_tensors(op, args);
  see_generator(0);
}

bool CallRecorder::can_replay(const graph::OpInfo& op, at::ArrayRef<c10::IValue> args) const {
  for (size_t a = 0; a < args.size(); ++a) {
    const auto& arg = args[a];
    switch (op.args[a].kind) {
      case ArgKind::kTensor:
      case ArgKind::kTensorList:
      case ArgKind::kOptionalTensorList: break;
      case ArgKind::kNestedTensors: return false;
      case ArgKind::kGenerator:
        if (arg.isGenerator() && arg.toGenerator().device() != at::kCPU) return false;
        break;
      default:
        if (!graph::print_value(arg)) return false;
    }
  }
  return true;
}

void CallRecorder::see_tensors(const graph::OpInfo& op, at::ArrayRef<c10::IValue> args) {
  pending_.args.resize(args.size());
  for (size_t a = 0; a < args.size(); ++a) {
    const auto& arg = args[a];
    switch (op.args[a].kind) {
      case ArgKind::kTensor:
        if (arg.isNone()) pending_.tensors += "  arg " + number(a) + " None\n";
        add_operand(arg.isTensor() ? arg.toTensor() : at::Tensor());
        break;
      case ArgKind::kTensorList:
      case ArgKind::kOptionalTensorList:
        if (arg.isNone()) break;
        pending_.tensors += "  list " + number(a) + ' ' + number(arg.toListRef().size()) + '\n';
        for (const auto& item : arg.toListRef()) add_operand(item.isTensor() ? item.toTensor() : at::Tensor());
        break;
      case ArgKind::kGenerator:
        if (!arg.isGenerator()) break;
        pending_.tensors += "  generator " + number(a) + ' ' + number(generator_id(arg.toGenerator())) + '\n';
        break;
      default:
        pending_.args[a] = arg;
    }
  }
}

void CallRecorder::add_operand(const at::Tensor& tensor) {
  auto& operands = pending_.operands;
  const auto same = std::find(operands.begin(), operands.end(), tensor.unsafeGetTensorImpl()) - operands.begin();
  operands.push_back(tensor.unsafeGetTensorImpl());
  if (!tensor.defined()) {
    pending_.tensors += "  in none\n";
    return;
  }
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  const auto layout = graph::layout_of(tensor);
  auto found = known_.find(storage);
  if (found == known_.end()) {
    feed(add_storage(storage), storage);
  } else if (!is_unchanged(found->second, storage)) {
    ++refeed_count_;
    feed(found->second, storage);
  } else if (static_cast<uint64_t>(layout.end_bytes()) > found->second.covered) {
    feed(found->second, storage);  // memory that nobody has written yet
  }
  pending_.tensors += "  in " + number(known_.at(storage).id) + ' ' + graph::print_layout(layout);
  if (static_cast<size_t>(same) + 1 < operands.size()) pending_.tensors += " same " + number(same);
  pending_.tensors += '\n';
  auto& storages = pending_.storages;
  if (std::find(storages.begin(), storages.end(), storage) == storages.end()) storages.push_back(storage);
}

CallRecorder::Known& CallRecorder::add_storage(c10::StorageImpl* storage) {
  const auto owner = c10::intrusive_ptr<c10::StorageImpl>::unsafe_reclaim_from_nonowning(storage);
  const uint64_t id = known_.size();
  return known_.emplace(storage, Known{id, c10::weak_intrusive_ptr<c10::StorageImpl>(owner)}).first->second;
}

void CallRecorder::feed(Known& known, c10::StorageImpl* storage) {
  ++feed_count_;
  known.bytes = known.covered = storage->nbytes();
  known.hash = hash_of(storage, known.covered);
  const auto* data = static_cast<const char*>(data_of(storage));
  const uint64_t bytes = data ? known.bytes : 0;
  way_ += "feed " + number(known.id) + ' ' + number(bytes) + ' ' + number(feed_bytes_) + ' ' +
          number(reinterpret_cast<uintptr_t>(data) % dynamic::kFeedAlignment) + '\n';
  feeds_.write(data, static_cast<std::streamsize>(bytes));
  feed_bytes_ += bytes;
}

void CallRecorder::see_ambient() {
  auto ambient = dynamic::print_ambient(dynamic::read_ambient());
  if (ambient == ambient_) return;
  way_ += "ambient " + ambient + '\n';
  ambient_ = std::move(ambient);
}

uint64_t CallRecorder::generator_id(const at::Generator& generator) {
  size_t id = 0;
  while (id < generators_.size() && generators_[id].generator != generator) ++id;
  if (id == generators_.size()) generators_.push_back({generator, {}});
  see_generator(id);
  return id;
}

void CallRecorder::see_generator(size_t id) {
  auto& known = generators_[id];
  auto state = state_of(known.generator);
  if (state == known.state) return;
  way_ += "state " + number(id) + ' ' + number(state.size()) + ' ' + number(feed_bytes_) + '\n';
  feeds_.write(state.data(), static_cast<std::streamsize>(state.size()));
  feed_bytes_ += state.size();
  known.state = std::move(state);
}

// ---- after an op

void CallRecorder::print_event(const graph::Node& node, const char* flag) {
  ++event_count_;
  way_ += "event " + number(node.id) + flag + '\n';
  for (size_t a = 0; a < pending_.args.size(); ++a) {
    if (!graph::is_constant(node.op->args[a].kind)) continue;
    const auto value = graph::print_value(pending_.args[a]);
    if (value && value != graph::print_value(node.constants[a])) way_ += "  arg " + number(a) + ' ' + *value + '\n';
  }
  way_ += pending_.tensors;
}

// Its results are fed where they are used.
void CallRecorder::print_opaque(const graph::Node& node) {
  ++event_count_;
  ++opaque_count_;
  way_ += "event " + number(node.id) + " opaque\n";
}

bool CallRecorder::is_unchanged(const Known& known, const c10::StorageImpl* storage) {
  return known.bytes == storage->nbytes() && known.hash == hash_of(storage, known.covered);
}

void CallRecorder::print_after(Known& known, const c10::StorageImpl* storage) {
  known.bytes = storage->nbytes();
  known.covered = std::min(known.covered, known.bytes);
  known.hash = hash_of(storage, known.covered);
  char text[96];
  std::snprintf(text, sizeof(text), "  after %llu %llu %llx\n", static_cast<unsigned long long>(known.id),
                static_cast<unsigned long long>(known.covered), static_cast<unsigned long long>(known.hash));
  way_ += text;
}

void CallRecorder::after(const graph::Node& node, at::ArrayRef<c10::IValue> results) {
  const auto fresh = dynamic::fresh_results(*node.op, results.vec());
  for (const auto& tensor : fresh) pending_.is_opaque |= tensor.defined() && why_foreign(tensor);
  if (pending_.is_opaque) return print_opaque(node);
  print_event(node, "");
  print_results(node, results);
  for (auto& known : generators_) known.state = state_of(known.generator);
}

void CallRecorder::print_results(const graph::Node& node, at::ArrayRef<c10::IValue> results) {
  auto touched = pending_.storages;
  for (const auto& tensor : dynamic::fresh_results(*node.op, results.vec())) {
    if (!tensor.defined()) {
      way_ += "  out none\n";
      continue;
    }
    auto* storage = tensor.storage().unsafeGetStorageImpl();
    const auto layout = graph::layout_of(tensor);
    const auto end = static_cast<uint64_t>(layout.end_bytes());
    if (!known_.count(storage)) {
      add_storage(storage).covered = end;
      touched.push_back(storage);
    } else if (std::find(pending_.storages.begin(), pending_.storages.end(), storage) == pending_.storages.end()) {
      auto& covered = known_.at(storage).covered;  // a second result over a new storage
      covered = std::max(covered, end);
    }
    way_ += "  out " + number(known_.at(storage).id) + ' ' + graph::print_layout(layout) + '\n';
  }
  for (size_t r = 0; r < node.op->returns.size() && r < results.size(); ++r)
    if (!node.op->returns[r].is_tensor)
      way_ += "  value " + graph::print_value(results[r]).value_or("None") + '\n';
  print_touched(touched, node.op->kind == graph::OpKind::kAllocate);
}

void CallRecorder::print_touched(const std::vector<c10::StorageImpl*>& touched, bool is_unfilled) {
  for (auto* storage : touched) {
    auto& known = known_.at(storage);
    if (is_unchanged(known, storage)) continue;
    if (is_unfilled) {
      feed(known, storage);  // what memory happens to contain
    } else {
      print_after(known, storage);
    }
  }
}

void CallRecorder::failed(const graph::Node& node) {
  if (!node.op) return;
  if (pending_.is_opaque) return print_opaque(node);
  print_event(node, " throws");  // what it left behind is fed where it is used
  for (auto& known : generators_) known.state.clear();
}

// ---- the end

void CallRecorder::finish(const graph::TraceGraph& graph) {
  way_ += "end\n";
  std::string expected;
  auto expect = [&](const char* what, uint64_t id, const char* data, size_t bytes) {
    way_ += std::string(what) + ' ' + number(id) + ' ' + number(bytes) + ' ' + number(expected.size()) + '\n';
    expected.append(data, bytes);
  };
  for (auto& [address, known] : known_) {
    const auto storage = known.storage.lock();
    if (!storage || !is_unchanged(known, storage.get())) continue;
    const auto* data = static_cast<const char*>(data_of(storage.get()));
    expect("expect", known.id, data, data ? known.covered : 0);
  }
  for (size_t id = 0; id < generators_.size(); ++id)
    if (const auto& state = generators_[id].state; !state.empty())
      expect("expect_state", id, state.data(), state.size());
  way_ += "complete\n";
  try {
    write_file(folder_ + "/graph.txt", graph::print_graph(graph));
    write_file(folder_ + "/way.txt", way_);
    write_file(folder_ + "/expected.bin", expected);
    feeds_.close();
    if (!feeds_) throw std::runtime_error(folder_ + "/feeds.bin cannot be written");
  } catch (const std::runtime_error& error) {  // the call itself is none the worse
    error_ = error.what();
  }
  known_.clear();
  generators_.clear();
  is_done_ = true;
}

}  // namespace lockstep::coexec
