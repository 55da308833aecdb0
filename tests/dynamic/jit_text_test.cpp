// The text form there and back, and what the verifier refuses.
#include <gtest/gtest.h>

#include <cmath>

#include "dynamic/jit/spec_text.h"
#include "dynamic/jit/spec_verifier.h"

namespace lockstep::dynamic::jit {
namespace {

constexpr const char* kSoftmax =
    "dims [?, 64]\n"
    "b0 = in f32 [?, 1]\n"
    "b1 = out stream f32 [64, 1]\n"
    "s0 = f32\n"
    "%0 = load b0 : f32\n"
    "%1 = scalar s0 : f32\n"
    "%2 = mul %0 %1 : f32\n"
    "%3 = reduce max [1] %2 : f32\n"
    "%4 = sub %2 %3 : f32\n"
    "%5 = exp %4 : f32\n"
    "%6 = reduce sum [1] %5 : f32\n"
    "%7 = div %5 %6 : f32\n"
    "store b1 %7\n";

KernelSpec parse(const std::string& text) {
  std::string reason;
  auto spec = parse_spec(text, &reason);
  EXPECT_TRUE(spec) << reason;
  return spec.value_or(KernelSpec{});
}

TEST(JitText, PrintsWhatItParsed) {
  KernelSpec spec = parse(kSoftmax);
  EXPECT_EQ(print_spec(spec), kSoftmax);
  EXPECT_FALSE(verify_spec(spec).has_value()) << *verify_spec(spec);
}

TEST(JitText, PackedAreBoolsThatAreRead) {
  const std::string text = "dims [64]\nb0 = in packed bool [1]\nb1 = out bool [1]\n%0 = load b0 : bool\nstore b1 %0\n";
  KernelSpec spec = parse(text);
  EXPECT_TRUE(spec.buffers[0].packed);
  EXPECT_EQ(print_spec(spec), text);
  EXPECT_FALSE(verify_spec(spec).has_value()) << *verify_spec(spec);
  spec.buffers[1].packed = true;
  EXPECT_EQ(verify_spec(spec), "b1: bools that are read alone may be packed");
  spec = parse("dims [64]\nb0 = in packed f32 [1]\nb1 = out f32 [1]\n%0 = load b0 : f32\nstore b1 %0\n");
  EXPECT_EQ(verify_spec(spec), "b0: bools that are read alone may be packed");
}

TEST(JitText, EveryOpTypeAndConstantComesBack) {
  KernelSpec spec;
  spec.sizes = {3, kSymbolic};
  for (int type = 0; type < static_cast<int>(DType::kCount); ++type) {
    spec.load(spec.add_buffer(static_cast<DType>(type), Access::kInOut, {kSymbolic, 1}));
    spec.scalar(spec.add_scalar(static_cast<DType>(type)));
    spec.constant(static_cast<DType>(type), 1);
  }
  for (double value : {0.1, -0.0, 1e-310, HUGE_VAL, -HUGE_VAL, std::nan("")}) spec.constant(DType::kFloat64, value);
  spec.constant(DType::kInt64, -9e15);
  spec.index(1);
  ValueId x = spec.constant(DType::kFloat32, 3);
  for (int op = static_cast<int>(Op::k_neg); op < static_cast<int>(Op::kCount); ++op) {
    switch (kOpRows[op].arity) {
      case 1: spec.unary(static_cast<Op>(op), x); break;
      case 2: spec.binary(static_cast<Op>(op), x, x); break;
      default: spec.fma(x, x, x); break;
    }
  }
  for (int kind = 0; kind < static_cast<int>(ReduceKind::kCount); ++kind) {
    spec.reduce(static_cast<ReduceKind>(kind), x, {0, 1});
  }
  spec.store(4, x);
  std::string text = print_spec(spec);
  EXPECT_EQ(print_spec(parse(text)), text);
}

TEST(JitText, SaysWhereTheTextIsWrong) {
  for (const char* text : {"dims [1", "dims [2] x", "b1 = in f32 [1]", "b0 = inn f32 [1]", "b0 = in f33 [1]",
                           "%0 = what : f32", "%1 = load b0 : f32", "%0 = constant : f32", "%0 = add %1 : f32",
                           "%0 = reduce mean [1] %0 : f32", "store %0", "hello"}) {
    std::string reason;
    EXPECT_FALSE(parse_spec(text, &reason).has_value()) << text;
    EXPECT_EQ(reason.rfind("line 1: ", 0), 0u) << reason;
  }
}

struct Refusal {
  const char* text;
  const char* reason;
};

TEST(JitVerifier, RefusesWithAReason) {
  const std::string head =
      "dims [4, 8]\nb0 = in f32 [8, 1]\nb1 = out f32 [8, 1]\nb2 = in i32 [8, 1]\nb3 = out f32 [1, 0]\n";
  const Refusal cases[] = {
      {"%0 = load b0 : f32\nstore b1 %0\nstore b3 %0\n", "b3: an output may not be broadcast along a kept dim"},
      {"%0 = load b0 : f32\n%1 = reduce sum [1] %0 : f32\nstore b1 %1\nstore b3 %0\n",
       "b3: what is stored there varies"},
      {"%0 = load b0 : f32\n%1 = reduce sum [1] %0 : f32\n%2 = reduce sum [0] %0 : f32\n", "%2: reduces other dims"},
      {"%0 = load b0 : f32\n%1 = load b2 : i32\n%2 = add %0 %1 : f32\n", "%2: add does not take these types"},
      {"%0 = load b2 : i32\n%1 = exp %0 : i32\n", "%1: exp does not take these types"},
      {"%0 = load b1 : f32\n", "%0: loads from an output"},
      {"%0 = load b9 : f32\n", "%0: no such buffer"},
      {"%0 = load b2 : f32\n", "%0: type is not the buffer's"},
      {"%0 = neg %0 : f32\n", "%0: operand is not defined before"},
      {"%0 = load b0 : f32\nstore b1 %0\n%2 = neg %1 : f32\n", "%2: a store has no value"},
      {"%0 = load b0 : f32\n%1 = reduce any [1] %0 : f32\n", "%1: any and all take bool"},
      {"%0 = load b0 : f32\n%1 = reduce sum [2] %0 : f32\n", "%1: reduced dims out of range"},
      {"%0 = load b0 : f32\nstore b0 %0\n", "%1: stores into an input"},
      {"%0 = load b0 : f32\nstore b1 %0\n", "b3: stored 0 times"},
  };
  for (const Refusal& refusal : cases) {
    auto problem = verify_spec(parse(head + refusal.text));
    ASSERT_TRUE(problem.has_value()) << refusal.text;
    EXPECT_EQ(problem->rfind(refusal.reason, 0), 0u) << *problem;
  }
}

TEST(JitVerifier, RefusesReducedBuffersThatAPassReadsAfterTheyAreWritten) {
  KernelSpec spec;
  spec.sizes = {4, 8};
  int x = spec.add_buffer(DType::kFloat32, Access::kIn, {8, 1});
  int mean = spec.add_buffer(DType::kFloat32, Access::kInOut, {1, 0});
  int y = spec.add_buffer(DType::kFloat32, Access::kOut, {8, 1});
  ValueId sum = spec.reduce(ReduceKind::kSum, spec.load(x), {1});
  ValueId old = spec.load(mean);
  spec.store(mean, spec.binary(Op::k_add, sum, old));
  spec.store(y, spec.load(x));
  EXPECT_FALSE(verify_spec(spec).has_value());
  spec.body.back().operands[0] = spec.body.back().operands[0];
  KernelSpec bad = spec;
  bad.body.pop_back();
  bad.store(y, bad.binary(Op::k_mul, bad.load(x), old));
  ASSERT_TRUE(verify_spec(bad).has_value());
  EXPECT_NE(verify_spec(bad)->find("written in place"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::dynamic::jit
