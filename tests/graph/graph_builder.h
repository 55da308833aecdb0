// Small graphs by hand and by chance, for the tests of text form and verifier.
#pragma once

#include <deque>
#include <random>
#include <string>
#include <vector>

#include "graph/trace_graph.h"

namespace lockstep::graph {

inline Layout layout(c10::ScalarType dtype, std::vector<int64_t> sizes, int group = -1) {
  Layout made;
  made.dtype = dtype;
  made.sizes.assign(sizes.begin(), sizes.end());
  made.strides.resize(sizes.size());
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0; stride *= sizes[d]) made.strides[d] = stride;
  made.storage_bytes = stride * static_cast<int64_t>(c10::elementSize(dtype));
  made.storage_group = group;
  return made;
}

class GraphBuilder {
 public:
  GraphBuilder() : last_(graph.entry()) {}

  // Follows the node before it.
  Node* add(const std::string& name, uint64_t location) {
    const OpInfo* op = find_op_info(name);
    TORCH_CHECK(op, "no op ", name);
    Node* node = graph.add_node(location, op);
    node->constants.resize(op->args.size());
    node->varies.resize(op->args.size(), false);
    for (const auto& arg : op->args)
      if (arg.kind == ArgKind::kTensor) node->operands.emplace_back();
    follow(node);
    return node;
  }
  void follow(Node* node) {
    graph.add_edge(last_, node).count = 1;
    last_ = node;
  }
  void close() { follow(graph.exit()); }

  Signature& sign(Node* node, std::vector<Layout> inputs, std::vector<Layout> outputs) {
    auto& signature = signatures.emplace_back();
    signature.op = node->op;
    signature.inputs = std::move(inputs);
    signature.outputs = std::move(outputs);
    node->signature = &signature;
    return signature;
  }

  TraceGraph graph;
  std::deque<Signature> signatures;

 private:
  Node* last_;
};

// relu(x) + y in a loop, with a read that decides.
inline void build_small(GraphBuilder& b) {
  const auto f32 = c10::ScalarType::Float;
  Node* relu = b.add("aten::relu", 0x10);
  relu->where = "step.py:3 in step";
  relu->operands[0] = {OperandSource::Kind::kFeed, 0, 0, "argument \"x\""};
  b.sign(relu, {layout(f32, {2, 3})}, {layout(f32, {2, 3}, 0)});
  Node* add = b.add("aten::add.Tensor", 0x20);
  add->constants[2] = 1;
  add->varies[2] = true;
  add->operands[0] = {OperandSource::Kind::kNode, relu->id, 0, {}};
  add->operands[1] = {OperandSource::Kind::kVaries, 0, 0, {}};
  b.sign(add, {layout(f32, {2, 3}), layout(f32, {2, 3})}, {layout(f32, {2, 3}, 0)});
  Node* read = b.add("aten::_local_scalar_dense", 0x30);
  read->is_plain_bool = true;
  b.close();
  auto& back = b.graph.add_edge(read, relu);
  back.count = 7;
  back.after_true = true;
}

}  // namespace lockstep::graph
