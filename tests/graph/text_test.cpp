#include "graph/text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "graph/verifier.h"
#include "tests/graph/graph_builder.h"

namespace lockstep::graph {
namespace {

std::string again(const std::string& text) { return print_graph(*parse_graph(text).graph); }

c10::IValue parse_one(const std::string& text) {
  TextCursor cursor(text, 1);
  auto value = cursor.parse_value();
  if (!cursor.at_end()) cursor.fail("more than one value");
  return value;
}

// ---- values

class ValueText : public testing::TestWithParam<const char*> {};

TEST_P(ValueText, ParsesToWhatPrintsTheSame) {
  const auto printed = print_value(parse_one(GetParam()));
  ASSERT_TRUE(printed.has_value());
  EXPECT_EQ(*printed, GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, ValueText,
    testing::Values("None", "0", "-9223372036854775808", "9223372036854775807", "0x1.999999999999ap-4", "-0x0p+0",
                    "0x0p+0", "0x0.0000000000001p-1022", "inf", "-inf", "nan:0x7ff8000000000001", "true", "false",
                    "\"\"", "\"a \\\"quoted\\\" \\\\ word,]) \\n\"", "complex(0x1p+0,-0x0p+0)", "device(\"cpu\")",
                    "device(\"cuda:3\")", "int[]", "int[1,-2,3]", "float[0x1p-1]", "bool[true,false]",
                    "number[1,0x1p+0]", "str[\"a\",\"b\"]", "any[None,int[1],\"x\"]", "complex[]"));

TEST(ValueTextKinds, KeepElementTypesOfLists) {
  EXPECT_EQ(*print_value(c10::IValue(std::vector<int64_t>{1, 2})), "int[1,2]");
  EXPECT_EQ(*print_value(c10::IValue(std::vector<double>{})), "float[]");
  EXPECT_TRUE(parse_one("int[1,2]").isIntList());
  EXPECT_TRUE(parse_one("float[]").isDoubleList());
  EXPECT_TRUE(parse_one("bool[true]").isBoolList());
  EXPECT_EQ(parse_one("int[4,5]").toIntVector(), (std::vector<int64_t>{4, 5}));
}

TEST(ValueTextKinds, TellDoublesFromIntegers) {
  EXPECT_TRUE(parse_one("3").isInt());
  EXPECT_TRUE(parse_one("0x1.8p+1").isDouble());
  EXPECT_TRUE(std::signbit(parse_one("-0x0p+0").toDouble()));
  EXPECT_FALSE(print_value(c10::IValue(at::Tensor())).has_value());
}

TEST(ValueTextErrors, NameTheLineAndThePlace) {
  for (const char* bad : {"", "int[1", "int[1;2]", "\"open", "complex(1", "0x", "device(cpu)", "maybe", "nan:12"}) {
    try {
      parse_one(bad);
      ADD_FAILURE() << bad << " was accepted";
    } catch (const TextError& error) {
      EXPECT_NE(std::string(error.what()).find("line 1: "), std::string::npos) << error.what();
    }
  }
}

// ---- layouts

TEST(LayoutText, AllDtypesComeBack) {
  for (int i = 0; i < static_cast<int>(c10::ScalarType::Undefined); ++i) {
    Layout made;
    made.dtype = static_cast<c10::ScalarType>(i);
    const auto text = print_layout(made);
    TextCursor cursor(text, 1);
    EXPECT_EQ(cursor.parse_layout().dtype, made.dtype) << text;
  }
}

TEST(LayoutText, AllFieldsComeBack) {
  for (const char* text : {"none", "f32[;]+0/4", "i64[2,3;3,1]+5/96#1", "c64[0;1]+0/0~conj", "f64[1;0]+0/8~neg",
                           "bf16[4;1]+0/8#0~conj~neg~wrapped"}) {
    TextCursor cursor(text, 1);
    EXPECT_EQ(print_layout(cursor.parse_layout()), text);
  }
}

// ---- graphs

TEST(GraphText, SaysAllOfASmallGraph) {
  GraphBuilder b;
  build_small(b);
  EXPECT_EQ(print_graph(b.graph), R"(lockstep-graph 1
node 0 entry
  edge 2 count 1
node 1 exit
node 2 aten::relu @10
  where "step.py:3 in step"
  operand 0 feed "argument \"x\""
  signature
  in f32[2,3;3,1]+0/24
  out f32[2,3;3,1]+0/24#0
  edge 3 count 1
node 3 aten::add.Tensor @20
  const 2 1
  varies 2
  operand 0 node 2 output 0
  operand 1 varies
  signature
  in f32[2,3;3,1]+0/24
  in f32[2,3;3,1]+0/24
  out f32[2,3;3,1]+0/24#0
  edge 4 count 1
node 4 aten::_local_scalar_dense @30
  plain_bool
  operand 0 unknown
  edge 1 count 1
  edge 2 count 7 after_true
)");
}

TEST(GraphText, ParsedGraphIsTheSameGraph) {
  GraphBuilder b;
  build_small(b);
  const auto parsed = parse_graph(print_graph(b.graph));
  EXPECT_TRUE(verify(*parsed.graph).empty());
  ASSERT_EQ(parsed.graph->nodes().size(), b.graph.nodes().size());
  const auto& add = *parsed.graph->nodes()[3];
  EXPECT_EQ(add.op, find_op_info("aten::add.Tensor"));
  EXPECT_EQ(add.operands, b.graph.nodes()[3]->operands);
  EXPECT_EQ(add.varies, b.graph.nodes()[3]->varies);
  EXPECT_EQ(parsed.graph->find_node(0x20, add.op), &add);
  EXPECT_EQ(parsed.graph->nodes()[2]->predecessor_count, 2u);
  EXPECT_EQ(parsed.graph->blocks().size(), b.graph.blocks().size());
}

c10::IValue random_value(std::mt19937& random) {
  switch (random() % 6) {
    case 0: return static_cast<int64_t>(random()) << 20;
    case 1: return std::ldexp(static_cast<double>(random()), static_cast<int>(random() % 2000) - 1000);
    case 2: return random() % 2 == 0;
    case 3: return std::vector<int64_t>(random() % 4, static_cast<int64_t>(random()));
    case 4: return std::string(random() % 5, static_cast<char>("\"\\\n a"[random() % 5]));
    default: return {};
  }
}

TEST(GraphText, RandomGraphsComeBack) {
  const char* names[] = {"aten::add.Tensor", "aten::mul.Scalar", "aten::sum.dim_IntList", "aten::native_layer_norm",
                         "aten::index.Tensor", "aten::native_dropout", "aten::_local_scalar_dense"};
  for (unsigned seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    GraphBuilder b;
    for (unsigned n = random() % 30; n > 0; --n) {
      Node* node = b.add(names[random() % std::size(names)], n);
      node->where = std::string("file \"") + char('a' + random() % 26) + ".py\":1";
      node->forward_node = static_cast<int64_t>(random() % 9) - 1;
      for (auto& constant : node->constants) constant = random_value(random);
      for (size_t a = 0; a < node->varies.size(); ++a) node->varies[a] = random() % 2;
      for (auto& source : node->operands) {
        source.kind = static_cast<OperandSource::Kind>(random() % 4);
        if (source.kind == OperandSource::Kind::kNode) source.node = random() % 40;
        if (source.kind == OperandSource::Kind::kFeed) source.origin = "?";
      }
      if (random() % 2) {
        auto& signature = b.sign(node, {layout(c10::ScalarType::Int, {1, 2}), {}}, {layout(c10::kHalf, {}, 0)});
        signature.warns = random() % 2;
        signature.special = random() % 2 ? std::optional(Reason::sparse_tensor) : std::nullopt;
        signature.list_sizes = {3};
        signature.version_bumps = {0, 1};
        signature.output_versions = {2};
      }
    }
    b.close();
    const auto text = print_graph(b.graph);
    EXPECT_EQ(again(text), text) << "seed " << seed;
  }
}

// ---- cases in tests/ir: lines with # say what is expected

struct Case {
  std::string text, error;
  std::vector<std::string> violations;
};

Case read_case(const std::string& path) {
  std::ifstream in(path);
  Case read;
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("# error: ", 0) == 0) read.error = line.substr(9);
    if (line.rfind("# violation: ", 0) == 0) read.violations.push_back(line.substr(13));
    if (line.rfind("#", 0) != 0) read.text += line + '\n';
  }
  return read;
}

class TextCase : public testing::TestWithParam<std::string> {};

TEST_P(TextCase, IsAsItSays) {
  const auto expected = read_case(GetParam());
  try {
    const auto parsed = parse_graph(expected.text);
    EXPECT_EQ(expected.error, "") << "was accepted";
    EXPECT_EQ(print_graph(*parsed.graph), expected.text);
    std::vector<std::string> found;
    for (const auto& finding : verify(*parsed.graph)) found.push_back(violation_name(finding.violation));
    EXPECT_EQ(found, expected.violations);
  } catch (const TextError& error) {
    EXPECT_EQ(error.what(), expected.error);
  }
}

std::vector<std::string> case_files() {
  const auto tests = std::filesystem::path(__FILE__).parent_path().parent_path();
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(tests / "ir"))
    if (entry.path().extension() == ".txt") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

INSTANTIATE_TEST_SUITE_P(Ir, TextCase, testing::ValuesIn(case_files()), [](const auto& info) {
  return std::filesystem::path(info.param).stem().string();
});

}  // namespace
}  // namespace lockstep::graph
