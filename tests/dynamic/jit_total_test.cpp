// Totals: what is stored at all rows added up, beside what each row stores, against float64 and ATen.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "dynamic/jit/spec_text.h"
#include "dynamic/jit/spec_verifier.h"
#include "tests/support/jit_kernels.h"

namespace lockstep::dynamic::jit {
namespace {

constexpr TargetChoice kTargets[] = {TargetChoice::kHost, TargetChoice::kAvx2, TargetChoice::kAvx2CopiedTails};

class JitTotal : public testing::TestWithParam<TargetChoice> {};
INSTANTIATE_TEST_SUITE_P(Targets, JitTotal, testing::ValuesIn(kTargets));

const std::vector<std::vector<int64_t>> kShapes = {
    {1, 1}, {1, 40}, {3, 16}, {64, 33}, {65, 8}, {200, 70}, {7, 9, 21}, {2, 1, 50}, {40}, {5000, 3}, {130, 2000},
};

std::vector<int64_t> symbolic(size_t count) { return std::vector<int64_t>(count, kSymbolic); }

// One of a row's length and one of a single element, as sum and as mean.
KernelSpec totals_spec(size_t rank, DType type) {
  KernelSpec spec;
  spec.sizes = symbolic(rank);
  std::vector<int64_t> dense = symbolic(rank), column(rank, 0);
  dense.back() = column.back() = 1;
  const ValueId x = spec.load(spec.add_buffer(type, Access::kIn, dense));
  for (const Total total : {Total::kSum, Total::kMean}) {
    spec.store(spec.add_total(type, total, column), x);
    spec.store(spec.add_total(type, total, std::vector<int64_t>(rank, 0)), x);
  }
  return spec;
}

std::vector<at::Tensor> run_totals(const Kernel& kernel, const at::Tensor& x) {
  std::vector<at::Tensor> tensors{x};
  for (int i = 0; i < 2; ++i) {
    tensors.push_back(at::empty({x.size(-1)}, x.options()));
    tensors.push_back(at::empty({}, x.options()));
  }
  const auto strides = x.strides().vec();
  run_on(kernel, tensors, x.sizes().vec(), {strides.begin(), strides.end() - 1});
  tensors.erase(tensors.begin());
  return tensors;
}

TEST_P(JitTotal, SumsAndMeansAreNearFloat64) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    for (const auto& sizes : kShapes) {
      const auto kernel = compile_or_fail(totals_spec(sizes.size(), dtype_of(at::empty({0}, type))), GetParam());
      ASSERT_TRUE(kernel);
      const auto x = at::rand(sizes, type) + 0.5;
      const auto rows = x.to(at::kDouble).view({-1, x.size(-1)});
      const auto got = run_totals(*kernel, x);
      const at::Tensor want[] = {rows.sum(0), rows.sum(), rows.mean(0), rows.mean()};
      for (int i = 0; i < 4; ++i)
        EXPECT_LT(((got[i] - want[i]) / want[i]).abs().max().item<double>(), type == at::kFloat ? 5e-7 : 1e-13)
            << x.sizes() << i;
    }
  }
}

// What a row folds and writes, and totals of what came before and after the fold, in one kernel.
TEST_P(JitTotal, BesideWhatRowsFold) {
  for (const int64_t m : {9, 16, 70, 300}) {
    const int64_t n = 150;
    KernelSpec spec;
    spec.sizes = symbolic(2);
    const auto full = [&](Access access) { return spec.add_buffer(DType::kFloat32, access, {kSymbolic, 1}); };
    const int x = full(Access::kIn), y = full(Access::kOut), largest = spec.add_buffer(DType::kFloat32, Access::kOut, {1, 0});
    const int before = spec.add_total(DType::kFloat32, Total::kSum, {0, 1});
    const int after = spec.add_total(DType::kFloat32, Total::kSum, {0, 1});
    const int by_row = spec.add_total(DType::kFloat32, Total::kMean, {0, 0});
    const ValueId value = spec.load(x), peak = spec.reduce(ReduceKind::kMax, value, {1});
    const ValueId powers = spec.unary(Op::k_exp, spec.binary(Op::k_sub, value, peak));
    const ValueId soft = spec.binary(Op::k_div, powers, spec.reduce(ReduceKind::kSum, powers, {1}));
    spec.store(y, soft);
    spec.store(largest, peak);
    spec.store(before, value);
    spec.store(after, soft);
    spec.store(by_row, peak);
    ASSERT_EQ(verify_spec(spec), std::nullopt);
    EXPECT_EQ(parse_spec(print_spec(spec), nullptr), spec);
    const auto kernel = compile_or_fail(spec, GetParam());
    ASSERT_TRUE(kernel);
    const auto in = at::randn({n, m}), out = at::empty_like(in), peaks = at::empty({n});
    const auto first = at::empty({m}), second = at::empty({m}), mean = at::empty({});
    run_on(*kernel, {in, out, peaks, first, second, mean}, {n, m}, {m, m});
    const auto want = in.softmax(1);
    EXPECT_TRUE(at::allclose(out, want, 1e-5, 1e-7));
    EXPECT_TRUE(at::equal(peaks, in.amax(1)));
    EXPECT_TRUE(at::allclose(first, in.sum(0), 1e-5, 1e-5));
    EXPECT_TRUE(at::allclose(second, want.sum(0), 1e-5, 1e-6));
    EXPECT_TRUE(at::allclose(mean, in.amax(1).mean(), 1e-5, 1e-6));
  }
}

// Equal numbers: the roundings of additions in a row would all point the same way.
TEST_P(JitTotal, AddUpAsATree) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    const auto kernel = compile_or_fail(totals_spec(2, dtype_of(at::empty({0}, type))), GetParam());
    ASSERT_TRUE(kernel);
    for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{{1, 16384}, {30000, 8}, {64, 3000}, {4096, 64}}) {
      const auto x = at::full(sizes, 0.1, type);
      const double each = x[0][0].item<double>(), rows = static_cast<double>(sizes[0]), all = rows * static_cast<double>(sizes[1]);
      const auto got = run_totals(*kernel, x);
      const double want[] = {each * rows, each * all, each, each};
      for (int i = 0; i < 4; ++i)
        EXPECT_LT((got[i].to(at::kDouble) / want[i] - 1).abs().max().item<double>(), type == at::kFloat ? 4e-7 : 1e-15)
            << x.sizes() << i;
    }
  }
}

TEST_P(JitTotal, BitsDependOnNothingButSizes) {
  const auto x = at::randn({1000, 77});
  const auto kernel = compile_or_fail(totals_spec(2, DType::kFloat32), GetParam());
  const auto own = compile_or_fail(totals_spec(2, DType::kFloat32));
  ASSERT_TRUE(kernel && own);
  const auto want = run_totals(*own, x);
  const int before = at::get_num_threads();
  for (const int threads : {1, 2, 3, 7}) {
    at::set_num_threads(threads);
    const auto got = run_totals(*kernel, x);
    for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(has_same_bits(got[i], want[i])) << threads;
  }
  at::set_num_threads(before);
  // beside a fold, and of rows that lie apart
  KernelSpec spec;
  spec.sizes = symbolic(2);
  const ValueId value = spec.load(spec.add_buffer(DType::kFloat32, Access::kIn, {kSymbolic, 1}));
  spec.store(spec.add_buffer(DType::kFloat32, Access::kOut, {1, 0}), spec.reduce(ReduceKind::kSum, value, {1}));
  spec.store(spec.add_total(DType::kFloat32, Total::kSum, {0, 1}), value);
  const auto folding = compile_or_fail(spec, GetParam());
  ASSERT_TRUE(folding);
  const auto apart = at::zeros({1000, 100}).slice(1, 0, 77);
  apart.copy_(x);
  const auto total = at::empty({77});
  run_on(*folding, {apart, at::empty({1000}), total}, {1000, 77}, {100});
  EXPECT_TRUE(has_same_bits(total, want[0]));
}

TEST(JitTotal, TheVerifierRefuses) {
  const auto problem_of = [](auto change) {
    KernelSpec spec = totals_spec(2, DType::kFloat32);
    EXPECT_EQ(verify_spec(spec), std::nullopt);
    change(spec);
    return verify_spec(spec).value_or("none");
  };
  EXPECT_EQ(problem_of([](KernelSpec& spec) { spec.buffers[1].strides = {1, 0}; }),
            "b1: a total is broadcast along all dims but the innermost");
  EXPECT_EQ(problem_of([](KernelSpec& spec) { spec.buffers[1].access = Access::kInOut; }), "b1: a total is an output alone");
  EXPECT_EQ(problem_of([](KernelSpec& spec) { spec.buffers[1].streaming = true; }), "b1: a total is not streamed");
  EXPECT_EQ(problem_of([](KernelSpec& spec) { spec.reduce(ReduceKind::kSum, 0, {0}); }),
            "b1: beside a total the innermost dim alone may be reduced");
  KernelSpec whole = totals_spec(1, DType::kInt64);
  EXPECT_EQ(verify_spec(whole), "b1: a total is f32 or f64");
}

}  // namespace
}  // namespace lockstep::dynamic::jit
