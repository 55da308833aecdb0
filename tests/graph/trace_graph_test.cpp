// Nodes, edges and blocks; traces merged as the recorder merges them.
#include "graph/trace_graph.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <thread>

namespace lockstep::graph {
namespace {

const OpInfo* add() { return find_op_info("aten::add.Tensor"); }
const OpInfo* mul() { return find_op_info("aten::mul.Tensor"); }

using Trace = std::vector<uint64_t>;  // locations, one op each

// What tracing does for each event, and at the end of a call.
void merge(TraceGraph& graph, const Trace& trace) {
  Node* cursor = graph.entry();
  auto step = [&](Node* to) {
    Edge* edge = graph.find_edge(cursor, to);
    (edge ? *edge : graph.add_edge(cursor, to)).count++;
    cursor = to;
  };
  for (uint64_t location : trace) {
    Node* node = graph.find_node(location, add());
    step(node ? node : graph.add_node(location, add()));
  }
  step(graph.exit());
}

bool accepts(TraceGraph& graph, const Trace& trace) {
  Node* cursor = graph.entry();
  for (uint64_t location : trace) {
    Node* node = graph.find_node(location, add());
    if (!node || !graph.find_edge(cursor, node)) return false;
    cursor = node;
  }
  return graph.find_edge(cursor, graph.exit()) != nullptr;
}

size_t edge_count(const TraceGraph& graph) {
  size_t count = 0;
  for (const auto& node : graph.nodes()) count += node->next.size();
  return count;
}

// Each op node stands in exactly one block; inside of a block there is one way in and one way out.
void expect_blocks_partition(const TraceGraph& graph) {
  std::set<uint32_t> seen;
  for (const auto& block : graph.blocks()) {
    ASSERT_FALSE(block.empty());
    for (size_t i = 0; i < block.size(); ++i) {
      EXPECT_TRUE(seen.insert(block[i]->id).second) << "node " << block[i]->id << " in two blocks";
      EXPECT_NE(block[i]->op, nullptr);
      if (i + 1 < block.size()) {
        ASSERT_EQ(block[i]->next.size(), 1u);
        EXPECT_EQ(block[i]->next[0].to, block[i + 1]);
        EXPECT_EQ(block[i + 1]->predecessor_count, 1u);
      }
    }
  }
  EXPECT_EQ(seen.size(), graph.op_node_count());
}

TEST(TraceGraph, NodesAreUniqueByLocationAndOp) {
  TraceGraph graph;
  Node* first = graph.add_node(1, add());
  Node* other_op = graph.add_node(1, mul());
  Node* other_place = graph.add_node(2, add());
  EXPECT_EQ(graph.find_node(1, add()), first);
  EXPECT_EQ(graph.find_node(1, mul()), other_op);
  EXPECT_EQ(graph.find_node(2, add()), other_place);
  EXPECT_EQ(graph.find_node(2, mul()), nullptr);
  EXPECT_EQ(graph.op_node_count(), 3u);
  EXPECT_EQ(graph.node_at(first->id), first);
  EXPECT_EQ(graph.node_at(99), nullptr);
}

TEST(TraceGraph, ClearLeavesEntryAndExit) {
  TraceGraph graph;
  merge(graph, {1, 2});
  graph.clear();
  EXPECT_EQ(graph.op_node_count(), 0u);
  EXPECT_TRUE(graph.entry()->next.empty());
  EXPECT_EQ(graph.exit()->predecessor_count, 0u);
  EXPECT_EQ(graph.find_node(1, add()), nullptr);
}

TEST(TraceGraph, AStraightTraceIsOneBlock) {
  TraceGraph graph;
  merge(graph, {1, 2, 3, 4});
  merge(graph, {1, 2, 3, 4});
  ASSERT_EQ(graph.blocks().size(), 1u);
  EXPECT_EQ(graph.blocks()[0].size(), 4u);
  EXPECT_EQ(graph.entry()->next[0].count, 2u);
}

TEST(TraceGraph, BranchesJoinAgain) {
  TraceGraph graph;
  merge(graph, {1, 2, 5, 6});
  merge(graph, {1, 3, 4, 5, 6});
  EXPECT_EQ(graph.op_node_count(), 6u);
  const auto blocks = graph.blocks();  // 1 | 2 | 3 4 | 5 6
  ASSERT_EQ(blocks.size(), 4u);
  std::multiset<size_t> sizes;
  for (const auto& block : blocks) sizes.insert(block.size());
  EXPECT_EQ(sizes, (std::multiset<size_t>{1, 1, 2, 2}));
  expect_blocks_partition(graph);
}

TEST(TraceGraph, ALoopIsABackEdge) {
  TraceGraph graph;
  merge(graph, {1, 2, 3, 2, 3, 4});
  EXPECT_EQ(graph.op_node_count(), 4u);
  EXPECT_NE(graph.find_edge(graph.find_node(3, add()), graph.find_node(2, add())), nullptr);
  const size_t edges = edge_count(graph);
  Trace longer{1};
  for (int i = 0; i < 1000; ++i) longer.insert(longer.end(), {2, 3});
  longer.push_back(4);
  EXPECT_TRUE(accepts(graph, longer));
  merge(graph, longer);
  EXPECT_EQ(edge_count(graph), edges);
  expect_blocks_partition(graph);
}

TEST(TraceGraph, ANodeMayFollowItself) {
  TraceGraph graph;
  merge(graph, {1, 1, 1});
  EXPECT_EQ(graph.op_node_count(), 1u);
  ASSERT_EQ(graph.blocks().size(), 1u);
  EXPECT_EQ(graph.blocks()[0].size(), 1u);
}

// Twelve independent branches: 4096 ways, a graph linear in the program.
TEST(TraceGraph, IndependentBranchesConvergeLinearly) {
  TraceGraph graph;
  std::mt19937 random(3);
  auto way = [](unsigned flips) {
    Trace trace;
    for (uint64_t i = 0; i < 12; ++i) {
      trace.push_back(10 * i);
      trace.push_back(10 * i + ((flips >> i) & 1 ? 1 : 2));
    }
    return trace;
  };
  int traced = 0;
  for (int call = 0; call < 500; ++call) {
    const auto trace = way(random());
    if (accepts(graph, trace)) continue;
    ++traced;
    merge(graph, trace);
  }
  EXPECT_LE(traced, 20);
  EXPECT_EQ(graph.op_node_count(), 36u);
  for (unsigned flips = 0; flips < 4096; ++flips) ASSERT_TRUE(accepts(graph, way(flips)));
  expect_blocks_partition(graph);
}

// Random programs over few locations: as many nodes as locations, whatever ways were taken, and merging twice adds nothing.
TEST(TraceGraph, RandomTracesAreBoundedByTheProgram) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    TraceGraph graph;
    const uint64_t locations = 1 + random() % 30;
    std::vector<Trace> traces;
    std::set<uint64_t> used;
    for (int t = 0; t < 10; ++t) {
      Trace trace(random() % 60);
      for (auto& location : trace) used.insert(location = random() % locations);
      merge(graph, trace);
      traces.push_back(std::move(trace));
    }
    EXPECT_EQ(graph.op_node_count(), used.size());
    for (const auto& trace : traces) EXPECT_TRUE(accepts(graph, trace));
    const size_t edges = edge_count(graph);
    for (const auto& trace : traces) merge(graph, trace);
    EXPECT_EQ(edge_count(graph), edges);
    std::map<const Node*, uint32_t> predecessors;
    for (const auto& node : graph.nodes())
      for (const auto& edge : node->next) ++predecessors[edge.to];
    for (const auto& node : graph.nodes()) EXPECT_EQ(node->predecessor_count, predecessors[node.get()]);
    expect_blocks_partition(graph);
  }
}

TEST(TraceGraph, SignatureWordsTellLayoutsApart) {
  auto words = [](const at::Tensor& tensor) {
    SignatureWords w;
    append_layout(w, tensor);
    return w;
  };
  const auto base = at::zeros({2, 3});
  EXPECT_EQ(words(base), words(at::ones({2, 3})));
  EXPECT_NE(words(base), words(base.t()));
  EXPECT_NE(words(base), words(base.to(at::kDouble)));
  EXPECT_NE(words(base), words(base.view({3, 2})));
  EXPECT_NE(words(base), words(at::Tensor()));
  const auto z = at::zeros({2}, at::kComplexFloat);
  EXPECT_NE(words(z), words(z.conj()));
  SignatureWords one, two;
  append_constant(one, std::vector<int64_t>{1, 2});
  append_constant(two, std::vector<int64_t>{2, 1});
  EXPECT_NE(one, two);
}

// A dim may be any number, and a device without an index has the index -1.
TEST(Layout, ConstantsThatDifferHaveDifferentWords) {
  std::vector<c10::IValue> constants{c10::IValue(), c10::Device("cpu"), c10::Device("meta"), c10::Device("cuda"),
                                     c10::Device("cuda:0"), c10::Device("cuda:1"), 0.25, "mean", "sum"};
  for (int64_t number = -9; number < 9; ++number) constants.emplace_back(number);
  std::set<std::vector<int64_t>> known;
  for (const auto& constant : constants) {
    SignatureWords words;
    append_constant(words, constant);
    EXPECT_TRUE(known.emplace(words.begin(), words.end()).second) << constant;
  }
}

// Of numbers whose values are feeds, those of one kind and sign that fit the same types look alike, and no others.
TEST(Layout, NumbersAreToldApartByKindSignAndRange) {
  const auto words_of = [](std::initializer_list<c10::IValue> numbers) {
    SignatureWords words{7};
    for (const auto& number : numbers) append_scalar(words, number, /*with_value=*/false);
    EXPECT_EQ(words[0] & ((1 << kModeBits) - 1), 7);
    return words;
  };
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(words_of({0.5, 1e-3}), words_of({0.25, 100.0}));
  EXPECT_EQ(words_of({0.0}), words_of({-0.0}));
  EXPECT_EQ(words_of({-128}), words_of({-1}));
  const auto complex = [&](double real, double imaginary) { return words_of({c10::complex<double>(real, imaginary)})[0]; };
  EXPECT_EQ(complex(1, 1), complex(2, 0.5));  // the larger part says how large it is
  EXPECT_EQ(complex(1, -1e39), complex(0, -2e39));
  EXPECT_NE(complex(1, 1), complex(1, 1e39));
  EXPECT_EQ(complex(1, 0), complex(2, 0));
  EXPECT_NE(complex(1, 0), complex(1, 1));  // which a tensor of floats cannot hold
  EXPECT_NE(complex(1, 0), words_of({2.0})[0]);
  EXPECT_NE(words_of({1})[0], words_of({1.0})[0]);
  EXPECT_NE(words_of({0})[0], words_of({0.0})[0]);
  EXPECT_NE(words_of({true})[0], words_of({false})[0]);
  EXPECT_EQ(words_of({1000}), words_of({32767}));
  EXPECT_NE(words_of({1.0, -1.0}), words_of({-1.0, 1.0}));
  std::vector<SignatureWords> seen{words_of({true}), words_of({c10::IValue()})};
  EXPECT_NE(seen[0][0], seen[1][0]);
  for (const double number : {0.0, 1e-310, 1e-40, nan, 1.0, -1.0, 128.0, -129.0, 256.0, -256.0, 500.0, 4e4, -32769.0, 6e4,
                              65530.0, 7e4, 3e9, -2147483649.0, 5e9, 1e19, -1e19, 3.4e38, 1e39, -1e39, inf, -inf}) {
    EXPECT_EQ(std::count(seen.begin(), seen.end(), words_of({number})), 0) << number;
    seen.push_back(words_of({number}));
  }
  SignatureWords with_value{7};
  append_scalar(with_value, -1.0, /*with_value=*/true);
  EXPECT_EQ(with_value[0], words_of({-2.0})[0]);
}

TEST(Layout, ListsOfNumbersAreToldApartAsSingleOnesAre) {
  const auto words_of = [](std::initializer_list<at::Scalar> numbers, bool with_values = false) {
    c10::List<at::Scalar> list(numbers);
    SignatureWords words{7};
    append_scalars(words, list, with_values);
    EXPECT_EQ(words[0], 7);
    return words;
  };
  EXPECT_EQ(words_of({0.5, 2}), words_of({0.25, 3}));
  EXPECT_NE(words_of({0.5, 2}), words_of({0.5}));
  EXPECT_NE(words_of({0.5, 2}, /*with_values=*/true), words_of({0.25, 2}, /*with_values=*/true));
  for (const bool with_values : {false, true}) {
    EXPECT_NE(words_of({true}, with_values), words_of({1}, with_values));
    EXPECT_NE(words_of({0}, with_values), words_of({0.0}, with_values));
    EXPECT_NE(words_of({0}, with_values), words_of({false}, with_values));
  }
}

TEST(Node, KeepsTheLatestSignatureOfEachKind) {
  const auto of_rank = [](size_t rank, int64_t size) {
    Signature signature;
    signature.words = {0};
    signature.inputs.push_back(layout_of(at::zeros(std::vector<int64_t>(rank, size))));
    return signature;
  };
  const auto flat = of_rank(1, 2), longer = of_rank(1, 3), square = of_rank(2, 2), cube = of_rank(3, 2);
  EXPECT_TRUE(are_same_kind(flat, longer));
  EXPECT_FALSE(are_same_kind(flat, square));
  Node node;
  node.note_signature(&flat);
  node.note_signature(&longer);
  EXPECT_EQ(node.signature, &longer);
  EXPECT_TRUE(node.earlier.empty());
  node.note_signature(&square);
  EXPECT_EQ(node.earlier, std::vector<const Signature*>{&longer});
  node.note_signature(&flat);
  EXPECT_EQ(node.signature, &flat);
  EXPECT_EQ(node.earlier, std::vector<const Signature*>{&square});
  node.note_signature(&cube);
  EXPECT_EQ(node.earlier, (std::vector<const Signature*>{&square, &flat}));
  EXPECT_EQ(node.signature_like(longer), &flat);
  EXPECT_EQ(node.signature_like(of_rank(2, 9)), &square);
  EXPECT_EQ(node.signature_like(of_rank(4, 2)), &cube) << "of no kind met before: the latest";
  node.forget_signatures();
  EXPECT_EQ(node.signature, nullptr);
  EXPECT_TRUE(node.earlier.empty());
}

TEST(Layout, NamesItself) {
  EXPECT_EQ(layout_of(at::zeros({2, 3})).str(), "f32[2,3;3,1]");
  EXPECT_EQ(layout_of(at::Tensor()).str(), "none");
  EXPECT_EQ(layout_of(at::zeros({2, 3}, at::kLong).t()).str(), "i64[3,2;1,3]");
  EXPECT_EQ(layout_of(at::zeros({4, 5})).numel(), 20);
  EXPECT_TRUE(layout_of(at::zeros({4})).same_geometry(layout_of(at::ones({4}))));
  EXPECT_FALSE(layout_of(at::zeros({4})).same_geometry(layout_of(at::zeros({5}).narrow(0, 1, 4))));
}

// A profile is made while another thread learns.
TEST(TraceGraph, NodesAreReadBesideTheThreadThatAddsAndForgetsThem) {
  TraceGraph graph;
  std::atomic<bool> is_over{false};
  bool are_whole = true;
  std::thread reader([&] {
    while (!is_over) {
      const std::lock_guard lock(graph.nodes_mutex());
      int64_t last = -1;
      for (const auto& node : graph.nodes()) {
        are_whole &= node && node->id > last;
        last = node ? node->id : last;
      }
    }
  });
  for (uint64_t round = 0; round < 200; ++round) {
    for (uint64_t i = 0; i < 500; ++i) graph.add_node(1000 * round + i, add())->last_used = round;
    graph.forget_oldest(nullptr);
  }
  is_over = true;
  reader.join();
  EXPECT_TRUE(are_whole);
}

}  // namespace
}  // namespace lockstep::graph
