#include "dynamic/kernels/kernel_table.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>

#include "dynamic/kernels/random_check.h"

namespace lockstep::dynamic {
namespace {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

const IValue kNone;

c10::OperatorHandle handle_of(const OwnKernelRow& row) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(row.name, row.overload);
}

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.nbytes() == b.nbytes() && std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

// A value for each argument, by its name. Sizes and integers such that the kernel takes the call.
IValue argument_for(const c10::Argument& argument, const std::string& op, bool is_integral) {
  static const std::map<std::string, IValue> kByName = {
      {"size", c10::List<int64_t>({20, 35})}, {"high", 50}, {"low", -3}, {"from", -3},  {"to", 50}, {"p", 0.3},
      {"mean", 0.5}, {"std", 2.0}, {"generator", kNone}, {"dtype", kNone}, {"layout", kNone}, {"device", kNone},
      {"pin_memory", kNone}, {"memory_format", kNone}};
  const bool is_tensor = argument.type()->kind() == c10::TypeKind::TensorType;
  if (is_tensor && (argument.name() == "p" || op == "aten::bernoulli")) return at::full({20, 35}, 0.3);
  if (is_tensor) return at::zeros({20, 35}, is_integral ? at::kLong : at::kFloat);
  if (op == "aten::uniform_" && argument.type()->kind() == c10::TypeKind::FloatType)
    return argument.name() == "from" ? -1.5 : 2.0;
  return kByName.at(argument.name());
}

Stack arguments_for(const c10::FunctionSchema& schema, bool is_integral) {
  Stack stack;
  for (const auto& argument : schema.arguments()) stack.push_back(argument_for(argument, schema.name(), is_integral));
  return stack;
}

Stack copy_of(const Stack& stack) {
  Stack copy;
  for (const auto& value : stack) copy.push_back(value.isTensor() ? IValue(value.toTensor().clone()) : value);
  return copy;
}

void set_by_name(Stack& stack, const c10::FunctionSchema& schema, const std::string& name, const IValue& value) {
  for (size_t i = 0; i < schema.arguments().size(); ++i)
    if (schema.arguments()[i].name() == name) stack[i] = value;
}

struct Outcome {
  Tensor result;
  Tensor default_state, own_state;
};

// Runs a call above a value on the stack that is not its own.
template <typename Call>
Outcome outcome_of(const c10::OperatorHandle& op, const Stack& arguments, bool is_given_a_generator, Call call) {
  at::manual_seed(11);
  const auto generator = at::detail::createCPUGenerator(3);
  Stack stack = copy_of(arguments);
  if (is_given_a_generator) set_by_name(stack, op.schema(), "generator", generator);
  stack.insert(stack.begin(), IValue("below"));
  const IValue first = stack[1];
  call(stack);
  EXPECT_EQ(stack.size(), 2u);
  EXPECT_EQ(stack[0].toStringRef(), "below");
  const Tensor result = stack[1].toTensor();
  const auto* const alias = op.schema().arguments()[0].alias_info();
  EXPECT_EQ(alias && alias->isWrite(), first.isTensor() && result.is_same(first.toTensor()));
  return {result, at::detail::getDefaultCPUGenerator().get_state(), generator.get_state()};
}

// Where PyTorch draws otherwise on this machine there is nothing to compare.
bool is_declined_here(const std::string& op) {
  const auto differs = [](Sampler sampler) {
    return agreement_with_eager(sampler, at::kFloat) == Agreement::kDiffers;
  };
  if (op.starts_with("aten::normal") || op.starts_with("aten::randn")) return differs(Sampler::kNormal);
  return op.starts_with("aten::bernoulli") && differs(Sampler::kBernoulli);
}

void expect_same(const OwnKernelRow& row, const Stack& arguments) {
  if (is_declined_here(row.name)) return;
  const auto op = handle_of(row);
  const auto own = find_own_kernel(graph::op_info(op));
  ASSERT_NE(own, nullptr);
  for (const bool is_given : {false, true}) {
    SCOPED_TRACE(testing::Message() << op.operator_name() << (is_given ? ", a generator" : ""));
    const auto ours = outcome_of(op, arguments, is_given, [&](Stack& stack) { ASSERT_TRUE(own->run(stack)); });
    const auto theirs = outcome_of(op, arguments, is_given, [&](Stack& stack) { op.callBoxed(stack); });
    EXPECT_EQ(ours.result.scalar_type(), theirs.result.scalar_type());
    EXPECT_EQ(ours.result.sizes(), theirs.result.sizes());
    EXPECT_EQ(ours.result.strides(), theirs.result.strides());
    EXPECT_TRUE(same_bytes(ours.result, theirs.result));
    EXPECT_TRUE(ours.default_state.equal(theirs.default_state));
    EXPECT_TRUE(ours.own_state.equal(theirs.own_state));
  }
}

TEST(KernelTable, EachRowDoesWhatItsOpDoes) {
  for (const auto& row : random_kernels()) {
    const auto schema = handle_of(row).schema();
    expect_same(row, arguments_for(schema, false));
    if (std::string(row.name).starts_with("aten::rand"))
      for (const auto type : {at::kDouble, at::kBFloat16}) {
        auto arguments = arguments_for(schema, false);
        set_by_name(arguments, schema, "dtype", type);
        expect_same(row, arguments);
      }
    if (std::string(row.name).starts_with("aten::random_") || std::string(row.name).starts_with("aten::randint"))
      expect_same(row, arguments_for(schema, true));
  }
}

TEST(KernelTable, ATensorLikeAnotherKeepsItsStrides) {
  for (const auto& row : random_kernels()) {
    const std::string name = row.name;
    if (name != "aten::rand_like" && name != "aten::randint_like") continue;
    const auto schema = handle_of(row).schema();
    auto arguments = arguments_for(schema, false);
    arguments[0] = at::zeros({3, 4, 5}).permute({2, 0, 1});
    expect_same(row, arguments);
    set_by_name(arguments, schema, "memory_format", at::MemoryFormat::Contiguous);
    expect_same(row, arguments);
  }
}

TEST(KernelTable, ADeclinedCallLeavesTheStackAlone) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::bernoulli_", "float");
  const auto own = find_own_kernel(graph::op_info(op));
  ASSERT_NE(own, nullptr);
  const auto self = at::zeros({10});
  Stack stack{self, 1.5, kNone};
  EXPECT_FALSE(own->run(stack));
  ASSERT_EQ(stack.size(), 3u);
  EXPECT_TRUE(stack[0].toTensor().is_same(self));
  EXPECT_EQ(stack[1].toDouble(), 1.5);
}

TEST(KernelTable, FactoriesDeclineWhatIsNotAPlainTensorOnTheCpu) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::rand", "");
  const auto own = find_own_kernel(graph::op_info(op));
  const c10::List<int64_t> sizes({4, 5}), negative({4, -5});
  Stack meta{sizes, kNone, kNone, c10::Device(at::kMeta), kNone};
  EXPECT_FALSE(own->run(meta));
  Stack sparse{sizes, kNone, at::kSparse, kNone, kNone};
  EXPECT_FALSE(own->run(sparse));
  Stack pinned{sizes, kNone, kNone, kNone, true};
  EXPECT_FALSE(own->run(pinned));
  Stack wrong{negative, kNone, kNone, kNone, kNone};
  EXPECT_FALSE(own->run(wrong));
  Stack complex{sizes, at::kComplexFloat, kNone, kNone, kNone};
  EXPECT_FALSE(own->run(complex));
}

TEST(KernelTable, OtherOpsHaveNone) {
  EXPECT_EQ(find_own_kernel(graph::op_info(c10::Dispatcher::singleton().findSchemaOrThrow("aten::mul", "Tensor"))), nullptr);
}

}  // namespace
}  // namespace lockstep::dynamic
