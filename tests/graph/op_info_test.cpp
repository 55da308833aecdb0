// The effects table: what schema and tags say, and where they are corrected.
#include "graph/op_info.h"

#include <gtest/gtest.h>
#include <torch/library.h>

#include <set>
#include <thread>
#include <vector>

namespace lockstep::graph {
namespace {

const OpInfo& op(const char* name) {
  const auto* info = find_op_info(name);
  if (!info) throw std::runtime_error(std::string("no op ") + name);
  return *info;
}

struct KindCase {
  const char* name;
  OpKind kind;
};
void PrintTo(const KindCase& value, std::ostream* out) { *out << value.name; }

class OpKinds : public testing::TestWithParam<KindCase> {};

TEST_P(OpKinds, AreAsExpected) { EXPECT_EQ(op(GetParam().name).kind, GetParam().kind); }

INSTANTIATE_TEST_SUITE_P(
    Declared, OpKinds,
    testing::Values(KindCase{"aten::add.Tensor", OpKind::kCompute}, KindCase{"aten::add_.Tensor", OpKind::kCompute},
                    KindCase{"aten::view", OpKind::kView}, KindCase{"aten::t", OpKind::kView},
                    KindCase{"aten::split.Tensor", OpKind::kView}, KindCase{"aten::detach", OpKind::kView},
                    KindCase{"aten::squeeze_", OpKind::kMetadata}, KindCase{"aten::t_", OpKind::kMetadata},
                    KindCase{"aten::_local_scalar_dense", OpKind::kHost}, KindCase{"aten::equal", OpKind::kHost},
                    KindCase{"aten::linear", OpKind::kComposite}, KindCase{"aten::matmul", OpKind::kComposite}));
INSTANTIATE_TEST_SUITE_P(
    Corrected, OpKinds,
    testing::Values(KindCase{"aten::_unsafe_view", OpKind::kView}, KindCase{"aten::unsafe_split.Tensor", OpKind::kView},
                    KindCase{"aten::lift_fresh", OpKind::kView}, KindCase{"aten::resize_", OpKind::kEager},
                    KindCase{"aten::set_.source_Tensor", OpKind::kEager},
                    KindCase{"aten::_lazy_clone", OpKind::kEager}, KindCase{"aten::is_same_size", OpKind::kHostMeta},
                    KindCase{"aten::_pack_padded_sequence", OpKind::kHost}));

TEST(OpInfo, NamesTheOverload) {
  EXPECT_EQ(op("aten::add.Tensor").name, "aten::add.Tensor");
  EXPECT_EQ(op("aten::mm").name, "aten::mm");
  EXPECT_EQ(find_op_info("aten::no_such_op"), nullptr);
  EXPECT_EQ(find_op_info("nonsense"), nullptr);
}

TEST(OpInfo, KindsOfArguments) {
  const auto& add = op("aten::add.Tensor");
  ASSERT_EQ(add.args.size(), 3u);
  EXPECT_EQ(add.args[0].kind, ArgKind::kTensor);
  EXPECT_EQ(add.args[2].kind, ArgKind::kScalar);
  EXPECT_EQ(op("aten::cat").args[0].kind, ArgKind::kTensorList);
  EXPECT_EQ(op("aten::index.Tensor").args[1].kind, ArgKind::kOptionalTensorList);
  EXPECT_EQ(op("aten::bernoulli_.float").args[2].kind, ArgKind::kGenerator);
  EXPECT_EQ(op("aten::sum.dim_IntList").args[1].kind, ArgKind::kConstant);
  EXPECT_EQ(op("aten::native_layer_norm").args[2].kind, ArgKind::kTensor);  // optional
}

TEST(OpInfo, Writes) {
  EXPECT_TRUE(op("aten::add_.Tensor").args[0].is_written);
  EXPECT_FALSE(op("aten::add_.Tensor").args[1].is_written);
  EXPECT_EQ(op("aten::add_.Tensor").returns[0].alias_arg, 0);
  EXPECT_EQ(op("aten::add.out").returns[0].alias_arg, 3);
  EXPECT_TRUE(op("aten::add.out").returns_out);
  EXPECT_FALSE(op("aten::add.Tensor").writes);
  EXPECT_TRUE(op("aten::_foreach_add_.Scalar").args[0].is_written);
  // the schema does not say so
  EXPECT_TRUE(op("aten::native_batch_norm").args[3].is_written);
  EXPECT_TRUE(op("aten::native_batch_norm").args[4].is_written);
  EXPECT_TRUE(op("aten::rrelu_with_noise").args[1].is_written);
}

TEST(OpInfo, Draws) {
  for (const char* name : {"aten::bernoulli_.float", "aten::normal_", "aten::native_dropout", "aten::randperm",
                           "aten::rand_like", "aten::multinomial", "aten::uniform_"})
    EXPECT_TRUE(op(name).draws) << name;
  for (const char* name : {"aten::add.Tensor", "aten::zeros", "aten::sum"}) EXPECT_FALSE(op(name).draws) << name;
}

TEST(OpInfo, ShapesThatDependOnData) {
  for (const char* name : {"aten::nonzero", "aten::masked_select", "aten::_unique2"})
    EXPECT_TRUE(op(name).dynamic_shape) << name;
  EXPECT_TRUE(op("aten::index.Tensor").bool_index_is_dynamic);
  EXPECT_TRUE(op("aten::index_put_").puts_by_index);
  EXPECT_FALSE(op("aten::add.Tensor").layout_from_scalars);
  EXPECT_TRUE(op("aten::arange.start_step").layout_from_scalars);
}

TEST(OpInfo, ErrorsByValue) {
  EXPECT_EQ(op("aten::embedding").value_check, ValueCheck::kIndex);
  EXPECT_EQ(op("aten::nll_loss_forward").value_check, ValueCheck::kClassLabel);
  EXPECT_EQ(op("aten::linalg_inv_ex").value_check, ValueCheck::kAlways);
  EXPECT_EQ(op("aten::remainder.Tensor").value_check, ValueCheck::kIntegerOnly);
  EXPECT_EQ(op("aten::bernoulli_.float").value_check, ValueCheck::kProbability);
  EXPECT_EQ(op("aten::add.Tensor").value_check, ValueCheck::kNone);
  EXPECT_EQ(op("aten::binary_cross_entropy").value_check, ValueCheck::kAlways);
  EXPECT_EQ(op("aten::binary_cross_entropy_with_logits").value_check, ValueCheck::kNone);
  EXPECT_EQ(op("aten::linalg_vector_norm").value_check, ValueCheck::kNone);
}

// Ops of a library that was closed leave their addresses to those of the next one.
TEST(OpInfo, OfOpsThatAreDefinedAgainAndAgain) {
  std::set<const void*> addresses;
  bool was_address_met_again = false;
  for (int i = 0; i < 20; ++i) {
    torch::Library library(torch::Library::FRAGMENT, "lockstep_closed", std::nullopt, __FILE__, __LINE__);
    const std::string name = "op_" + std::to_string(i);
    library.def((name + (i % 2 ? "(Tensor(a!) x, Tensor y) -> Tensor(a!)" : "(Tensor x) -> Tensor")).c_str());
    const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(("lockstep_closed::" + name).c_str(), "");
    was_address_met_again |= !addresses.insert(&handle.operator_name()).second;
    EXPECT_EQ(op_info(handle).name, "lockstep_closed::" + name);
    EXPECT_EQ(op_info(handle).writes, i % 2 == 1);
    std::thread([&] { EXPECT_EQ(&op_info(handle), find_op_info("lockstep_closed::" + name)); }).join();
  }
  EXPECT_TRUE(was_address_met_again);
}

TEST(OpInfo, OneEntryForAllThreads) {
  const OpInfo* first = &op("aten::mul.Tensor");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (const char* name : {"aten::mul.Tensor", "aten::div.Tensor", "aten::sub.Tensor", "aten::exp"}) op(name);
      EXPECT_EQ(&op("aten::mul.Tensor"), first);
      EXPECT_EQ(&op_info(first->handle), first);
    });
  for (auto& thread : threads) thread.join();
}

// Every op of the dispatcher can be looked at without an error, and the answers do not contradict one another.
TEST(OpInfo, AllOpsHaveConsistentEntries) {
  size_t count = 0;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    auto handle = c10::Dispatcher::singleton().findSchema(name);
    if (!handle) continue;
    const auto& info = op_info(*handle);
    ++count;
    EXPECT_EQ(info.args.size(), handle->schema().arguments().size());
    EXPECT_EQ(info.returns.size(), handle->schema().returns().size());
    bool writes = false;
    for (const auto& arg : info.args) writes |= arg.is_written;
    EXPECT_EQ(writes, info.writes) << info.name;
    for (const auto& ret : info.returns)
      if (ret.alias_arg >= 0) EXPECT_TRUE(info.args[ret.alias_arg].is_written) << info.name;
    const bool is_audited =
        info.name.starts_with("aten::") || info.name.starts_with("prims::") || info.name.starts_with("lockstep::");
    EXPECT_EQ(info.is_foreign, !is_audited) << info.name;
    if (!is_audited)
      EXPECT_TRUE(info.kind == OpKind::kEager || info.kind == OpKind::kPass || info.kind == OpKind::kComposite)
          << info.name;
  }
  EXPECT_GT(count, 2000u);
}

}  // namespace
}  // namespace lockstep::graph
