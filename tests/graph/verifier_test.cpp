#include "graph/verifier.h"

#include <gtest/gtest.h>

#include <functional>

#include "tests/graph/graph_builder.h"

namespace lockstep::graph {
namespace {

// One thing broken in the small graph (2 relu, 3 add, 4 read), and what must be found. Signatures: 0 relu's, 1 add's.
struct Broken {
  const char* violation;
  std::function<void(GraphBuilder&)> breaks;
};

Node& node(GraphBuilder& b, uint32_t id) { return *b.graph.node_at(id); }

const Broken kBroken[] = {
    {"malformed_ends", [](GraphBuilder& b) { b.graph.entry()->op = find_op_info("aten::relu"); }},
    {"malformed_ends", [](GraphBuilder& b) { b.graph.add_edge(&node(b, 4), b.graph.entry()); }},
    {"malformed_ends", [](GraphBuilder& b) { b.graph.add_edge(b.graph.exit(), &node(b, 2)); }},
    {"wrong_id", [](GraphBuilder& b) { node(b, 3).id = 9; }},
    {"missing_op", [](GraphBuilder& b) { node(b, 3).op = nullptr; }},
    {"duplicate_node",
     [](GraphBuilder& b) {
       node(b, 3).op = node(b, 2).op;
       node(b, 3).location = node(b, 2).location;
     }},
    {"foreign_edge",
     [](GraphBuilder& b) {
       static Node stranger;
       node(b, 3).next.push_back({&stranger, 1, false, false});
     }},
    {"foreign_edge", [](GraphBuilder& b) { node(b, 3).next.push_back({nullptr, 1, false, false}); }},
    {"duplicate_edge", [](GraphBuilder& b) { b.graph.add_edge(&node(b, 2), &node(b, 3)); }},
    {"wrong_predecessor_count", [](GraphBuilder& b) { node(b, 3).predecessor_count = 5; }},
    {"unreachable_node",
     [](GraphBuilder& b) {
       node(b, 2).next.clear();
       node(b, 3).predecessor_count = 0;
     }},
    {"wrong_argument_count", [](GraphBuilder& b) { node(b, 3).constants.pop_back(); }},
    {"wrong_argument_count", [](GraphBuilder& b) { node(b, 3).varies.push_back(true); }},
    {"wrong_constant", [](GraphBuilder& b) { node(b, 3).constants[2] = std::string("one"); }},
    {"wrong_constant", [](GraphBuilder& b) { node(b, 3).constants[2] = c10::IValue(); }},
    {"wrong_constant", [](GraphBuilder& b) { node(b, 3).constants[2] = std::vector<int64_t>{1}; }},
    {"tensor_constant", [](GraphBuilder& b) { node(b, 3).constants[0] = 3; }},
    {"varying_tensor", [](GraphBuilder& b) { node(b, 3).varies[1] = true; }},
    {"wrong_operand_count", [](GraphBuilder& b) { node(b, 3).operands.pop_back(); }},
    {"unknown_source", [](GraphBuilder& b) { node(b, 3).operands[0].node = 77; }},
    {"unknown_source", [](GraphBuilder& b) { node(b, 3).operands[0].node = 1; }},
    {"unknown_source_output", [](GraphBuilder& b) { node(b, 3).operands[0].output = 1; }},
    {"unknown_forward_node", [](GraphBuilder& b) { node(b, 3).forward_node = 5; }},
    {"plain_bool_without_fetch", [](GraphBuilder& b) { node(b, 3).is_plain_bool = true; }},
    {"foreign_signature", [](GraphBuilder& b) { b.signatures[1].op = node(b, 2).op; }},
    {"wrong_input_count", [](GraphBuilder& b) { b.signatures[1].inputs.pop_back(); }},
    {"wrong_output_count", [](GraphBuilder& b) { b.signatures[1].outputs.clear(); }},
    {"wrong_output_count", [](GraphBuilder& b) { b.signatures[1].list_sizes.push_back(1); }},
    {"wrong_storage_group", [](GraphBuilder& b) { b.signatures[1].outputs[0].storage_group = -1; }},
    {"wrong_storage_group", [](GraphBuilder& b) { b.signatures[1].outputs[0].storage_group = 1; }},
    {"wrong_rank", [](GraphBuilder& b) { b.signatures[0].inputs[0].strides.pop_back(); }},
    {"wrong_rank", [](GraphBuilder& b) { b.signatures[0].inputs[0].sizes[0] = -1; }},
    {"layout_beyond_storage", [](GraphBuilder& b) { b.signatures[0].inputs[0].storage_bytes = 23; }},
    {"layout_beyond_storage", [](GraphBuilder& b) { b.signatures[0].outputs[0].offset = 1; }},
};

class VerifierFinds : public testing::TestWithParam<size_t> {};

TEST_P(VerifierFinds, WhatWasBroken) {
  const auto& broken = kBroken[GetParam()];
  GraphBuilder b;
  build_small(b);
  ASSERT_TRUE(verify(b.graph).empty());
  broken.breaks(b);
  std::string all;
  bool is_found = false;
  for (const auto& finding : verify(b.graph)) {
    is_found |= violation_name(finding.violation) == std::string(broken.violation);
    all += finding.str() + '\n';
  }
  EXPECT_TRUE(is_found) << broken.violation << " not among:\n" << all;
}

INSTANTIATE_TEST_SUITE_P(Each, VerifierFinds, testing::Range(size_t{0}, std::size(kBroken)), [](const auto& info) {
  return std::string(kBroken[info.param].violation) + "_" + std::to_string(info.param);
});

TEST(Verifier, EveryViolationHasATest) {
#define X(name, law)                                                                        \
  EXPECT_TRUE(std::any_of(std::begin(kBroken), std::end(kBroken),                           \
                          [](const Broken& b) { return b.violation == std::string(#name); })) \
      << #name;
  LOCKSTEP_VIOLATIONS(X)
#undef X
}

TEST(Verifier, AcceptsAnEmptyGraph) {
  const TraceGraph graph;
  EXPECT_TRUE(verify(graph).empty());
}

TEST(Verifier, AFindingSaysWhereWhatAndTheLaw) {
  GraphBuilder b;
  build_small(b);
  node(b, 3).operands[0].node = 77;
  const auto findings = verify(b.graph);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].str(),
            "unknown_source at node 3: operand 0 comes from output 0 of node 77 (an operand comes from a node that "
            "exists, or existed, and has an op)");
}

}  // namespace
}  // namespace lockstep::graph
