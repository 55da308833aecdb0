// Reductions against float64 and ATen, in all three nests, whole programs with several passes, threads.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "tests/support/jit_kernels.h"

namespace lockstep::dynamic::jit {
namespace {

constexpr TargetChoice kTargets[] = {TargetChoice::kHost, TargetChoice::kAvx2, TargetChoice::kAvx2CopiedTails};

class JitReduce : public testing::TestWithParam<TargetChoice> {};
INSTANTIATE_TEST_SUITE_P(Targets, JitReduce, testing::ValuesIn(kTargets));

std::vector<int64_t> kept_strides(at::IntArrayRef sizes, const std::vector<int>& dims) {
  std::vector<int64_t> strides(sizes.size());
  int64_t next = 1;
  for (int i = static_cast<int>(sizes.size()) - 1; i >= 0; --i) {
    bool is_reduced = std::find(dims.begin(), dims.end(), i) != dims.end();
    strides[i] = is_reduced ? 0 : next;
    if (!is_reduced) next *= sizes[i];
  }
  return strides;
}

std::vector<int64_t> dense_strides(at::IntArrayRef sizes) { return at::empty(sizes).strides().vec(); }

at::Tensor run_reduce(ReduceKind kind, const at::Tensor& x, const std::vector<int>& dims, TargetChoice choice) {
  KernelSpec spec;
  spec.sizes = x.sizes().vec();
  int in = spec.add_buffer(dtype_of(x), Access::kIn, dense_strides(x.sizes()));
  int out = spec.add_buffer(dtype_of(x), Access::kOut, kept_strides(x.sizes(), dims));
  spec.store(out, spec.reduce(kind, spec.load(in), dims));
  std::vector<int64_t> kept;
  for (int i = 0; i < x.dim(); ++i) {
    if (std::find(dims.begin(), dims.end(), i) == dims.end()) kept.push_back(x.size(i));
  }
  at::Tensor result = at::empty(kept, x.options());
  if (auto kernel = compile_or_fail(spec, choice)) run_on(*kernel, {x, result});
  return result;
}

struct Shape {
  std::vector<int64_t> sizes;
  std::vector<int> dims;
};
const Shape kShapes[] = {
    {{7, 33}, {1}},       {{1, 1}, {1}},        {{3, 16}, {1}},          {{5, 70}, {0}},         {{300, 17}, {0}},
    {{4, 3, 35}, {0, 2}}, {{2, 40, 3}, {1}},    {{6, 5, 4}, {0, 1, 2}},  {{100000}, {0}},        {{3, 40000}, {1}},
    {{20000, 5}, {0}},    {{9000, 40}, {0, 1}}, {{40, 2, 3000}, {0, 2}}, {{5, 2049}, {1}},       {{4, 6, 1}, {1, 2}},
    {{0, 5}, {0}},        {{5, 0}, {1}},        {{2, 3, 5, 7}, {0, 2}},  {{2, 3, 5, 7}, {1, 3}}, {{17, 1, 64}, {0}},
};

// The host's own code sees all shapes, the others each fourth.
std::vector<Shape> shapes_for(TargetChoice choice) {
  std::vector<Shape> shapes;
  int at = static_cast<int>(choice);
  for (const Shape& shape : kShapes) {
    if (choice == TargetChoice::kHost || at++ % 4 == 0) shapes.push_back(shape);
  }
  return shapes;
}

TEST_P(JitReduce, SumsAreNearFloat64) {
  at::manual_seed(1);
  for (const Shape& shape : shapes_for(GetParam())) {
    at::Tensor x = at::rand(shape.sizes) + 0.5;
    std::vector<int64_t> dims(shape.dims.begin(), shape.dims.end());
    at::Tensor want = x.to(at::kDouble).sum(dims);
    at::Tensor got = run_reduce(ReduceKind::kSum, x, shape.dims, GetParam());
    double error = want.numel() ? ((got - want) / want.clamp_min(1e-30)).abs().nan_to_num(0).max().item<double>() : 0;
    EXPECT_LT(error, 5e-7) << x.sizes() << " over " << dims;
    at::Tensor half = x.to(at::kBFloat16);
    at::Tensor half_want = half.to(at::kDouble).sum(dims).to(at::kFloat).to(at::kBFloat16);
    EXPECT_TRUE(at::allclose(run_reduce(ReduceKind::kSum, half, shape.dims, GetParam()), half_want, 8e-3));
    at::Tensor doubled = x.to(at::kDouble);
    EXPECT_TRUE(at::allclose(run_reduce(ReduceKind::kSum, doubled, shape.dims, GetParam()), doubled.sum(dims), 1e-13));
  }
}

TEST_P(JitReduce, ExtremesAndWholeNumbersAreExact) {
  for (const Shape& shape : shapes_for(GetParam())) {
    std::vector<int64_t> dims(shape.dims.begin(), shape.dims.end());
    at::Tensor n = special_numbers(shape.sizes, at::kLong, 3);
    EXPECT_TRUE(has_same_bits(run_reduce(ReduceKind::kSum, n, shape.dims, GetParam()), n.sum(dims)));
    at::Tensor p = special_numbers(shape.sizes, at::kBool, 4);
    at::Tensor count = p.to(at::kLong).sum(dims);
    int64_t reduced = 1;
    for (int dim : shape.dims) reduced *= shape.sizes[dim];
    EXPECT_TRUE(has_same_bits(run_reduce(ReduceKind::kAny, p, shape.dims, GetParam()), count.gt(0)));
    EXPECT_TRUE(has_same_bits(run_reduce(ReduceKind::kAll, p, shape.dims, GetParam()), count.eq(reduced)));
    if (n.numel() == 0) continue;
    for (auto type : {at::kFloat, at::kBFloat16, at::kByte, at::kInt}) {
      if (type != at::kFloat && (n.dim() > 2 || n.numel() > 10000)) continue;
      for (bool with_nan : {false, true}) {
        if (with_nan && !at::isFloatingType(type)) continue;
        at::Tensor x = special_numbers(shape.sizes, type, 5);
        if (!with_nan && at::isFloatingType(type)) x = x.nan_to_num(1, 1e38, -1e38);
        EXPECT_TRUE(has_same_bits(run_reduce(ReduceKind::kMax, x, shape.dims, GetParam()), x.amax(dims)))
            << type << x.sizes();
        const at::Tensor numbers = at::isFloatingType(type) ? x.masked_fill(x.isnan(), -HUGE_VAL) : x;
        EXPECT_TRUE(has_same_bits(run_reduce(ReduceKind::kMaxNumber, x, shape.dims, GetParam()), numbers.amax(dims)))
            << type << x.sizes();
        EXPECT_TRUE(has_same_bits(run_reduce(ReduceKind::kMin, x, shape.dims, GetParam()), x.amin(dims)))
            << type << x.sizes();
      }
    }
  }
  at::Tensor small = at::rand({20, 37}) + 0.5;
  EXPECT_TRUE(at::allclose(run_reduce(ReduceKind::kProd, small, {1}, GetParam()), small.prod(1), 1e-5));
  EXPECT_TRUE(at::allclose(run_reduce(ReduceKind::kProd, small, {0}, GetParam()), small.prod(0), 1e-5));
}

// softmax over `dims` of a space whose first size may be symbolic.
KernelSpec softmax_spec(std::vector<int64_t> sizes, std::vector<int64_t> strides, const std::vector<int>& dims,
                        bool log) {
  KernelSpec spec;
  spec.sizes = std::move(sizes);
  int x = spec.add_buffer(DType::kFloat32, Access::kIn, strides);
  int y = spec.add_buffer(DType::kFloat32, Access::kOut, strides);
  ValueId value = spec.load(x);
  ValueId shifted = spec.binary(Op::k_sub, value, spec.reduce(ReduceKind::kMax, value, dims));
  ValueId e = spec.unary(Op::k_exp, shifted);
  ValueId sum = spec.reduce(ReduceKind::kSum, e, dims);
  spec.store(y, log ? spec.binary(Op::k_sub, shifted, spec.unary(Op::k_log, sum)) : spec.binary(Op::k_div, e, sum));
  return spec;
}

TEST_P(JitReduce, SoftmaxAlongAnyDim) {
  for (bool log : {false, true}) {
    for (const Shape& shape : {Shape{{6, 50}, {1}}, Shape{{3, 20, 33}, {1}}, Shape{{4, 50000}, {1}},
                               Shape{{30, 7}, {0}}, Shape{{5000, 3}, {0}}, Shape{{5, 1000}, {1}}}) {
      at::Tensor x = at::randn(shape.sizes) * 3;
      at::Tensor y = at::empty_like(x);
      auto kernel = compile_or_fail(softmax_spec(shape.sizes, dense_strides(shape.sizes), shape.dims, log), GetParam());
      ASSERT_TRUE(kernel);
      run_on(*kernel, {x, y});
      at::Tensor want = log ? x.log_softmax(shape.dims[0]) : x.softmax(shape.dims[0]);
      EXPECT_TRUE(at::allclose(y, want, 1e-5, 1e-6)) << x.sizes() << log << (y - want).abs().max();
    }
  }
}

// Several short rows go through each pass together; what comes out is what each alone comes to, in place, too.
TEST_P(JitReduce, ShortRowsGiveTheBitsThatEachGivesAlone) {
  for (int64_t width : {1, 7, 50, 128, 300, 1000}) {
    const at::Tensor x = at::randn({21, width}) * 3;
    at::Tensor alone = at::empty_like(x);
    auto row_kernel = compile_or_fail(softmax_spec({1, width}, {width, 1}, {1}, false), GetParam());
    ASSERT_TRUE(row_kernel);
    for (int64_t row = 0; row < x.size(0); ++row) run_on(*row_kernel, {x[row], alone[row]});
    const std::vector<int64_t> sizes = x.sizes().vec(), any(2, kSymbolic);
    for (bool is_symbolic : {false, true}) {
      const KernelSpec spec = softmax_spec(is_symbolic ? any : sizes, {is_symbolic ? kSymbolic : width, 1}, {1}, false);
      auto kernel = compile_or_fail(spec, GetParam());
      ASSERT_TRUE(kernel);
      at::Tensor y = at::empty_like(x);
      if (is_symbolic) {
        run_on(*kernel, {x, y}, sizes, {width, width});
      } else {
        run_on(*kernel, {x, y});
      }
      EXPECT_TRUE(has_same_bits(y, alone)) << width << is_symbolic;
    }
    KernelSpec in_place;
    in_place.sizes = sizes;
    const int b = in_place.add_buffer(DType::kFloat32, Access::kInOut, {width, 1});
    const ValueId value = in_place.load(b);
    const ValueId shifted = in_place.binary(Op::k_sub, value, in_place.reduce(ReduceKind::kMax, value, {1}));
    const ValueId e = in_place.unary(Op::k_exp, shifted);
    in_place.store(b, in_place.binary(Op::k_div, e, in_place.reduce(ReduceKind::kSum, e, {1})));
    auto kernel = compile_or_fail(in_place, GetParam());
    ASSERT_TRUE(kernel);
    at::Tensor z = x.clone();
    run_on(*kernel, {z});
    EXPECT_TRUE(has_same_bits(z, alone)) << width;
  }
}

// Where rows are empty no pass comes to their sums: each is 0 all the same, whatever other rows left in memory.
TEST_P(JitReduce, SumsOfEmptyRowsAreZero) {
  KernelSpec spec;
  spec.sizes = {kSymbolic, kSymbolic};
  const int in = spec.add_buffer(DType::kFloat32, Access::kIn, {kSymbolic, 1});
  const int out = spec.add_buffer(DType::kFloat32, Access::kOut, {1, 0});
  const ValueId value = spec.load(in);
  const ValueId rest = spec.binary(Op::k_sub, value, spec.reduce(ReduceKind::kMax, value, {1}));
  spec.store(out, spec.reduce(ReduceKind::kSum, rest, {1}));
  auto kernel = compile_or_fail(spec, GetParam());
  ASSERT_TRUE(kernel);
  for (const int64_t width : {50, 0}) {
    const at::Tensor x = at::randn({21, width});
    at::Tensor sums = at::full({21}, 7.0f);
    run_on(*kernel, {x, sums}, {21, width}, {width});
    if (width == 0) EXPECT_TRUE(has_same_bits(sums, at::zeros({21}))) << sums;
  }
}

TEST_P(JitReduce, OneKernelServesAllRows) {
  auto kernel = compile_or_fail(softmax_spec({kSymbolic, kSymbolic}, {kSymbolic, 1}, {1}, false), GetParam());
  auto columns = compile_or_fail(softmax_spec({kSymbolic, kSymbolic}, {kSymbolic, 1}, {0}, false), GetParam());
  ASSERT_TRUE(kernel && columns);
  for (int64_t n : {0, 1, 5, 40}) {
    for (int64_t m : {1, 15, 16, 31, 1000, 20000}) {
      at::Tensor x = at::randn({n, m});
      at::Tensor y = at::empty_like(x);
      run_on(*kernel, {x, y}, {n, m}, {m, m});
      EXPECT_TRUE(at::allclose(y, x.softmax(1), 1e-5, 1e-6)) << n << " " << m;
      run_on(*columns, {x, y}, {n, m}, {m, m});
      EXPECT_TRUE(at::allclose(y, x.softmax(0), 1e-5, 1e-6)) << n << " " << m;
    }
  }
}

TEST_P(JitReduce, LayerNormForwardAndBackward) {
  for (int64_t m : {1, 20, 256, 5000}) {
    int64_t n = 37;
    at::Tensor x = at::randn({n, m}), w = at::randn({m}), b = at::randn({m}), g = at::randn({n, m});
    at::Tensor y = at::empty({n, m}), mean = at::empty({n, 1}), rstd = at::empty({n, 1}), dx = at::empty({n, m});
    at::Tensor dw = at::empty({m}), db = at::empty({m});
    KernelSpec spec;
    spec.sizes = {n, m};
    auto full = [&](Access access) { return spec.add_buffer(DType::kFloat32, access, {m, 1}); };
    auto row = [&](Access access) { return spec.add_buffer(DType::kFloat32, access, {1, 0}); };
    auto column = [&](Access access) { return spec.add_buffer(DType::kFloat32, access, {0, 1}); };
    auto number = [&](double value) { return spec.constant(DType::kFloat32, value); };
    auto op = [&](Op o, ValueId l, ValueId r) { return spec.binary(o, l, r); };
    int xb = full(Access::kIn), wb = column(Access::kIn), bb = column(Access::kIn);
    int yb = full(Access::kOut), mb = row(Access::kOut), rb = row(Access::kOut);
    ValueId xv = spec.load(xb);
    ValueId mu = op(Op::k_mul, spec.reduce(ReduceKind::kSum, xv, {1}), number(1.0 / m));
    ValueId centered = op(Op::k_sub, xv, mu);
    ValueId var = op(Op::k_mul, spec.reduce(ReduceKind::kSum, op(Op::k_mul, centered, centered), {1}), number(1.0 / m));
    ValueId r = spec.unary(Op::k_rsqrt, op(Op::k_add, var, number(1e-5)));
    ValueId scaled = op(Op::k_mul, op(Op::k_mul, centered, r), spec.load(wb));
    spec.store(yb, op(Op::k_add, scaled, spec.load(bb)));
    spec.store(mb, mu);
    spec.store(rb, r);
    auto forward = compile_or_fail(spec, GetParam());
    ASSERT_TRUE(forward);
    run_on(*forward, {x, w, b, y, mean, rstd});
    auto [y0, mean0, rstd0] = at::native_layer_norm(x, {m}, w, b, 1e-5);
    EXPECT_TRUE(at::allclose(y, y0, 1e-4, 2e-5)) << m;
    EXPECT_TRUE(at::allclose(mean, mean0, 1e-5, 1e-6));
    EXPECT_TRUE(at::allclose(rstd, rstd0, 1e-4, 1e-5));

    spec = {};
    spec.sizes = {n, m};
    int gb = full(Access::kIn);
    xb = full(Access::kIn), mb = row(Access::kIn), rb = row(Access::kIn), wb = column(Access::kIn);
    int dxb = full(Access::kOut);
    ValueId rv = spec.load(rb);
    ValueId hat = op(Op::k_mul, op(Op::k_sub, spec.load(xb), spec.load(mb)), rv);
    ValueId gw = op(Op::k_mul, spec.load(gb), spec.load(wb));
    ValueId m1 = op(Op::k_mul, spec.reduce(ReduceKind::kSum, gw, {1}), number(1.0 / m));
    ValueId m2 = op(Op::k_mul, spec.reduce(ReduceKind::kSum, op(Op::k_mul, gw, hat), {1}), number(1.0 / m));
    spec.store(dxb, op(Op::k_mul, op(Op::k_sub, op(Op::k_sub, gw, m1), op(Op::k_mul, hat, m2)), rv));
    auto backward = compile_or_fail(spec, GetParam());
    ASSERT_TRUE(backward);
    run_on(*backward, {g, x, mean0, rstd0, w, dx});

    spec = {};  // gradients of weight and bias: both folded down the rows
    spec.sizes = {n, m};
    gb = full(Access::kIn), xb = full(Access::kIn), mb = row(Access::kIn), rb = row(Access::kIn);
    int dwb = column(Access::kOut), dbb = column(Access::kOut);
    hat = op(Op::k_mul, op(Op::k_sub, spec.load(xb), spec.load(mb)), spec.load(rb));
    ValueId gv = spec.load(gb);
    spec.store(dwb, spec.reduce(ReduceKind::kSum, op(Op::k_mul, gv, hat), {0}));
    spec.store(dbb, spec.reduce(ReduceKind::kSum, gv, {0}));
    auto weights = compile_or_fail(spec, GetParam());
    ASSERT_TRUE(weights);
    run_on(*weights, {g, x, mean0, rstd0, dw, db});
    auto [dx0, dw0, db0] = at::native_layer_norm_backward(g, x, {m}, mean0, rstd0, w, b, {true, true, true});
    EXPECT_TRUE(at::allclose(dx, dx0, 1e-4, 2e-4)) << m << (dx - dx0).abs().max();
    EXPECT_TRUE(at::allclose(dw, dw0, 1e-4, 1e-4));
    EXPECT_TRUE(at::allclose(db, db0, 1e-4, 1e-4));
  }
}

// Statistics over N and HW around C, running statistics in place, the normalised result: one spec.
TEST_P(JitReduce, BatchNormTraining) {
  for (bool channels_last : {false, true}) {
    int64_t n = 6, c = 19, s = 35;
    at::Tensor x = at::randn({n, c, s}) * 2 + 1, w = at::randn({c}), b = at::randn({c});
    at::Tensor running = at::randn({c}), variance = at::rand({c});
    at::Tensor want_mean = running.clone(), want_variance = variance.clone();
    at::Tensor want = std::get<0>(at::native_batch_norm(x, w, b, want_mean, want_variance, true, 0.1, 1e-5));
    at::Tensor in = channels_last ? x.permute({0, 2, 1}).contiguous() : x;
    at::Tensor out = at::empty_like(in);
    KernelSpec spec;
    spec.sizes = in.sizes().vec();
    std::vector<int> dims = channels_last ? std::vector<int>{0, 1} : std::vector<int>{0, 2};
    std::vector<int64_t> channel = channels_last ? std::vector<int64_t>{0, 0, 1} : std::vector<int64_t>{0, 1, 0};
    auto number = [&](double value) { return spec.constant(DType::kFloat32, value); };
    auto op = [&](Op o, ValueId l, ValueId r) { return spec.binary(o, l, r); };
    int xb = spec.add_buffer(DType::kFloat32, Access::kIn, in.strides().vec());
    int wb = spec.add_buffer(DType::kFloat32, Access::kIn, channel);
    int bb = spec.add_buffer(DType::kFloat32, Access::kIn, channel);
    int mb = spec.add_buffer(DType::kFloat32, Access::kInOut, channel);
    int vb = spec.add_buffer(DType::kFloat32, Access::kInOut, channel);
    int yb = spec.add_buffer(DType::kFloat32, Access::kOut, in.strides().vec());
    double count = n * s;
    ValueId xv = spec.load(xb);
    ValueId mean = op(Op::k_mul, spec.reduce(ReduceKind::kSum, xv, dims), number(1 / count));
    ValueId centered = op(Op::k_sub, xv, mean);
    ValueId squares = spec.reduce(ReduceKind::kSum, op(Op::k_mul, centered, centered), dims);
    ValueId var = op(Op::k_mul, squares, number(1 / count));
    ValueId r = spec.unary(Op::k_rsqrt, op(Op::k_add, var, number(1e-5)));
    spec.store(yb, op(Op::k_add, op(Op::k_mul, op(Op::k_mul, centered, r), spec.load(wb)), spec.load(bb)));
    spec.store(mb, op(Op::k_add, op(Op::k_mul, spec.load(mb), number(0.9)), op(Op::k_mul, mean, number(0.1))));
    ValueId unbiased = op(Op::k_mul, squares, number(1 / (count - 1)));
    spec.store(vb, op(Op::k_add, op(Op::k_mul, spec.load(vb), number(0.9)), op(Op::k_mul, unbiased, number(0.1))));
    auto kernel = compile_or_fail(spec, GetParam());
    ASSERT_TRUE(kernel);
    run_on(*kernel, {in, w, b, running, variance, out});
    EXPECT_TRUE(at::allclose(channels_last ? out.permute({0, 2, 1}) : out, want, 1e-4, 1e-5));
    EXPECT_TRUE(at::allclose(running, want_mean, 1e-5, 1e-6));
    EXPECT_TRUE(at::allclose(variance, want_variance, 1e-5, 1e-6));
  }
}

// Cross entropy picks the label's logit by index.
TEST_P(JitReduce, CrossEntropyByIndex) {
  int64_t n = 50, c = 77;
  at::Tensor x = at::randn({n, c});
  at::Tensor label = at::randint(c, {n}, at::kLong);
  at::Tensor loss = at::empty({n});
  KernelSpec spec;
  spec.sizes = {n, c};
  int xb = spec.add_buffer(DType::kFloat32, Access::kIn, {c, 1});
  int lb = spec.add_buffer(DType::kInt64, Access::kIn, {1, 0});
  int ob = spec.add_buffer(DType::kFloat32, Access::kOut, {1, 0});
  ValueId xv = spec.load(xb);
  ValueId shifted = spec.binary(Op::k_sub, xv, spec.reduce(ReduceKind::kMax, xv, {1}));
  ValueId sum = spec.reduce(ReduceKind::kSum, spec.unary(Op::k_exp, shifted), {1});
  ValueId picked =
      spec.where(spec.binary(Op::k_eq, spec.index(1), spec.load(lb)), shifted, spec.constant(DType::kFloat32, 0));
  spec.store(ob, spec.binary(Op::k_sub, spec.unary(Op::k_log, sum), spec.reduce(ReduceKind::kSum, picked, {1})));
  auto kernel = compile_or_fail(spec, GetParam());
  ASSERT_TRUE(kernel);
  run_on(*kernel, {x, label, loss});
  EXPECT_TRUE(at::allclose(loss, at::cross_entropy_loss(x, label, {}, 0), 1e-5, 1e-5));
}

TEST(JitReduce, ResultsDoNotDependOnThreads) {
  int before = at::get_num_threads();
  for (const Shape& shape :
       {Shape{{3000000}, {0}}, Shape{{100000, 33}, {0}}, Shape{{2, 500000}, {1}}, Shape{{300, 700}, {1}}}) {
    at::Tensor x = at::randn(shape.sizes);
    std::vector<at::Tensor> results, soft;
    auto kernel = compile_or_fail(softmax_spec(shape.sizes, dense_strides(shape.sizes), shape.dims, false));
    for (int threads : {1, 2, 3, 7}) {
      at::set_num_threads(threads);
      results.push_back(run_reduce(ReduceKind::kSum, x, shape.dims, TargetChoice::kHost));
      soft.push_back(at::empty_like(x));
      run_on(*kernel, {x, soft.back()});
      EXPECT_TRUE(has_same_bits(results.back(), results.front())) << x.sizes() << threads;
      EXPECT_TRUE(has_same_bits(soft.back(), soft.front())) << x.sizes() << threads;
    }
    at::set_num_threads(before);
    EXPECT_TRUE(at::allclose(soft[0], x.softmax(shape.dims[0]), 1e-4, 1e-7));
    at::Tensor narrow = run_reduce(ReduceKind::kSum, x, shape.dims, TargetChoice::kAvx2);
    EXPECT_TRUE(has_same_bits(narrow, results.front())) << "AVX2 adds in another order";
  }
}

}  // namespace
}  // namespace lockstep::dynamic::jit
