#include "graph/trace_graph.h"

#include <algorithm>

namespace lockstep::graph {

TraceGraph::TraceGraph() { clear(); }

void TraceGraph::clear() {
  nodes_.clear();
  index_.clear();
  for (uint32_t id : {0u, 1u}) {  // entry and exit
    nodes_.push_back(std::make_unique<Node>());
    nodes_.back()->id = id;
  }
}

Node* TraceGraph::find_node(uint64_t location, const OpInfo* op) {
  auto found = index_.find({location, op});
  return found == index_.end() ? nullptr : found->second;
}

Node* TraceGraph::add_node(uint64_t location, const OpInfo* op) {
  nodes_.push_back(std::make_unique<Node>());
  Node* node = nodes_.back().get();
  node->id = static_cast<uint32_t>(nodes_.size() - 1);
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

std::vector<std::vector<const Node*>> TraceGraph::blocks() const {
  std::vector<std::vector<const Node*>> blocks;
  std::vector<bool> inside(nodes_.size(), false);
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
