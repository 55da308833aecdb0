#include "dynamic/kernels/product.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "dynamic/kernels/kernel_choice.h"
#include "dynamic/kernels/shared_product.h"
#include "tests/support/helped_board.h"

namespace lockstep::dynamic {
namespace {

struct Products : testing::Test {
  void SetUp() override {
    setenv("LOCKSTEP_CACHE", "", 1);
    forget_choices();
    at::manual_seed(0);
  }
};

constexpr int kSkinnyWay = 2, kSharedWay = 4;
constexpr int kEnough = 10;  // calls, so that each way was taken and the choice is used

at::Tensor matrix(int64_t rows, int64_t columns, bool turned) {
  return turned ? at::randn({columns, rows}).t() : at::randn({rows, columns});
}

void expect_near(const at::Tensor& own, const at::Tensor& exact) {
  ASSERT_EQ(own.sizes(), exact.sizes());
  EXPECT_TRUE(own.is_contiguous());
  EXPECT_LE((own.to(at::kDouble) - exact).abs().max().item<double>(), 1e-5 * exact.abs().max().item<double>());
}

TEST_F(Products, BothWaysAgreeWhateverTheLayouts) {
  for (const bool left_turned : {false, true}) {
    for (const bool right_turned : {false, true}) {
      const auto left = matrix(150, 210, left_turned), right = matrix(210, 190, right_turned), bias = at::randn({190});
      const auto exact = left.to(at::kDouble).mm(right.to(at::kDouble));
      for (int call = 0; call < kEnough; ++call) {
        torch::jit::Stack stack{left, right};
        ASSERT_TRUE(try_mm(stack));
        ASSERT_EQ(stack.size(), 1u);
        expect_near(stack[0].toTensor(), exact);
        torch::jit::Stack with_bias{bias, left, right, 1, 1};
        ASSERT_TRUE(try_addmm(with_bias));
        expect_near(with_bias[0].toTensor(), exact + bias.to(at::kDouble));
      }
    }
  }
}

// Where a way is not allowed, the product is as eager makes it.
void expect_ways_agree(int64_t rows, int64_t depth, int64_t columns) {
  for (const bool left_turned : {false, true}) {
    for (const bool right_turned : {false, true}) {
      const auto left = matrix(rows, depth, left_turned), right = matrix(depth, columns, right_turned);
      const auto exact = left.to(at::kDouble).mm(right.to(at::kDouble));
      for (const int way : {0, 1, 2, 3, 4}) {
        forced_way = way;
        torch::jit::Stack stack{left, right};
        ASSERT_TRUE(try_mm(stack));
        expect_near(stack[0].toTensor(), exact);
      }
      forced_way = -1;
    }
  }
}

// Three digits, as named by the user; nothing is rounded where it was not named.
TEST_F(Products, RoundedOnesOnlyWhereTheyAreNamed) {
  const auto left = at::randn({300, 500}), right = at::randn({500, 400}), bias = at::randn({400});
  const auto lefts = at::randn({6, 200, 300}), rights = at::randn({6, 300, 150});
  const auto exact = left.to(at::kDouble).mm(right.to(at::kDouble)) + bias.to(at::kDouble);
  const auto exacts = lefts.to(at::kDouble).bmm(rights.to(at::kDouble));
  constexpr int kRounded = 5;
  for (const bool is_named : {false, true}) {
    const RoundedProductsScope named(is_named);
    const bool is_rounded = is_named && __builtin_cpu_supports("avx512bf16");
    forced_way = kRounded;
    torch::jit::Stack with_bias{bias, left, right, 1, 1}, many{lefts, rights};
    ASSERT_TRUE(try_addmm(with_bias));
    ASSERT_TRUE(try_bmm(many));
    forced_way = -1;
    for (const auto& [own, sought] : {std::pair(with_bias[0].toTensor(), exact), std::pair(many[0].toTensor(), exacts)}) {
      const double error = (own.to(at::kDouble) - sought).abs().max().item<double>() / sought.abs().max().item<double>();
      EXPECT_LE(error, is_rounded ? 1e-2 : 1e-6);
      if (is_rounded) {
        EXPECT_GT(error, 1e-5);
      }
      EXPECT_EQ(own.scalar_type(), at::kFloat);
      EXPECT_TRUE(own.is_contiguous());
    }
  }
}

// Each way on every shape: rows and columns that fill no register, tile or block.
TEST_F(Products, SkinnyOnes) {
  for (const int64_t rows : {1, 7, 33}) {
    expect_ways_agree(rows, 700, 500);
    expect_ways_agree(rows, 200, 2001);
    expect_ways_agree(rows, 37, 7200);
    expect_ways_agree(rows, 3000, 100);
  }
}

// Of 4096 products, one after the other, the sum would be off by 1.1e-6.
TEST_F(Products, DeepOnesLoseNoMoreThanShortOnes) {
  for (const bool right_turned : {false, true}) {
    const auto left = matrix(96, 4096, false), right = matrix(4096, 32, right_turned);
    const auto exact = left.to(at::kDouble).mm(right.to(at::kDouble));
    forced_way = kSkinnyWay;
    torch::jit::Stack stack{left, right};
    ASSERT_TRUE(try_mm(stack));
    forced_way = -1;
    const auto error = stack[0].toTensor().to(at::kDouble) - exact;
    EXPECT_LE(error.norm().item<double>(), 4e-7 * exact.norm().item<double>());
  }
}

// What has one row or column lies in memory both ways at once.
TEST_F(Products, ThinOnes) {
  expect_ways_agree(3000, 1, 2000);
  expect_ways_agree(5000, 1000, 1);
  expect_ways_agree(1, 2000, 3000);
  expect_ways_agree(128, 40000, 1);
  expect_ways_agree(1, 40000, 128);
}

TEST_F(Products, Batches) {
  for (const auto& [rows, depth, columns] : {std::tuple<int64_t, int64_t, int64_t>{50, 33, 65}, {7, 130, 40}, {96, 24, 96}}) {
    for (const bool left_turned : {false, true}) {
      for (const bool right_turned : {false, true}) {
        const auto make = [](int64_t m, int64_t n, bool turned) {
          const auto all = turned ? at::randn({30, n, m}).transpose(1, 2) : at::randn({30, m, n});
          return all.slice(0, 3, 27);
        };
        const auto left = make(rows, depth, left_turned), right = make(depth, columns, right_turned);
        const auto exact = left.to(at::kDouble).bmm(right.to(at::kDouble));
        for (const int way : {0, 2, 4}) {
          forced_way = way;
          torch::jit::Stack stack{left, right};
          ASSERT_TRUE(try_bmm(stack));
          expect_near(stack[0].toTensor(), exact);
          torch::jit::Stack repeated{left, right.slice(0, 0, 1).expand_as(right)};
          ASSERT_TRUE(try_bmm(repeated));
          expect_near(repeated[0].toTensor(), left.to(at::kDouble).matmul(right.select(0, 0).to(at::kDouble)));
        }
        forced_way = -1;
      }
    }
  }
  torch::jit::Stack strided{at::randn({24, 50, 40}), at::randn({24, 80, 80}).slice(1, 0, 80, 2).slice(2, 0, 80, 2)};
  EXPECT_FALSE(try_bmm(strided)) << "neither rows nor columns are dense";
  torch::jit::Stack unfit{at::randn({24, 50, 40}), at::randn({24, 50, 40})};
  EXPECT_FALSE(try_bmm(unfit)) << "eager says so";
}

TEST_F(Products, ThreadsChangeNoBitsOfStrips) {
  const auto left = matrix(30, 400, false), right = matrix(400, 330, false), turned = matrix(400, 330, true);
  forced_way = 2;
  const int before = at::get_num_threads();
  std::vector<at::Tensor> results;
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    for (const auto& other : {right, turned}) {
      torch::jit::Stack stack{left, other};
      ASSERT_TRUE(try_mm(stack));
      results.push_back(stack[0].toTensor());
    }
  }
  at::set_num_threads(before);
  forced_way = -1;
  for (size_t i = 2; i < results.size(); ++i) EXPECT_TRUE(at::equal(results[i], results[i % 2]));
}

struct PartSizes {
  int64_t count, rows, depth, columns;
};

// Sizes that divide into parts and such that do not, factors that lie either way, also one factor for all.
TEST_F(Products, InPartsWhoeverComputes) {
  if (!has_shared_products()) GTEST_SKIP() << "no BLAS";
  const HelpedBoard board;
  for (const auto& [count, rows, depth, columns] : std::vector<PartSizes>{
           {1, 1, 1, 1}, {4, 48, 96, 300}, {3, 700, 65, 40}, {9, 130, 64, 129}, {2, 1, 5000, 333}, {5, 257, 33, 1}, {1, 1030, 70, 520}})
    for (const bool left_turned : {false, true})
      for (const bool right_turned : {false, true})
        for (const bool is_one : {false, true}) {
          SCOPED_TRACE(testing::Message() << count << " x " << rows << " " << depth << " " << columns << left_turned << right_turned << is_one);
          const auto many = [&](int64_t n, int64_t m, bool turned) {
            return turned ? at::randn({count, m, n}).transpose(1, 2) : at::randn({count, n, m});
          };
          const auto left = is_one ? matrix(rows, depth, left_turned).unsqueeze(0).expand({count, rows, depth})
                                   : many(rows, depth, left_turned);
          const auto right = many(depth, columns, right_turned);
          ASSERT_TRUE(are_dense(left) && are_dense(right));
          const auto exact = left.to(at::kDouble).matmul(right.to(at::kDouble));
          const auto all = multiply_all_in_parts(left, right), sum = sum_products_in_parts(left, right);
          expect_near(all, exact);
          expect_near(sum, exact.sum(0));
          const auto bias = at::randn({columns});
          const auto one = matrix(rows, depth, left_turned), other = matrix(depth, columns, right_turned);
          const auto shifted = multiply_in_parts(one, other, bias);
          expect_near(shifted, one.to(at::kDouble).matmul(other.to(at::kDouble)) + bias.to(at::kDouble));
          for (int i = 0; i < 3; ++i) {
            EXPECT_TRUE(all.equal(multiply_all_in_parts(left, right)));
            EXPECT_TRUE(sum.equal(sum_products_in_parts(left, right)));
            EXPECT_TRUE(shifted.equal(multiply_in_parts(one, other, bias)));
          }
        }
  EXPECT_GT(board.helped(), 0);
}

// What is added at once has the bits of the product and the sum one after the other.
TEST_F(Products, AreAddedAsTheyAreMade) {
  const HelpedBoard board;
  const int before = at::get_num_threads();
  at::set_num_threads(2);
  for (const int way : {kSkinnyWay, kSharedWay})
    for (const auto& [count, rows, depth, columns] :
         std::vector<PartSizes>{{1, 192, 24, 768}, {1, 130, 260, 128}, {1, 37, 64, 400}, {1, 700, 60, 96}, {1, 1024, 128, 48}})
      for (const bool left_turned : {false, true})
        for (const bool right_turned : {false, true}) {
          SCOPED_TRACE(testing::Message() << way << ": " << rows << " " << depth << " " << columns << left_turned << right_turned);
          const auto left = matrix(rows, depth, left_turned), right = matrix(depth, columns, right_turned);
          const auto room = at::randn({rows + 5, columns});
          const auto whole = room.clone(), total = whole.slice(0, 3, rows + 3);
          forced_way = way;
          torch::jit::Stack stack{left, right};
          ASSERT_TRUE(try_mm(stack));
          const bool is_added = try_add_mm(total, left, right);
          forced_way = -1;
          const bool can_be_added = way == kSkinnyWay ? !right_turned && rows * depth * columns <= 1 << 24
                                                      : has_shared_products() && rows * depth * columns >= 2 * kSmallestPart;
          EXPECT_EQ(is_added, can_be_added);
          const auto expected = room.slice(0, 3, rows + 3).clone();
          if (is_added) expected.add_(stack[0].toTensor());
          EXPECT_TRUE(total.equal(expected));
          EXPECT_TRUE(whole.slice(0, 0, 3).equal(room.slice(0, 0, 3)) && whole.slice(0, rows + 3).equal(room.slice(0, rows + 3)));
        }
  at::set_num_threads(before);
}

TEST_F(Products, AreNotAddedWhereThatIsNotKnownToBeFast) {
  const auto left = matrix(192, 24, true), right = matrix(24, 768, false), total = at::zeros({192, 768});
  EXPECT_FALSE(try_add_mm(total, left, right)) << "not measured yet";
  for (const int way : {0, 1, 3}) {
    forced_way = way;
    EXPECT_FALSE(try_add_mm(total, left, right)) << way;
  }
  forced_way = kSkinnyWay;
  const auto odd = matrix(24, 767, false);
  EXPECT_FALSE(try_add_mm(at::zeros({192, 767}), left, odd)) << "some lanes are left over";
  EXPECT_FALSE(try_add_mm(at::zeros({768}), left, right)) << "repeated for each row";
  EXPECT_FALSE(try_add_mm(at::zeros({192, 768}, at::kDouble), left, right));
  EXPECT_FALSE(try_add_mm(at::zeros({768, 192}).t(), left, right)) << "in columns";
  {
    const FixedChoiceScope fixed(true);
    EXPECT_FALSE(try_add_mm(total, left, right)) << "as eager does it";
  }
  EXPECT_TRUE(total.eq(0).all().item<bool>());
  EXPECT_TRUE(try_add_mm(total, left, right));
  forced_way = -1;
}

TEST_F(Products, RoundNothingWhereConvolutionsMay) {
  const auto left = matrix(300, 200, true), right = matrix(200, 100, false);
  auto& context = at::globalContext();
  context.setFloat32Precision(at::Float32Backend::MKLDNN, at::Float32Op::CONV, at::Float32Precision::BF16);
  forced_way = 3;
  const auto before = preparation_ticks.load();
  torch::jit::Stack stack{left, right};
  EXPECT_TRUE(try_mm(stack));
  EXPECT_GT(preparation_ticks.load(), before) << "the others are measured, that one is not taken";
  forced_way = -1;
  context.setFloat32Precision(at::Float32Backend::MKLDNN, at::Float32Op::CONV, at::Float32Precision::NONE);
  expect_near(stack[0].toTensor(), left.to(at::kDouble).mm(right.to(at::kDouble)));
}

TEST_F(Products, LeavesWhatItDoesNotKnow) {
  const auto x = at::randn({200, 200});
  auto takes = [](const at::Tensor& left, const at::Tensor& right) {
    torch::jit::Stack stack{left, right};
    const bool taken = try_mm(stack);
    EXPECT_EQ(stack.size(), taken ? 1u : 2u);
    return taken;
  };
  EXPECT_TRUE(takes(x, x));
  EXPECT_FALSE(takes(x.slice(0, 0, 4), x)) << "too small";
  EXPECT_FALSE(takes(x, x.slice(0, 0, 100))) << "does not fit: eager says so";
  EXPECT_FALSE(takes(x.to(at::kDouble), x.to(at::kDouble)));
  EXPECT_FALSE(takes(at::randn({200, 400}).slice(1, 0, 400, 2), x)) << "neither rows nor columns are dense";
  auto takes_bias = [&](const at::Tensor& bias, const c10::Scalar& beta) {
    torch::jit::Stack stack{bias, x, x, beta, 1};
    return try_addmm(stack);
  };
  EXPECT_TRUE(takes_bias(at::randn({200}), 1));
  EXPECT_FALSE(takes_bias(at::randn({200}), 0.5));
  EXPECT_FALSE(takes_bias(at::randn({200, 200}), 1));
  at::globalContext().setDeterministicAlgorithms(true, false);
  EXPECT_FALSE(takes(x, x));
  at::globalContext().setDeterministicAlgorithms(false, false);
}

}  // namespace
}  // namespace lockstep::dynamic
