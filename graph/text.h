// The text form of a TraceGraph: what it is, without what happened while it ran. Printing what was parsed gives the same
// text again.
//
//   lockstep-graph 1                                       format version
//   node 0 entry
//     edge 2 count 4
//   node 1 exit
//   node 2 aten::add.Tensor @a1b2c3                        id, op with overload, location key in hexadecimal; ids rise,
//                                                          and have gaps where nodes were forgotten
//     where "step.py:7 in step"
//     api "Tensor.__add__"
//     autograd "AddBackward0" forward 9                    running autograd node, and the forward node it belongs to
//     plain_bool                                           a fetch that only decides which way Python takes
//     const 2 1                                            argument 2; see value_text.h; None ones are left out
//     varies 2                                             argument 2 is a feed
//     operand 0 node 5 output 0                            or: feed "weight", varies, unknown
//     signature aliases_input warns resizes special warns  the latest one; flags as they hold, a reason
//     in f32[2;1]+0/8
//     out f32[2;1]+0/8#0
//     lists 1 2                                            lengths of the returns that are lists
//     bumps 0 1                                            how often the kernel bumps the versions of its operands
//     versions 1                                           and has bumped those of its fresh results
//     edge 3 count 4 after_true                            `after_*`: what a plain bool before it gave
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>

#include "graph/trace_graph.h"
#include "graph/value_text.h"

namespace lockstep::graph {

struct ParsedGraph {
  std::unique_ptr<TraceGraph> graph;
  std::deque<Signature> signatures;  // the nodes point into it
};

std::string print_graph(const TraceGraph& graph);
// Throws TextError, with the line.
ParsedGraph parse_graph(std::string_view text);

}  // namespace lockstep::graph
