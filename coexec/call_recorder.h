// Records one call into a folder, for the replay without an interpreter (format: dynamic/vm/recorded_call.h). The
// session shows it every op with nothing pending, before and after, so contents can be read as they stand.
//
// Feeds are found by looking: a storage whose bytes are not what the recorded events left in it was changed by somebody
// else (Python, an op that cannot be replayed), and its bytes are fed again. The same for the states of generators.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/ivalue.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/trace_graph.h"

namespace lockstep::coexec {

class CallRecorder {
 public:
  // The folder exists; throws std::runtime_error where it cannot be written. What is in it stays until a call begins.
  explicit CallRecorder(std::string folder);

  void begin();
  // `is_opaque`: an op that only the program itself can run, or with a tensor that is no plain one.
  void before(const graph::OpInfo& op, at::ArrayRef<c10::IValue> args, bool is_opaque);
  void after(const graph::Node& node, at::ArrayRef<c10::IValue> results);
  void failed(const graph::Node& node);  // the kernel raised
  void finish(const graph::TraceGraph& graph);

  bool is_done() const { return is_done_; }
  const std::string& error() const { return error_; }  // what could not be written, or nothing
  uint64_t event_count() const { return event_count_; }
  uint64_t opaque_count() const { return opaque_count_; }
  uint64_t feed_count() const { return feed_count_; }
  uint64_t refeed_count() const { return refeed_count_; }  // of them: storages that the call had used before

 private:
  struct Known {
    uint64_t id;
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // keeps the address from being used again
    uint64_t bytes = 0;    // of the storage
    uint64_t covered = 0;  // of them, from its start: what some tensor of the call could see
    uint64_t hash = 0;     // of these
  };
  struct KnownGenerator {
    at::Generator generator;
    std::string state;
  };
  struct Pending {  // the op between before and after
    std::string tensors;               // its `in` and `list` lines
    std::vector<c10::IValue> args;     // None for tensors and generators
    std::vector<c10::StorageImpl*> storages;
    std::vector<const c10::TensorImpl*> operands;
    bool is_opaque = false;
  };

  Known& add_storage(c10::StorageImpl* storage);
  void feed(Known& known, c10::StorageImpl* storage);
  void add_operand(const at::Tensor& tensor);
  void see_tensors(const graph::OpInfo& op, at::ArrayRef<c10::IValue> args);
  void see_ambient();
  void see_generator(size_t id);
  uint64_t generator_id(const at::Generator& generator);
  void print_event(const graph::Node& node, const char* flag);
  void print_opaque(const graph::Node& node);
  static bool is_unchanged(const Known& known, const c10::StorageImpl* storage);
  void print_after(Known& known, const c10::StorageImpl* storage);
  void print_touched(const std::vector<c10::StorageImpl*>& touched, bool is_unfilled);
  void print_results(const graph::Node& node, at::ArrayRef<c10::IValue> results);
  bool can_replay(const graph::OpInfo& op, at::ArrayRef<c10::IValue> args) const;

  std::string folder_;
  std::ofstream feeds_;
  uint64_t feed_bytes_ = 0;
  std::string way_;
  std::string ambient_;
  std::unordered_map<c10::StorageImpl*, Known> known_;
  std::vector<KnownGenerator> generators_;  // the default one first
  Pending pending_;
  bool is_done_ = false;
  std::string error_;
  uint64_t event_count_ = 0, opaque_count_ = 0, feed_count_ = 0, refeed_count_ = 0;
};

}  // namespace lockstep::coexec
