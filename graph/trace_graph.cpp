#include "graph/trace_graph.h"

#include <algorithm>

namespace lockstep::graph {

bool is_same_kind(const Layout& a, const Layout& b) {
  return a.dtype == b.dtype && a.wrapped_number == b.wrapped_number && a.sizes.size() == b.sizes.size();
}

bool are_same_kind(const Signature& a, const Signature& b) {
  return a.words[0] == b.words[0] && std::equal(a.inputs.begin(), a.inputs.end(), b.inputs.begin(), b.inputs.end(), &is_same_kind);
}

void Node::note_signature(const Signature* latest) {
  if (latest == signature) return;
  if (signature && signature->is_vacuous != latest->is_vacuous && are_same_kind(*signature, *latest))
    signature->is_vacuous = latest->is_vacuous = false;
  if (signature && !are_same_kind(*signature, *latest)) {
    constexpr size_t kKept = 8;
    std::erase_if(earlier, [&](const Signature* one) { return are_same_kind(*one, *latest); });
    if (earlier.size() == kKept) earlier.erase(earlier.begin());
    earlier.push_back(signature);
  }
  signature = latest;
}

const Signature* Node::signature_like(const Signature& other) const {
  if (!signature || are_same_kind(other, *signature)) return signature;
  const auto found = std::find_if(earlier.begin(), earlier.end(), [&](const Signature* one) { return are_same_kind(other, *one); });
  return found == earlier.end() ? signature : *found;
}

bool Node::knows_mode(int64_t first_word) const {
  const auto begins = [first_word](const Signature* one) { return one->words[0] == first_word; };
  return signature && (begins(signature) || std::any_of(earlier.begin(), earlier.end(), begins));
}

void Node::forget_signatures() {
  signature = nullptr;
  earlier.clear();
}

TraceGraph::TraceGraph() { clear(); }

std::mutex& TraceGraph::nodes_mutex() {
  static auto* mutex = new std::mutex;  // outlives static destruction
  return *mutex;
}

void TraceGraph::clear() {
  const std::lock_guard lock(nodes_mutex());
  nodes_.clear();
  index_.clear();
  next_id_ = 0;
  for (int i = 0; i < 2; ++i) {  // entry and exit
    nodes_.push_back(std::make_unique<Node>());
    nodes_.back()->id = next_id_++;
  }
}

Node* TraceGraph::find_node(uint64_t location, const OpInfo* op) {
  auto found = index_.find({location, op});
  return found == index_.end() ? nullptr : found->second;
}

Node* TraceGraph::add_node(uint64_t location, const OpInfo* op) {
  Node* node = nullptr;
  {
    const std::lock_guard lock(nodes_mutex());
    node = nodes_.emplace_back(std::make_unique<Node>()).get();
    node->id = next_id_++;
  }
  node->location = location;
  node->op = op;
  index_.emplace(Key{location, op}, node);
  return node;
}

Edge* TraceGraph::find_edge(Node* from, const Node* to) {
  for (Edge& edge : from->next)
    if (edge.to == to) return &edge;
  return nullptr;
}

Edge& TraceGraph::add_edge(Node* from, Node* to) {
  ++to->predecessor_count;
  from->next.push_back({to, 0, false, false});
  return from->next.back();
}

Node* TraceGraph::node_at(uint32_t id) {
  auto found = std::lower_bound(nodes_.begin(), nodes_.end(), id,
                                [](const auto& node, uint32_t wanted) { return node->id < wanted; });
  return found != nodes_.end() && (*found)->id == id ? found->get() : nullptr;
}

void TraceGraph::forget_oldest(const Node* kept) {
  if (op_node_count() == 0) return;
  std::vector<uint64_t> uses;
  for (const auto& node : nodes_)
    if (node->op) uses.push_back(node->last_used);
  std::nth_element(uses.begin(), uses.begin() + uses.size() / 4, uses.end());
  const uint64_t latest = uses[uses.size() / 4];
  const auto is_old = [&](const Node& node) { return node.op && &node != kept && node.last_used <= latest; };
  for (const auto& node : nodes_) {
    if (is_old(*node)) {
      for (const auto& edge : node->next) --edge.to->predecessor_count;
      index_.erase({node->location, node->op});
    } else {
      auto& next = node->next;
      next.erase(std::remove_if(next.begin(), next.end(), [&](const Edge& edge) { return is_old(*edge.to); }), next.end());
    }
  }
  const std::lock_guard lock(nodes_mutex());
  std::erase_if(nodes_, [&](const auto& node) { return is_old(*node); });
}

std::vector<std::vector<const Node*>> TraceGraph::blocks() const {
  std::vector<std::vector<const Node*>> blocks;
  std::vector<bool> inside(next_id_, false);
  for (const auto& node : nodes_)  // a node goes on in its predecessor's block if neither has another way
    if (node->next.size() == 1 && node->next[0].to->predecessor_count == 1 && node->op)
      inside[node->next[0].to->id] = true;
  for (const auto& node : nodes_) {
    if (!node->op || inside[node->id]) continue;
    std::vector<const Node*> block{node.get()};
    while (block.back()->next.size() == 1) {
      const Node* next = block.back()->next[0].to;
      if (!next->op || !inside[next->id] || next == block.front()) break;
      block.push_back(next);
    }
    blocks.push_back(std::move(block));
  }
  return blocks;
}

}  // namespace lockstep::graph
