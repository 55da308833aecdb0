// Elementary functions against the exact value: 4 units in the last place, everywhere.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>

#include "tests/support/jit_kernels.h"

namespace lockstep::dynamic::jit {
namespace {

constexpr double kBound = 4.0;

// Reference<double> judges float32, Reference<long double> float64.
template <typename T>
T reference(Op op, T x, T y) {
  switch (op) {
    case Op::k_exp: return std::exp(x);
    case Op::k_expm1: return std::expm1(x);
    case Op::k_log: return std::log(x);
    case Op::k_log1p: return std::log1p(x);
    case Op::k_log2: return std::log2(x);
    case Op::k_tanh: return std::tanh(x);
    case Op::k_erf: return std::erf(x);
    case Op::k_sigmoid: {  // zero where exp(-x) overflows in what is judged, as PyTorch's
      const T most = sizeof(T) == sizeof(double) ? T{std::numeric_limits<float>::max()} : T{std::numeric_limits<double>::max()};
      return std::exp(-x) > most ? 0 : 1 / (1 + std::exp(-x));
    }
    case Op::k_sin: return std::sin(x);
    case Op::k_cos: return std::cos(x);
    case Op::k_rsqrt: return 1 / std::sqrt(x);
    case Op::k_pow: return std::pow(x, y);
    default: return std::atan2(x, y);
  }
}

template <typename T>
T from_bits(uint64_t bits) {
  if constexpr (sizeof(T) == 4)
    return std::bit_cast<float>(static_cast<uint32_t>(bits));
  else
    return std::bit_cast<double>(bits);
}

// Any bits, numbers near what programs have, and the special ones.
template <typename T>
at::Tensor make_points(int64_t count, uint64_t seed) {
  at::Tensor points = at::empty({count}, sizeof(T) == 4 ? at::kFloat : at::kDouble);
  T* data = points.mutable_data_ptr<T>();
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(0, 10);
  std::uniform_real_distribution<double> wide(-110, 110);
  const double kSpecial[] = {0.0,
                             -0.0,
                             1.0,
                             -1.0,
                             HUGE_VAL,
                             -HUGE_VAL,
                             std::nan(""),
                             0.5,
                             2.0,
                             88.7228317,
                             88.7228394,
                             -87.3365479,
                             -87.33655,
                             -103.972076,
                             -103.9721,
                             -104.0,
                             709.782712893384,
                             -745.2,
                             1e-45,
                             -1e-45,
                             1e-39,
                             -1e-39,
                             0.999999940395,
                             1.00000011921,
                             -0.999999940395,
                             3.4e38,
                             -3.4e38};
  for (int64_t i = 0; i < count; ++i) {
    switch (random() % 4) {
      case 0: data[i] = from_bits<T>(random()); break;
      case 1: data[i] = static_cast<T>(normal(random)); break;
      case 2: data[i] = static_cast<T>(wide(random)); break;
      default:
        data[i] = i < 400 ? static_cast<T>(kSpecial[i % std::size(kSpecial)]) : static_cast<T>(normal(random) / 16);
    }
  }
  return points;
}

struct Worst {
  double ulp = 0;
  double x = 0, y = 0, got = 0;
};

template <typename T, typename Wide>
double ulp_error(T got, Wide exact) {
  T nearest = static_cast<T>(exact);
  if (std::isnan(exact) || std::isnan(got)) return std::isnan(exact) == std::isnan(got) ? 0 : HUGE_VAL;
  if (std::isinf(nearest) || std::isinf(got)) return got == nearest ? 0 : HUGE_VAL;
  int exponent;
  std::frexp(static_cast<Wide>(nearest == 0 ? std::numeric_limits<T>::denorm_min() : nearest), &exponent);
  int digits = std::numeric_limits<T>::digits;
  int least = std::numeric_limits<T>::min_exponent - digits;
  Wide unit = std::ldexp(Wide{1}, std::max(exponent - digits, least));
  return static_cast<double>(std::fabs(static_cast<Wide>(got) - exact) / unit);
}

template <typename T, typename Wide>
Worst find_worst(Op op, int64_t count, TargetChoice choice) {
  bool is_binary = row_of(op).arity == 2;
  at::Tensor x = make_points<T>(count, 17);
  at::Tensor y = make_points<T>(count, 18);
  std::vector<at::Tensor> operands{x};
  if (is_binary) operands.push_back(y);
  at::Tensor out = run_op(op, operands, choice);
  Worst worst;
  for (int64_t i = 0; i < count; ++i) {
    T a = x.data_ptr<T>()[i];
    T b = y.data_ptr<T>()[i];
    T got = out.data_ptr<T>()[i];
    double ulp = ulp_error<T, Wide>(got, reference<Wide>(op, a, b));
    if (ulp > worst.ulp) worst = {ulp, static_cast<double>(a), static_cast<double>(b), static_cast<double>(got)};
  }
  return worst;
}

const Op kFunctions[] = {Op::k_exp,     Op::k_expm1, Op::k_log, Op::k_log1p, Op::k_log2, Op::k_tanh, Op::k_erf,
                         Op::k_sigmoid, Op::k_sin,   Op::k_cos, Op::k_rsqrt, Op::k_pow,  Op::k_atan2};

TEST(JitMath, Float32IsWithinFourUnits) {
  for (auto choice : {TargetChoice::kHost, TargetChoice::kAvx2}) {
    for (Op op : kFunctions) {
      Worst worst = find_worst<float, double>(op, 1000000, choice);
      EXPECT_LE(worst.ulp, kBound) << row_of(op).name << "(" << worst.x << ", " << worst.y << ") gave " << worst.got;
      RecordProperty(row_of(op).name + std::string(choice == TargetChoice::kHost ? "" : "_avx2"),
                     std::to_string(worst.ulp));
    }
  }
}

TEST(JitMath, Float64IsWithinFourUnits) {
  for (auto choice : {TargetChoice::kHost, TargetChoice::kAvx2}) {
    for (Op op : kFunctions) {
      Worst worst = find_worst<double, long double>(op, 200000, choice);
      EXPECT_LE(worst.ulp, kBound) << row_of(op).name << "(" << worst.x << ", " << worst.y << ") gave " << worst.got;
      RecordProperty(row_of(op).name + std::string(choice == TargetChoice::kHost ? "" : "_avx2"),
                     std::to_string(worst.ulp));
    }
  }
}

// At most twice the error of PyTorch's own, which is .6 to .9.
TEST(JitMath, Float32TurnsAndLogarithmsAreNearlyRounded) {
  for (auto choice : {TargetChoice::kHost, TargetChoice::kAvx2}) {
    for (Op op : {Op::k_sin, Op::k_cos, Op::k_log, Op::k_log2, Op::k_log1p}) {
      Worst worst = find_worst<float, double>(op, 1000000, choice);
      EXPECT_LE(worst.ulp, 1.2) << row_of(op).name << "(" << worst.x << ") gave " << worst.got;
    }
  }
}

// Gradients divide what is left of 1 by what is as small.
TEST(JitMath, CosineIsRoundedNearZero) {
  for (auto choice : {TargetChoice::kHost, TargetChoice::kAvx2}) {
    const at::Tensor x = at::logspace(-8, -2, 100000);
    EXPECT_TRUE(has_same_bits(run_op(Op::k_cos, {x}, choice), x.to(at::kDouble).cos().to(at::kFloat)));
    const at::Tensor tiny = at::logspace(-14, -8.1, 100000, 10, at::kDouble);
    EXPECT_TRUE(run_op(Op::k_cos, {tiny}, choice).eq(1).all().item<bool>());
  }
}

TEST(JitMath, ExpOfNonpositiveIsExp) {
  for (auto choice : {TargetChoice::kHost, TargetChoice::kAvx2}) {
    for (const at::Tensor& points : {make_points<float>(1000000, 19), make_points<double>(200000, 19)}) {
      const at::Tensor x = -points.abs();
      EXPECT_TRUE(has_same_bits(run_op(Op::k_exp_nonpositive, {x}, choice), run_op(Op::k_exp, {x}, choice)));
    }
  }
}

// One ulp of the larger of the two numbers that it is a sum of, however small it is; and PyTorch's zero, one and nan.
TEST(JitMath, NormalCdfIsAsGoodAsASum) {
  for (auto choice : {TargetChoice::kHost, TargetChoice::kAvx2}) {
    const at::Tensor points = at::cat({make_points<float>(1000000, 21), at::linspace(-12, 12, 1000001)});
    for (const auto type : {at::kFloat, at::kDouble}) {
      const at::Tensor x = points.to(type), y = run_op(Op::k_normal_cdf, {x}, choice);
      const at::Tensor exact = at::special_ndtr(x.to(at::kDouble));
      EXPECT_TRUE(has_same_bits(y.isnan(), x.isnan()));
      const double error = (y - exact).nan_to_num(0).abs().max().item<double>();
      EXPECT_LE(error, type == at::kFloat ? 0x1p-23 : 0x1p-51);
      EXPECT_TRUE(y.masked_select(x.lt(-10)).eq(0).all().item<bool>() && y.masked_select(x.gt(10)).eq(1).all().item<bool>());
      EXPECT_TRUE(y.masked_select(x.eq(0)).eq(0.5).all().item<bool>());
    }
  }
}

// Others take roots of what is left of one.
TEST(JitMath, NoSineOrCosineIsAboveOne) {
  for (auto choice : {TargetChoice::kHost, TargetChoice::kAvx2}) {
    for (const auto type : {at::kFloat, at::kDouble}) {
      const at::Tensor small = at::cat({at::logspace(-14, 0, 200000, 10, type), at::full({1}, 6.946403630254949e-13, type)});
      const at::Tensor x = at::cat({small, -small, M_PI_2 + small, M_PI - small, 2 * M_PI + small, at::full({1}, NAN, type)});
      for (Op op : {Op::k_sin, Op::k_cos}) {
        const at::Tensor y = run_op(op, {x}, choice);
        EXPECT_EQ(y.abs().gt(1).sum().item<int64_t>(), 0) << row_of(op).name;
        EXPECT_TRUE(has_same_bits(y.isnan(), x.isnan())) << row_of(op).name;
      }
    }
  }
}

TEST(JitMath, ZerosKeepTheirSign) {
  at::Tensor zeros = at::full({3}, -0.0);
  for (Op op : {Op::k_expm1, Op::k_log1p, Op::k_tanh, Op::k_erf, Op::k_sin, Op::k_floor, Op::k_round, Op::k_trunc}) {
    EXPECT_TRUE(at::signbit(run_op(op, {zeros})).all().item<bool>()) << row_of(op).name;
  }
}

// A value does not depend on the lane or the tail that it falls in.
TEST(JitMath, EveryLaneGivesTheSame) {
  for (Op op : kFunctions) {
    at::Tensor x = make_points<float>(64, 5);
    at::Tensor y = make_points<float>(64, 6);
    bool is_binary = row_of(op).arity == 2;
    at::Tensor all = run_op(op, is_binary ? std::vector<at::Tensor>{x, y} : std::vector<at::Tensor>{x});
    for (int64_t shift : {1, 7, 15}) {
      at::Tensor a = x.slice(0, shift).contiguous();
      at::Tensor b = y.slice(0, shift).contiguous();
      at::Tensor part = run_op(op, is_binary ? std::vector<at::Tensor>{a, b} : std::vector<at::Tensor>{a});
      EXPECT_TRUE(has_same_bits(part, all.slice(0, shift))) << row_of(op).name << shift;
    }
  }
}

}  // namespace
}  // namespace lockstep::dynamic::jit
