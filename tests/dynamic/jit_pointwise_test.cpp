// Pointwise kernels against ATen: exact ops to the bit, strides, tails, types, symbolic sizes, in place.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/jit_kernels.h"

namespace lockstep::dynamic::jit {
namespace {

constexpr TargetChoice kTargets[] = {TargetChoice::kHost, TargetChoice::kAvx2, TargetChoice::kAvx2CopiedTails};
constexpr int64_t kCounts[] = {0, 1, 15, 16, 17, 31, 32, 33, 1000};

using Unary = at::Tensor (*)(const at::Tensor&);
using Binary = at::Tensor (*)(const at::Tensor&, const at::Tensor&);

struct UnaryCase {
  Op op;
  Unary eager;
};
struct BinaryCase {
  Op op;
  Binary eager;
};

// float16 and bfloat16 go by way of float32, as ATen's kernels do.
at::Tensor as_float(Unary eager, const at::Tensor& x) { return eager(x.to(at::kFloat)).to(x.scalar_type()); }

at::Tensor map_doubles(const at::Tensor& x, double (*function)(double)) {
  at::Tensor out = x.to(at::kDouble, false, true).contiguous();
  for (int64_t i = 0; i < out.numel(); ++i) {
    out.mutable_data_ptr<double>()[i] = function(out.data_ptr<double>()[i]);
  }
  return out.to(x.scalar_type());
}

const UnaryCase kFloatUnary[] = {
    {Op::k_neg, [](const at::Tensor& x) { return x.neg(); }},
    {Op::k_abs, [](const at::Tensor& x) { return x.abs(); }},
    {Op::k_relu, [](const at::Tensor& x) { return x.relu(); }},
    {Op::k_sign, [](const at::Tensor& x) { return x.sign(); }},
    // Eager's own comes from MKL and is not always the nearest number.
    {Op::k_sqrt, [](const at::Tensor& x) { return map_doubles(x, [](double a) { return std::sqrt(a); }); }},
    {Op::k_rsqrt, [](const at::Tensor& x) { return x.rsqrt(); }},
    {Op::k_reciprocal, [](const at::Tensor& x) { return x.reciprocal(); }},
    {Op::k_floor, [](const at::Tensor& x) { return x.floor(); }},
    {Op::k_ceil, [](const at::Tensor& x) { return x.ceil(); }},
    {Op::k_round, [](const at::Tensor& x) { return x.round(); }},
    {Op::k_trunc, [](const at::Tensor& x) { return x.trunc(); }},
    {Op::k_isnan, [](const at::Tensor& x) { return x.isnan(); }},
    {Op::k_logical_not, [](const at::Tensor& x) { return x.logical_not(); }},
};

const BinaryCase kFloatBinary[] = {
    {Op::k_add, [](const at::Tensor& x, const at::Tensor& y) { return x.add(y); }},
    {Op::k_sub, [](const at::Tensor& x, const at::Tensor& y) { return x.sub(y); }},
    {Op::k_mul, [](const at::Tensor& x, const at::Tensor& y) { return x.mul(y); }},
    {Op::k_div, [](const at::Tensor& x, const at::Tensor& y) { return x.div(y); }},
    {Op::k_eq, [](const at::Tensor& x, const at::Tensor& y) { return x.eq(y); }},
    {Op::k_ne, [](const at::Tensor& x, const at::Tensor& y) { return x.ne(y); }},
    {Op::k_lt, [](const at::Tensor& x, const at::Tensor& y) { return x.lt(y); }},
    {Op::k_le, [](const at::Tensor& x, const at::Tensor& y) { return x.le(y); }},
    {Op::k_gt, [](const at::Tensor& x, const at::Tensor& y) { return x.gt(y); }},
    {Op::k_ge, [](const at::Tensor& x, const at::Tensor& y) { return x.ge(y); }},
};
// Eager's vectors give nan where the quotient is huge, so these see tame numbers.
const BinaryCase kRemainders[] = {
    {Op::k_fmod, [](const at::Tensor& x, const at::Tensor& y) { return x.fmod(y); }},
    {Op::k_remainder, [](const at::Tensor& x, const at::Tensor& y) { return x.remainder(y); }},
};

class JitPointwise : public testing::TestWithParam<TargetChoice> {};
INSTANTIATE_TEST_SUITE_P(Targets, JitPointwise, testing::ValuesIn(kTargets));

TEST_P(JitPointwise, FloatOpsEqualEagerToTheBit) {
  for (auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    bool is_other = GetParam() != TargetChoice::kHost && GetParam() != TargetChoice::kAvx2;
    if (is_other && type != at::kFloat && type != at::kBFloat16) continue;
    at::Tensor x = special_numbers({1237}, type, 1);
    at::Tensor y = special_numbers({1237}, type, 2);
    for (const UnaryCase& test : kFloatUnary) {
      at::Tensor want = type == at::kDouble || test.op == Op::k_isnan || test.op == Op::k_logical_not
                            ? test.eager(x)
                            : as_float(test.eager, x);
      EXPECT_TRUE(has_same_bits(run_op(test.op, {x}, GetParam()), want)) << row_of(test.op).name << type;
    }
    for (const BinaryCase& test : kFloatBinary) {
      at::Tensor got = run_op(test.op, {x, y}, GetParam());
      EXPECT_TRUE(has_same_bits(got, test.eager(x, y))) << row_of(test.op).name << type;
    }
    at::Tensor a = at::randn({1237}, at::TensorOptions().dtype(type)) * 10;
    at::Tensor b = at::randn({1237}, at::TensorOptions().dtype(type));
    for (const BinaryCase& test : kRemainders) {
      EXPECT_TRUE(has_same_bits(run_op(test.op, {a, b}, GetParam()), test.eager(a, b))) << row_of(test.op).name << type;
    }
  }
}

// Which of two zeros wins is not the same in ATen's vectors and in its tails.
TEST_P(JitPointwise, MinimumAndMaximumKeepNan) {
  for (auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    at::Tensor x = special_numbers({1237}, type, 3);
    at::Tensor y = special_numbers({1237}, type, 4);
    EXPECT_TRUE(has_same_bits(run_op(Op::k_minimum, {x, y}, GetParam()) + 0, at::minimum(x, y) + 0));
    EXPECT_TRUE(has_same_bits(run_op(Op::k_maximum, {x, y}, GetParam()) + 0, at::maximum(x, y) + 0));
  }
}

TEST_P(JitPointwise, IntegerOpsEqualEager) {
  for (auto type : {at::kLong, at::kInt, at::kShort, at::kChar, at::kByte}) {
    at::Tensor x = special_numbers({531}, type, 5);
    at::Tensor y = special_numbers({531}, type, 6);
    for (Op op : {Op::k_neg, Op::k_abs, Op::k_relu, Op::k_sign, Op::k_bitwise_not, Op::k_logical_not}) {
      at::Tensor want = op == Op::k_neg           ? x.neg()
                        : op == Op::k_abs         ? x.abs()
                        : op == Op::k_relu        ? x.relu()
                        : op == Op::k_sign        ? x.sign()
                        : op == Op::k_bitwise_not ? x.bitwise_not()
                                                  : x.logical_not();
      EXPECT_TRUE(has_same_bits(run_op(op, {x}, GetParam()), want)) << row_of(op).name << type;
    }
    const BinaryCase kCases[] = {
        {Op::k_add, [](const at::Tensor& a, const at::Tensor& b) { return a.add(b); }},
        {Op::k_sub, [](const at::Tensor& a, const at::Tensor& b) { return a.sub(b); }},
        {Op::k_mul, [](const at::Tensor& a, const at::Tensor& b) { return a.mul(b); }},
        {Op::k_minimum, [](const at::Tensor& a, const at::Tensor& b) { return at::minimum(a, b); }},
        {Op::k_maximum, [](const at::Tensor& a, const at::Tensor& b) { return at::maximum(a, b); }},
        {Op::k_bit_and, [](const at::Tensor& a, const at::Tensor& b) { return a.bitwise_and(b); }},
        {Op::k_bit_or, [](const at::Tensor& a, const at::Tensor& b) { return a.bitwise_or(b); }},
        {Op::k_bit_xor, [](const at::Tensor& a, const at::Tensor& b) { return a.bitwise_xor(b); }},
        {Op::k_lt, [](const at::Tensor& a, const at::Tensor& b) { return a.lt(b); }},
        {Op::k_ge, [](const at::Tensor& a, const at::Tensor& b) { return a.ge(b); }},
    };
    for (const BinaryCase& test : kCases) {
      EXPECT_TRUE(has_same_bits(run_op(test.op, {x, y}, GetParam()), test.eager(x, y))) << row_of(test.op).name << type;
    }
  }
  at::Tensor p = special_numbers({531}, at::kBool, 7);
  at::Tensor q = special_numbers({531}, at::kBool, 8);
  EXPECT_TRUE(has_same_bits(run_op(Op::k_bit_and, {p, q}, GetParam()), p.logical_and(q)));
  EXPECT_TRUE(has_same_bits(run_op(Op::k_bit_xor, {p, q}, GetParam()), p.logical_xor(q)));
  EXPECT_TRUE(has_same_bits(run_op(Op::k_logical_not, {p}, GetParam()), p.logical_not()));
}

TEST_P(JitPointwise, LargeNumbersLoseTheirUpperBytes) {
  const auto x = at::tensor({4294967301.0, 4294967551.9, -3.0, 255.0, 1e12 + 7, -4294967301.0, 0.9, 256.0}, at::kDouble);
  KernelSpec spec;
  spec.sizes = {8};
  ValueId value = spec.load(spec.add_buffer(DType::kFloat64, Access::kIn, {1}));
  spec.store(spec.add_buffer(DType::kUInt8, Access::kOut, {1}), spec.cast(value, DType::kUInt8));
  at::Tensor out = at::empty({8}, at::kByte);
  auto kernel = compile_or_fail(spec, GetParam());
  ASSERT_TRUE(kernel);
  run_on(*kernel, {x, out});
  EXPECT_TRUE(at::equal(out, x.to(at::kByte))) << out << x.to(at::kByte);
}

TEST_P(JitPointwise, CastsEqualEager) {
  for (int from = 0; from < static_cast<int>(DType::kCount); ++from) {
    auto source = scalar_type_of(static_cast<DType>(from));
    at::Tensor x = special_numbers({333}, source, 9);
    for (int to = 0; to < static_cast<int>(DType::kCount); ++to) {
      auto target = scalar_type_of(static_cast<DType>(to));
      bool loses = at::isFloatingType(source) && !at::isFloatingType(target) && target != at::kBool;
      // Numbers that the target cannot hold have no defined value.
      at::Tensor in =
          loses ? x.to(at::kDouble).nan_to_num(0, 100, 0).clamp(target == at::kByte ? 0 : -100, 100).to(source) : x;
      KernelSpec spec;
      spec.sizes = {333};
      ValueId value = spec.load(spec.add_buffer(static_cast<DType>(from), Access::kIn, {1}));
      spec.store(spec.add_buffer(static_cast<DType>(to), Access::kOut, {1}), spec.cast(value, static_cast<DType>(to)));
      at::Tensor out = at::empty({333}, at::TensorOptions().dtype(target));
      auto kernel = compile_or_fail(spec, GetParam());
      ASSERT_TRUE(kernel);
      run_on(*kernel, {in, out});
      EXPECT_TRUE(has_same_bits(out, in.to(target))) << source << " to " << target;
    }
  }
}

TEST_P(JitPointwise, OneKernelServesAllSizes) {
  KernelSpec spec;
  spec.sizes = {kSymbolic};
  int x = spec.add_buffer(DType::kFloat32, Access::kIn, {1});
  int h = spec.add_buffer(DType::kBFloat16, Access::kIn, {1});
  int out = spec.add_buffer(DType::kFloat32, Access::kOut, {1});
  int rate = spec.add_scalar(DType::kFloat32);
  ValueId product = spec.binary(Op::k_mul, spec.load(x), spec.scalar(rate));
  spec.store(out, spec.binary(Op::k_add, product, spec.cast(spec.load(h), DType::kFloat32)));
  auto kernel = compile_or_fail(spec, GetParam());
  ASSERT_TRUE(kernel);
  for (int64_t count : kCounts) {
    at::Tensor a = at::randn({count});
    at::Tensor b = at::randn({count}).to(at::kBFloat16);
    at::Tensor result = at::full({count + 1}, 7.0);
    ScalarValue value{.real = 0.1};
    run_on(*kernel, {a, b, result}, {count}, {}, {value});
    EXPECT_TRUE(has_same_bits(result.slice(0, 0, count), a * 0.1 + b.to(at::kFloat))) << count;
    EXPECT_EQ(result[count].item<float>(), 7.0f) << "written beyond the end";
  }
}

TEST_P(JitPointwise, BroadcastsStridesAndSymbolicDims) {
  for (int64_t n : {1, 3, 17, 40}) {
    for (int64_t m : {1, 15, 16, 33}) {
      at::Tensor full = at::randn({n, 4, m});
      at::Tensor row = at::randn({m});
      at::Tensor column = at::randn({n, 1, 1});
      at::Tensor turned = at::randn({m, 4, n}).permute({2, 1, 0});
      at::Tensor sparse = at::randn({n, 4, 2 * m}).slice(2, 0, 2 * m, 2);
      at::Tensor want = (full + row) * column - turned * sparse;
      at::Tensor out = at::empty({n, 4, m});
      at::Tensor turned_out = at::empty({m, 4, n}).permute({2, 1, 0});
      for (bool is_symbolic : {false, true}) {
        KernelSpec spec;
        spec.sizes = is_symbolic ? std::vector<int64_t>{kSymbolic, 4, kSymbolic} : std::vector<int64_t>{n, 4, m};
        std::vector<at::Tensor> tensors{full, row, column, turned, sparse, out, turned_out};
        std::vector<int64_t> strides;
        std::vector<ValueId> loads;
        for (size_t i = 0; i < tensors.size(); ++i) {
          std::vector<int64_t> own = strides_for(tensors[i], want.sizes());
          if (is_symbolic) {
            strides.insert(strides.end(), own.begin(), own.begin() + 2);
            bool is_neighbour = own[2] == 1;
            if (!is_neighbour) strides.push_back(own[2]);
            own = {kSymbolic, kSymbolic, is_neighbour ? 1 : kSymbolic};
          }
          int buffer = spec.add_buffer(DType::kFloat32, i < 5 ? Access::kIn : Access::kOut, own);
          if (i < 5) loads.push_back(spec.load(buffer));
        }
        ValueId left = spec.binary(Op::k_mul, spec.binary(Op::k_add, loads[0], loads[1]), loads[2]);
        ValueId value = spec.binary(Op::k_sub, left, spec.binary(Op::k_mul, loads[3], loads[4]));
        spec.store(5, value);
        spec.store(6, value);
        auto kernel = compile_or_fail(spec, GetParam());
        ASSERT_TRUE(kernel);
        out.fill_(0);
        turned_out.fill_(0);
        run_on(*kernel, tensors, is_symbolic ? std::vector<int64_t>{n, m} : std::vector<int64_t>{}, strides);
        EXPECT_TRUE(has_same_bits(out, want)) << n << " " << m << " " << is_symbolic;
        EXPECT_TRUE(has_same_bits(turned_out, want)) << n << " " << m << " " << is_symbolic;
      }
    }
  }
}

// Element i of `bools` as bit `first` + i.
at::Tensor packed(const at::Tensor& bools, int64_t first) {
  const auto flat = bools.flatten();
  at::Tensor bytes = at::zeros({(first + flat.numel()) / 8 + kPackedMargin}, at::kByte);
  for (int64_t i = 0; i < flat.numel(); ++i)
    bytes.data_ptr<uint8_t>()[(first + i) / 8] |= flat.const_data_ptr<bool>()[i] << (first + i) % 8;
  return bytes;
}

TEST_P(JitPointwise, UnpacksBits) {
  for (int64_t n : {1, 3, 17}) {
    for (int64_t m : {1, 15, 16, 17, 33, 64, 100}) {
      at::Tensor x = at::randn({n, m});
      at::Tensor full = at::rand({n, m}) < 0.5, turned = at::rand({m, n}) < 0.5, row = at::rand({m}) < 0.5;
      at::Tensor column = at::rand({n, 1}) < 0.5;
      for (int64_t first : {0, 1, 7, 13}) {
        KernelSpec spec;
        spec.sizes = {kSymbolic, kSymbolic};
        ValueId value = spec.load(spec.add_buffer(DType::kFloat32, Access::kIn, {kSymbolic, 1}));
        const ValueId zero = spec.constant(DType::kFloat32, 0);
        const std::vector<int64_t> strides[] = {{kSymbolic, 1}, {1, kSymbolic}, {0, 1}, {1, 0}};
        for (const auto& of_mask : strides) value = spec.where(spec.load(spec.add_packed(of_mask)), value, zero);
        spec.store(spec.add_buffer(DType::kFloat32, Access::kOut, {kSymbolic, 1}), value);
        auto kernel = compile_or_fail(spec, GetParam());
        ASSERT_TRUE(kernel);
        at::Tensor out = at::empty({n, m});
        std::vector<at::Tensor> bits;
        std::vector<void*> buffers{x.data_ptr()};
        for (const auto& mask : {full, turned, row, column}) {
          bits.push_back(packed(mask, first));
          buffers.push_back(address_of_bit(bits.back().data_ptr(), first));
        }
        buffers.push_back(out.data_ptr());
        const std::vector<int64_t> call_sizes{n, m}, call_strides{m, m, n, m};
        kernel->run({buffers, call_sizes, call_strides, {}});
        const auto wanted = full.logical_and(turned.t()).logical_and(row).logical_and(column);
        EXPECT_TRUE(has_same_bits(out, at::where(wanted, x, at::zeros({})))) << n << " " << m << " " << first;
      }
    }
  }
}

TEST_P(JitPointwise, WritesInPlaceAndPastTheCache) {
  KernelSpec spec;
  spec.sizes = {kSymbolic};
  int x = spec.add_buffer(DType::kFloat32, Access::kInOut, {1}, true);
  int y = spec.add_buffer(DType::kBFloat16, Access::kOut, {1}, true);
  ValueId twice = spec.binary(Op::k_mul, spec.load(x), spec.constant(DType::kFloat32, 2));
  spec.store(x, twice);
  spec.store(y, spec.cast(twice, DType::kBFloat16));
  auto kernel = compile_or_fail(spec, GetParam());
  ASSERT_TRUE(kernel);
  for (int64_t count : {5, 64, 100000}) {
    for (int64_t shift : {0, 1}) {
      at::Tensor a = at::randn({count + shift}).slice(0, shift);
      at::Tensor b = at::empty({count}, at::kBFloat16);
      at::Tensor want = a * 2;
      run_on(*kernel, {a, b}, {count});
      EXPECT_TRUE(has_same_bits(a, want));
      EXPECT_TRUE(has_same_bits(b, want.to(at::kBFloat16)));
    }
  }
}

TEST_P(JitPointwise, IndexesAndSelects) {
  KernelSpec spec;
  spec.sizes = {5, kSymbolic};
  int x = spec.add_buffer(DType::kFloat32, Access::kIn, {kSymbolic, 1});
  int out = spec.add_buffer(DType::kFloat32, Access::kOut, {kSymbolic, 1});
  ValueId is_below = spec.binary(Op::k_ge, spec.index(0), spec.index(1));
  spec.store(out, spec.where(is_below, spec.load(x), spec.constant(DType::kFloat32, 0)));
  auto kernel = compile_or_fail(spec, GetParam());
  ASSERT_TRUE(kernel);
  at::Tensor a = at::randn({5, 37});
  at::Tensor b = at::empty({5, 37});
  run_on(*kernel, {a, b}, {37}, {37, 37});
  EXPECT_TRUE(has_same_bits(b, a.tril()));
}

TEST_P(JitPointwise, FmaRoundsOnce) {
  at::Tensor x = at::randn({1000});
  at::Tensor y = at::randn({1000});
  at::Tensor z = -(x * y);
  at::Tensor want = (x.to(at::kDouble) * y.to(at::kDouble) + z.to(at::kDouble)).to(at::kFloat);
  EXPECT_TRUE(has_same_bits(run_op(Op::k_fma, {x, y, z}, GetParam()), want));
}

TEST(JitPointwise, HasNoPoints) {
  KernelSpec spec;  // a space without dims has one point
  int x = spec.add_buffer(DType::kFloat32, Access::kIn, {});
  int out = spec.add_buffer(DType::kFloat32, Access::kOut, {});
  spec.store(out, spec.unary(Op::k_neg, spec.load(x)));
  auto kernel = compile_or_fail(spec);
  ASSERT_TRUE(kernel);
  at::Tensor a = at::full({}, 3.0);
  at::Tensor b = at::full({}, 0.0);
  run_on(*kernel, {a, b});
  EXPECT_EQ(b.item<float>(), -3.0f);
}

}  // namespace
}  // namespace lockstep::dynamic::jit
