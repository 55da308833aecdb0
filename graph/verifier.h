// Laws that every TraceGraph keeps. A violation is a bug of ours, or a text that somebody changed by hand.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/trace_graph.h"

namespace lockstep::graph {

#define LOCKSTEP_VIOLATIONS(X)                                                                         \
  X(malformed_ends, "node 0 is the entry, node 1 the exit; neither has an op, no edge leads to 0 or from 1") \
  X(wrong_id, "ids rise, from 0")                                                                      \
  X(missing_op, "every node between entry and exit has an op")                                         \
  X(duplicate_node, "one node for each location and op")                                               \
  X(foreign_edge, "edges lead to nodes of the same graph")                                             \
  X(duplicate_edge, "at most one edge from one node to another")                                       \
  X(wrong_predecessor_count, "a node counts the edges that lead to it")                                \
  X(unreachable_node, "every node can be reached from the entry, where none was forgotten")                                      \
  X(wrong_argument_count, "one constant and one mark for each argument of the schema")                 \
  X(wrong_constant, "a constant fits the type that the schema declares")                               \
  X(tensor_constant, "tensors and generators are no constants")                                        \
  X(varying_tensor, "only numbers, strings and the like are marked as feeds")                          \
  X(wrong_operand_count, "as many operand sources as tensors, where no argument is a list")            \
  X(unknown_source, "an operand comes from a node that exists, or existed, and has an op")                          \
  X(unknown_source_output, "an operand comes from an output that the node has")                        \
  X(unknown_forward_node, "the forward node of a backward op exists, or existed, and has an op")                    \
  X(plain_bool_without_fetch, "only ops that return host values decide which way Python takes")        \
  X(foreign_signature, "a signature is one of the node's op")                                          \
  X(wrong_input_count, "a signature has one input layout for each tensor, where no argument is a list") \
  X(wrong_output_count, "a signature has one output layout for each fresh result")                     \
  X(wrong_storage_group, "storage groups of outputs are numbered in the order in which they appear")   \
  X(wrong_rank, "as many strides as sizes, and none of the sizes below zero")                          \
  X(layout_beyond_storage, "a tensor ends within its storage")

enum class Violation : uint8_t {
#define X(name, law) name,
  LOCKSTEP_VIOLATIONS(X)
#undef X
};

const char* violation_name(Violation violation);
const char* violation_law(Violation violation);

struct Finding {
  Violation violation;
  uint32_t node;       // where
  std::string detail;  // what, with the value
  std::string str() const;
};

// Empty where the graph keeps all laws.
std::vector<Finding> verify(const TraceGraph& graph);

}  // namespace lockstep::graph
