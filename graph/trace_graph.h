// The TraceGraph: all traces of a function merged. A node is an op at a location; an edge says that Python asked the one
// after the other. Equal continuations join because nodes are unique by (location, op); a second pass over a location
// is a back edge. Loops and recursion need nothing more.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/layout.h"
#include "graph/op_info.h"
#include "graph/reasons.h"

namespace lockstep::graph {

struct Node;

// Several threads may set it, each in its time.
class SharedFlag {
 public:
  SharedFlag() = default;
  SharedFlag(const SharedFlag& other) : value_(other) {}
  SharedFlag& operator=(const SharedFlag& other) { return *this = static_cast<bool>(other); }
  SharedFlag& operator=(bool value) {
    value_.store(value, std::memory_order_relaxed);
    return *this;
  }
  operator bool() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> value_{false};
};

// What one op makes of inputs of given layouts. Shared by all nodes of the op (dynamic/shapes/shape_memo.h).
struct Signature {
  const OpInfo* op = nullptr;
  SignatureWords words;
  uint64_t hash = 0;
  std::vector<Layout> inputs;   // tensors in argument order, lists flattened, undefined ones included
  std::vector<Layout> outputs;  // fresh returns, lists flattened; those that alias an argument are left out
  std::vector<int> list_sizes;  // of the returns that are lists
  bool aliases_input = false;   // a result shares its storage with an input: run where the user's tensors are
  bool warns = false;
  bool resizes = false;         // an out= argument that did not fit is given another size
  std::vector<Layout> resized;  // by input, what it is then; undefined for the others
  std::vector<int8_t> version_bumps;  // by input, of a written one, beyond what happens above the hook; or empty
  std::vector<int8_t> output_versions;  // of fresh results that the kernel wrote in place on its way
  std::optional<Reason> special;  // a result is no plain tensor
  // Neither it nor another of its kind in the same place was computed of anything but empty tensors, for which a kernel
  // refuses no type.
  mutable SharedFlag is_vacuous;
};

// Of tensors of the same types and ranks: only sizes, strides and values are others.
bool is_same_kind(const Layout& a, const Layout& b);
bool are_same_kind(const Signature& a, const Signature& b);

struct Edge {
  Node* to = nullptr;
  uint64_t count = 0;
  bool after_true = false;   // taken after a plain bool(t) that gave true / false
  bool after_false = false;
};

struct OperandSource {
  enum class Kind : uint8_t { kUnknown, kNode, kFeed, kVaries } kind = Kind::kUnknown;
  uint32_t node = 0;
  uint16_t output = 0;
  std::string origin;  // of a feed: parameter, argument, closure cell; "?" where unknown
  const void* storage = nullptr;  // of a feed: the one that was named last; says nothing outside of this process
  bool operator==(const OperandSource& other) const {
    return kind == other.kind && node == other.node && output == other.output && origin == other.origin;
  }
};

struct NodeCounts {
  uint64_t asked = 0;
  uint64_t in_graph = 0;
  uint64_t eager = 0;
  uint64_t fetched = 0;
  double wait_seconds = 0;
  double native_ticks = 0;  // of the time stamp counter: in the graph, on the leading thread
  double eager_ticks = 0;   // eagerly
  std::array<uint32_t, kReasonCount> reasons{};
  alignas(64) double kernel_ticks = 0;  // on the graph runner, which writes nothing else here: a cache line of its own
};

// What the leading thread needs of each op that it follows comes first, in lines of the cache of its own.
struct alignas(64) Node {
  uint32_t id = 0;
  bool is_plain_bool = false;  // a fetch that only decides which way Python takes
  uint64_t location = 0;
  const OpInfo* op = nullptr;  // null for entry and exit
  const Signature* signature = nullptr;  // the latest one
  int64_t forward_node = -1;   // of a backward op: the forward event it belongs to
  std::vector<c10::IValue> constants;  // by argument; None for tensors

  c10::SmallVector<Edge, 1> next;  // the one taken most often first
  uint64_t last_call = 0;
  uint64_t last_used = 0;  // by the clock of the function; the least recently used go first
  uint32_t predecessor_count = 0;

  std::vector<bool> varies;            // by argument: the value is a feed
  std::vector<OperandSource> operands;
  std::vector<const Signature*> earlier;  // of other kinds, the latest of each
  NodeCounts counts;

  std::string where;           // file:line in function, of the user's frame
  std::string api_call;        // innermost library function that asked
  std::string autograd_node;   // of a backward op: the name of the running autograd node

  void note_signature(const Signature* latest);
  // The latest of the same kind as this one; else the latest of all.
  const Signature* signature_like(const Signature& other) const;
  bool knows_mode(int64_t first_word) const;  // whether some signature begins with it
  void forget_signatures();
};

struct Divergence {
  std::string where;      // the last event on the known way
  std::string expected;   // what was known to follow
  std::string found;
  uint64_t call = 0;
};

class TraceGraph {
 public:
  TraceGraph();
  TraceGraph(const TraceGraph&) = delete;

  Node* entry() { return nodes_[0].get(); }
  Node* exit() { return nodes_[1].get(); }
  const std::vector<std::unique_ptr<Node>>& nodes() const { return nodes_; }
  // Held while nodes come or go, in any graph: for who reads the list beside the thread that runs the graph. Nothing is done
  // under it that may run Python.
  static std::mutex& nodes_mutex();
  size_t op_node_count() const { return nodes_.size() - 2; }

  Node* find_node(uint64_t location, const OpInfo* op);
  Node* add_node(uint64_t location, const OpInfo* op);
  Edge* find_edge(Node* from, const Node* to);
  Edge& add_edge(Node* from, Node* to);
  Node* node_at(uint32_t id);
  void skip_ids_to(uint32_t id) { next_id_ = std::max(next_id_, id); }  // of the next node; for parsed graphs
  // Removes about a quarter of the nodes, the least recently used ones but not `kept`, with their edges. The ids of the
  // others stay.
  void forget_oldest(const Node* kept);
  void clear();

  // Straight runs with one way in and one way out.
  std::vector<std::vector<const Node*>> blocks() const;

  static constexpr uint32_t kVersion = 1;  // of the text form

 private:
  struct Key {
    uint64_t location;
    const OpInfo* op;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const {
      return key.location * 0x9e3779b97f4a7c15ull ^ reinterpret_cast<uintptr_t>(key.op);
    }
  };
  std::vector<std::unique_ptr<Node>> nodes_;  // ids rise; after forget_oldest they have gaps
  uint32_t next_id_ = 0;
  std::unordered_map<Key, Node*, KeyHash> index_;
};

}  // namespace lockstep::graph
