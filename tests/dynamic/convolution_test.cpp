// Every way to compute a convolution and its gradients against PyTorch's own kernel in float64.
#include "dynamic/kernels/convolution.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <thread>
#include <unistd.h>

#include "dynamic/kernels/kernel_choice.h"
#include "dynamic/kernels/shared_product.h"
#include "tests/support/helped_board.h"

namespace lockstep::dynamic {
namespace {

struct Case {
  const char* name;
  int64_t n, c, h, w, o, kh, kw, stride, padding, dilation, groups;
  bool transposed, bias;
};

// Sizes include maps smaller than the window's padding, windows that are not square, strides that leave pixels over.
const Case kCases[] = {
    {"pointwise", 3, 5, 6, 7, 4, 1, 1, 1, 0, 1, 1, false, true},
    {"pointwise_one_sample", 1, 5, 6, 7, 4, 1, 1, 1, 0, 1, 1, false, false},
    {"pointwise_stride", 2, 5, 7, 6, 4, 1, 1, 2, 0, 1, 1, false, true},
    {"window", 2, 3, 8, 9, 5, 3, 3, 1, 1, 1, 1, false, true},
    {"window_of_tiles", 2, 19, 8, 9, 34, 3, 3, 1, 1, 1, 1, false, true},
    {"window_of_tiles_inside", 3, 16, 7, 5, 40, 3, 3, 1, 0, 1, 1, false, false},
    {"window_of_tiles_beyond", 1, 33, 4, 3, 16, 3, 3, 1, 2, 1, 1, false, true},
    {"window_of_tiles_one_pixel", 4, 16, 1, 1, 17, 3, 3, 1, 1, 1, 1, false, false},
    {"window_stride", 2, 3, 9, 8, 5, 3, 3, 2, 1, 1, 1, false, false},
    {"window_wide", 2, 3, 9, 8, 5, 3, 5, 1, 2, 1, 1, false, true},
    {"small_map", 4, 6, 2, 2, 5, 3, 3, 1, 1, 1, 1, false, true},
    {"one_pixel", 4, 6, 1, 1, 5, 5, 5, 1, 2, 1, 1, false, false},
    {"dilated", 2, 3, 10, 9, 4, 3, 3, 1, 2, 2, 1, false, true},
    {"dilated_stride", 2, 3, 11, 9, 4, 3, 3, 3, 2, 2, 1, false, true},
    {"large_padding", 1, 2, 3, 3, 4, 3, 3, 2, 2, 1, 1, false, true},
    {"groups", 2, 4, 6, 6, 6, 3, 3, 1, 1, 1, 2, false, true},
    {"depthwise", 2, 4, 6, 6, 4, 3, 3, 1, 1, 1, 4, false, false},
    {"depthwise_few", 2, 9, 6, 7, 9, 3, 3, 1, 1, 1, 9, false, true},
    {"depthwise_rest", 2, 35, 6, 7, 35, 3, 3, 1, 1, 1, 35, false, true},
    {"depthwise_stride", 3, 80, 9, 8, 80, 3, 3, 2, 1, 1, 80, false, false},
    {"depthwise_beyond_the_map", 2, 24, 2, 3, 24, 7, 7, 1, 3, 1, 24, false, true},
    {"depthwise_one_pixel", 4, 16, 1, 1, 16, 5, 5, 1, 2, 1, 16, false, true},
    {"depthwise_inside", 2, 16, 9, 8, 16, 3, 2, 1, 0, 1, 16, false, false},
    {"depthwise_wide_window", 2, 20, 8, 12, 20, 1, 11, 1, 3, 1, 20, false, true},
    {"depthwise_dilated", 2, 17, 13, 12, 17, 3, 3, 2, 2, 3, 17, false, true},
    {"depthwise_pixels_left_over", 2, 16, 11, 10, 16, 2, 2, 3, 0, 1, 16, false, true},
    {"depthwise_large", 2, 24, 24, 25, 24, 5, 5, 1, 2, 1, 24, false, true},
    {"several_outputs_a_channel", 2, 16, 6, 6, 32, 3, 3, 1, 1, 1, 16, false, true},
    {"stride_wide_window", 2, 3, 11, 10, 5, 5, 4, 3, 2, 1, 1, false, true},
    {"stride_beyond_window", 2, 3, 11, 10, 5, 2, 1, 3, 0, 1, 1, false, true},
    {"stride_dilated", 1, 3, 13, 12, 4, 3, 2, 2, 1, 3, 1, false, true},
    {"stride_dilated_alike", 2, 3, 13, 12, 4, 3, 3, 2, 1, 2, 1, false, false},
    {"pixel_dilated", 2, 2, 33, 1, 8, 1, 1, 2, 1, 2, 1, false, true},
    {"transposed", 2, 4, 5, 6, 3, 4, 4, 2, 1, 1, 1, true, true},
    {"transposed_pointwise", 2, 4, 5, 6, 3, 1, 1, 1, 0, 1, 1, true, true},
    {"transposed_window", 2, 16, 5, 6, 17, 3, 3, 1, 1, 1, 1, true, true},
    {"transposed_one_pixel", 3, 4, 1, 1, 5, 4, 4, 1, 0, 1, 1, true, false},
    {"transposed_groups", 2, 4, 5, 6, 3, 3, 3, 2, 1, 1, 2, true, true},
};

struct Convolutions : testing::TestWithParam<Case> {
  std::filesystem::path folder;
  void SetUp() override {
    folder = std::filesystem::path(testing::TempDir()) / ("lockstep-convolution-" + std::to_string(getpid()));
    setenv("LOCKSTEP_CACHE", folder.c_str(), 1);
    forget_choices();
  }
  void TearDown() override {
    std::filesystem::remove_all(folder);
    forget_choices();
  }
};

void expect_near(const at::Tensor& own, const at::Tensor& exact, const at::Tensor& eager, const char* what) {
  ASSERT_EQ(own.sizes(), eager.sizes()) << what;
  for (int64_t dim = 0; dim < own.dim(); ++dim)
    ASSERT_TRUE(own.size(dim) == 1 || own.stride(dim) == eager.stride(dim)) << what;
  const double error = (own.to(at::kDouble) - exact).abs().max().item<double>();
  EXPECT_LE(error, 1e-5 * (1 + exact.abs().max().item<double>())) << what;
}

constexpr int kEnough = 20;  // calls, so that each way was taken and the choice is used

// What one case gives in calls on end, against float64; sizes and strides are eager's.
void expect_agreement(const Case& p, bool in_any_order, int calls) {
  at::manual_seed(1);
  const std::vector<int64_t> stride{p.stride, p.stride}, padding{p.padding, p.padding}, dilation{p.dilation, p.dilation},
      output_padding{0, 0};
  const auto x = at::randn({p.n, p.c, p.h, p.w});
  const auto w = p.transposed ? at::randn({p.c, p.o, p.kh, p.kw}) : at::randn({p.o, p.c / p.groups, p.kh, p.kw});
  const int64_t out_channels = p.transposed ? p.o * p.groups : p.o;
  const auto b = p.bias ? at::randn({out_channels}) : at::Tensor();
  const std::optional<at::Tensor> bias = p.bias ? std::optional(b) : std::nullopt;
  const std::optional<at::Tensor> exact_bias = p.bias ? std::optional(b.to(at::kDouble)) : std::nullopt;
  auto run = [&](const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& with) {
    return at::convolution(input, weight, with, stride, padding, dilation, p.transposed, output_padding, p.groups);
  };
  const auto eager = run(x, w, bias), exact = run(x.to(at::kDouble), w.to(at::kDouble), exact_bias);
  const auto gradient = at::randn(eager.sizes());
  const std::vector<int64_t> bias_sizes{out_channels};
  const at::OptionalIntArrayRef sizes = p.bias ? at::OptionalIntArrayRef(bias_sizes) : at::OptionalIntArrayRef();
  auto run_backward = [&](at::ScalarType type) {
    return at::convolution_backward(gradient.to(type), x.to(type), w.to(type), sizes, stride, padding, dilation,
                                    p.transposed, output_padding, p.groups, {true, true, p.bias});
  };
  const auto eager_gradients = run_backward(at::kFloat), exact_gradients = run_backward(at::kDouble);
  const auto ordered = [&](const at::Tensor& map) {
    return in_any_order ? map.contiguous(at::MemoryFormat::ChannelsLast) : map;
  };
  const auto from_planes = [&](const at::Tensor& map) { return in_any_order ? map.contiguous() : map; };
  for (int call = 0; call < calls; ++call) {
    torch::jit::Stack stack{ordered(x), w, p.bias ? c10::IValue(b) : c10::IValue(), stride, padding, dilation, p.transposed,
                            output_padding, p.groups};
    ASSERT_TRUE(try_convolution(stack, in_any_order));
    ASSERT_EQ(stack.size(), 1u);
    expect_near(from_planes(stack[0].toTensor()), exact, eager, "forward");
    torch::jit::Stack back{ordered(gradient), ordered(x), w, p.bias ? c10::IValue(bias_sizes) : c10::IValue(), stride, padding, dilation,
                           p.transposed, output_padding, p.groups, c10::List<bool>({true, true, p.bias})};
    ASSERT_TRUE(try_convolution_backward(back, in_any_order));
    ASSERT_EQ(back.size(), 3u);
    expect_near(from_planes(back[0].toTensor()), std::get<0>(exact_gradients), std::get<0>(eager_gradients), "input");
    expect_near(back[1].toTensor(), std::get<1>(exact_gradients), std::get<1>(eager_gradients), "weight");
    EXPECT_EQ(back[2].toTensor().defined(), p.bias);
    if (p.bias) expect_near(back[2].toTensor(), std::get<2>(exact_gradients), std::get<2>(eager_gradients), "bias");
  }
}

TEST(ConvolutionBackward, LeavesAGradientOfAnotherSizeToEager) {
  const auto x = at::randn({2, 17, 12, 12}), w = at::randn({17, 17, 3, 3});
  const auto try_with = [&](const at::Tensor& gradient, bool transposed) {
    torch::jit::Stack stack{gradient, x, w, c10::IValue(), std::vector<int64_t>{1, 1}, std::vector<int64_t>{1, 1},
                            std::vector<int64_t>{1, 1}, transposed, std::vector<int64_t>{0, 0}, 1,
                            c10::List<bool>({true, true, false})};
    return try_convolution_backward(stack);
  };
  for (const bool transposed : {false, true}) {
    EXPECT_TRUE(try_with(at::randn({2, 17, 12, 12}), transposed));
    for (const auto& sizes : std::vector<std::vector<int64_t>>{{2, 17, 6, 6}, {1, 17, 12, 12}, {2, 16, 12, 12}, {2, 17, 12, 13}})
      EXPECT_FALSE(try_with(at::randn(sizes), transposed)) << sizes;
  }
}

struct LineCase {
  int64_t n, c, length, o, window, stride, padding, dilation, groups;
  bool transposed, bias;
};

// (samples, channels, length), as PyTorch's; what lies otherwise is PyTorch's.
TEST(ConvolutionsOfLines, EachWayAgrees) {
  const LineCase cases[] = {{3, 5, 17, 4, 3, 1, 1, 1, 1, false, true},   {2, 19, 40, 24, 10, 5, 0, 1, 1, false, false},
                            {2, 4, 30, 6, 3, 1, 4, 4, 1, false, true},   {3, 8, 20, 6, 1, 1, 0, 1, 1, false, true},
                            {2, 24, 33, 24, 4, 1, 3, 1, 24, false, true}, {2, 6, 9, 4, 4, 2, 1, 1, 1, true, true},
                            {1, 1, 64, 8, 8, 4, 2, 1, 1, false, true}};
  at::manual_seed(1);
  for (const auto& p : cases)
    for (int way = 0; way < kMaxWays; ++way) {
      SCOPED_TRACE(testing::Message() << p.window << " of " << p.c << " by way " << way);
      forced_way = way;
      const auto x = at::randn({p.n, p.c, p.length});
      const auto w = p.transposed ? at::randn({p.c, p.o, p.window}) : at::randn({p.o, p.c / p.groups, p.window});
      const auto b = p.bias ? at::randn({p.o}) : at::Tensor();
      const std::vector<int64_t> stride{p.stride}, padding{p.padding}, dilation{p.dilation}, none{0}, bias_sizes{p.o};
      const auto exactly = [&](const at::Tensor& tensor) { return tensor.defined() ? tensor.to(at::kDouble) : tensor; };
      const auto run = [&](const at::Tensor& input, const at::Tensor& weight, const at::Tensor& with) {
        return at::convolution(input, weight, with.defined() ? std::optional(with) : std::nullopt, stride, padding, dilation,
                               p.transposed, none, p.groups);
      };
      const auto eager = run(x, w, b);
      torch::jit::Stack stack{x, w, p.bias ? c10::IValue(b) : c10::IValue(), stride, padding, dilation, p.transposed, none, p.groups};
      ASSERT_TRUE(try_convolution(stack));
      ASSERT_EQ(stack.size(), 1u);
      expect_near(stack[0].toTensor(), run(exactly(x), exactly(w), exactly(b)), eager, "forward");
      for (const auto& gradient : {at::randn(eager.sizes()), at::randn({eager.size(0), eager.size(2), eager.size(1)}).transpose(1, 2)}) {
        const auto back = [&](at::ScalarType type) {
          return at::convolution_backward(gradient.to(type), x.to(type), w.to(type),
                                          p.bias ? at::OptionalIntArrayRef(bias_sizes) : at::OptionalIntArrayRef(), stride, padding,
                                          dilation, p.transposed, none, p.groups, {true, true, p.bias});
        };
        const auto expected = back(at::kFloat), exact = back(at::kDouble);
        torch::jit::Stack own{gradient, x, w, p.bias ? c10::IValue(bias_sizes) : c10::IValue(), stride, padding, dilation, p.transposed,
                              none, p.groups, c10::List<bool>({true, true, p.bias})};
        ASSERT_TRUE(try_convolution_backward(own));
        ASSERT_EQ(own.size(), 3u);
        expect_near(own[0].toTensor(), std::get<0>(exact), std::get<0>(expected), "input");
        expect_near(own[1].toTensor(), std::get<1>(exact), std::get<1>(expected), "weight");
        if (p.bias) expect_near(own[2].toTensor(), std::get<2>(exact), std::get<2>(expected), "bias");
      }
      torch::jit::Stack innermost{at::randn({p.n, p.length, p.c + 1}).slice(2, 1).transpose(1, 2), w, c10::IValue(), stride, padding,
                                  dilation, p.transposed, none, p.groups};
      EXPECT_FALSE(try_convolution(innermost));
      EXPECT_EQ(innermost.size(), 9u);
    }
  forced_way = -1;
}

// Maps that lie so for everybody, as channels_last makes them: results lie as eager's, to the strides.
TEST_P(Convolutions, EachWayAgreesWhereChannelsAreInnermostForAll) {
  const auto& p = GetParam();
  const bool is_one_sample_by_pixels = p.n == 1 && p.kh == 1 && p.kw == 1;
  if (p.transposed || p.h == 1 || p.w == 1 || is_one_sample_by_pixels) GTEST_SKIP() << "left to PyTorch";
  at::manual_seed(1);
  constexpr auto kInnermost = at::MemoryFormat::ChannelsLast;
  const std::vector<int64_t> stride{p.stride, p.stride}, padding{p.padding, p.padding}, dilation{p.dilation, p.dilation},
      none{0, 0}, bias_sizes{p.o};
  const auto x = at::randn({p.n, p.c, p.h, p.w}).contiguous(kInnermost), b = at::randn({p.o});
  const auto bias = p.bias ? std::optional(b) : std::nullopt;
  for (const auto order : {at::MemoryFormat::Contiguous, kInnermost}) {
    const auto w = at::randn({p.o, p.c / p.groups, p.kh, p.kw}).contiguous(order);
    const auto eager = at::convolution(x, w, bias, stride, padding, dilation, false, none, p.groups);
    const auto exact = at::convolution(x.to(at::kDouble), w.to(at::kDouble), p.bias ? std::optional(b.to(at::kDouble)) : std::nullopt,
                                       stride, padding, dilation, false, none, p.groups);
    const auto slopes = at::randn(eager.sizes());
    for (const auto& gradient : {slopes, slopes.contiguous(kInnermost)}) {
      const auto back = [&](at::ScalarType type) {
        return at::convolution_backward(gradient.to(type), x.to(type), w.to(type),
                                        p.bias ? at::OptionalIntArrayRef(bias_sizes) : at::OptionalIntArrayRef(), stride, padding,
                                        dilation, false, none, p.groups, {true, true, p.bias});
      };
      const auto expected = back(at::kFloat), exact_gradients = back(at::kDouble);
      for (int way = 0; way < kMaxWays; ++way) {
        SCOPED_TRACE(way);
        forced_way = way;
        torch::jit::Stack stack{x, w, p.bias ? c10::IValue(b) : c10::IValue(), stride, padding, dilation, false, none, p.groups};
        ASSERT_TRUE(try_convolution(stack));
        expect_near(stack[0].toTensor(), exact, eager, "forward");
        EXPECT_EQ(stack[0].toTensor().strides(), eager.strides());
        torch::jit::Stack own{gradient, x, w, p.bias ? c10::IValue(bias_sizes) : c10::IValue(), stride, padding, dilation, false,
                              none, p.groups, c10::List<bool>({true, true, p.bias})};
        ASSERT_TRUE(try_convolution_backward(own));
        expect_near(own[0].toTensor(), std::get<0>(exact_gradients), std::get<0>(expected), "input");
        expect_near(own[1].toTensor(), std::get<1>(exact_gradients), std::get<1>(expected), "weight");
        EXPECT_EQ(own[0].toTensor().strides(), std::get<0>(expected).strides());
        EXPECT_EQ(own[1].toTensor().strides(), std::get<1>(expected).strides());
        if (p.bias) expect_near(own[2].toTensor(), std::get<2>(exact_gradients), std::get<2>(expected), "bias");
      }
    }
  }
  forced_way = -1;
}

TEST_P(Convolutions, AllWaysAgree) { expect_agreement(GetParam(), /*in_any_order=*/false, kEnough); }

TEST_P(Convolutions, EachWayAgrees) {
  for (int way = 0; way < kMaxWays; ++way) {
    SCOPED_TRACE(way);
    forced_way = way;
    for (const bool in_any_order : {false, true}) expect_agreement(GetParam(), in_any_order, 1);
  }
  forced_way = -1;
}

TEST_P(Convolutions, EachWayAgreesOnABoard) {
  const HelpedBoard board;
  for (int way = 0; way < kMaxWays; ++way) {
    SCOPED_TRACE(way);
    forced_way = way;
    for (const bool in_any_order : {false, true}) expect_agreement(GetParam(), in_any_order, 1);
  }
  forced_way = -1;
}

TEST_P(Convolutions, OnlyWhatIsWanted) {
  const auto& p = GetParam();
  const std::vector<int64_t> stride{p.stride, p.stride}, padding{p.padding, p.padding}, dilation{p.dilation, p.dilation},
      zeros{0, 0};
  const auto x = at::randn({p.n, p.c, p.h, p.w});
  const auto w = p.transposed ? at::randn({p.c, p.o, p.kh, p.kw}) : at::randn({p.o, p.c / p.groups, p.kh, p.kw});
  const auto y = at::convolution(x, w, {}, stride, padding, dilation, p.transposed, zeros, p.groups);
  for (int mask = 1; mask < 8; ++mask) {
    const bool wants[3] = {(mask & 1) > 0, (mask & 2) > 0, (mask & 4) > 0};
    torch::jit::Stack stack{at::randn(y.sizes()), x, w, std::vector<int64_t>{y.size(1)}, stride, padding, dilation,
                            p.transposed, zeros, p.groups, c10::List<bool>({wants[0], wants[1], wants[2]})};
    if (!try_convolution_backward(stack)) {
      EXPECT_TRUE(wants[2] && !wants[1]) << mask;  // PyTorch's kernels differ in what they return then
      EXPECT_EQ(stack.size(), 11u);
      continue;
    }
    for (int i = 0; i < 3; ++i) EXPECT_EQ(stack[i].toTensor().defined(), wants[i]) << mask << " " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Convolutions, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Strips, ManyOfThemAndThreads) {
  const std::vector<int64_t> one{1, 1}, two{2, 2}, zero{0, 0};
  at::manual_seed(3);
  const auto x = at::randn({3, 40, 51, 46}), w = at::randn({24, 40, 3, 3}), b = at::randn({24});
  const auto wide = [](const at::Tensor& tensor) { return tensor.to(at::kDouble); };
  const auto exact = at::convolution(wide(x), wide(w), wide(b), two, one, one, false, zero, 1);
  const auto gradient = at::randn(exact.sizes());
  const auto gradients = at::convolution_backward(wide(gradient), wide(x), wide(w), {}, two, one, one, false, zero, 1,
                                                  {true, true, false});
  forced_way = 5;
  const int before = at::get_num_threads();
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    torch::jit::Stack stack{x, w, b, two, one, one, false, zero, int64_t{1}};
    ASSERT_TRUE(try_convolution(stack));
    expect_near(stack[0].toTensor(), exact, exact, "forward");
    torch::jit::Stack back{gradient, x, w, c10::IValue(), two, one, one, false, zero, int64_t{1},
                           c10::List<bool>({true, true, false})};
    ASSERT_TRUE(try_convolution_backward(back));
    expect_near(back[0].toTensor(), std::get<0>(gradients), std::get<0>(gradients), "input");
    expect_near(back[1].toTensor(), std::get<1>(gradients), std::get<1>(gradients), "weight");
  }
  at::set_num_threads(before);
  forced_way = -1;
}

TEST(Convolution, ProductsGoOnTheBoard) {
  if (!has_shared_products()) GTEST_SKIP() << "no BLAS";
  const HelpedBoard board;
  const std::vector<int64_t> one{1, 1}, zero{0, 0};
  const auto x = at::randn({4, 64, 32, 32}), w = at::randn({64, 64, 1, 1});
  const auto expected = at::convolution(x, w, {}, one, zero, one, false, zero, 1);
  forced_way = 3;  // by samples: nothing but products
  for (int call = 0; call < 1000 && board.helped() == 0; ++call) {
    torch::jit::Stack stack{x, w, c10::IValue(), one, zero, one, false, zero, int64_t{1}};
    ASSERT_TRUE(try_convolution(stack));
    expect_near(stack[0].toTensor(), expected, expected, "forward");
  }
  forced_way = -1;
  EXPECT_GT(board.helped(), 0);
}

// Who helps is in the middle of the user's code; here it takes all parts.
TEST(Convolution, PartsRunUnderTheModesOfWhoRunsKernels) {
  std::atomic<int> helped{0};
  WorkBoard board([&] {
    const int before = helped;
    while (helped == before) std::this_thread::yield();
  });
  board.set_on(true);
  const BoardScope scope(&board);
  const WorkBoard::SleepScope asleep(board);
  std::atomic<bool> is_over{false};
  std::thread helper([&] {
    const c10::InferenceMode inference;
    const c10::impl::ExcludeDispatchKeyGuard no_kernels{c10::DispatchKeySet(c10::DispatchKey::CPU)};
    while (!is_over) helped += board.help();
  });
  at::manual_seed(4);
  const std::vector<int64_t> one{1, 1}, zero{0, 0};
  const auto x = at::randn({9, 8, 12, 12}), w = at::randn({8, 8, 3, 3}), gradient = at::randn({9, 8, 12, 12});
  const auto expected = at::convolution(x, w, {}, one, one, one, false, zero, 1);
  const auto gradients = at::convolution_backward(gradient, x, w, {}, one, one, one, false, zero, 1, {true, true, false});
  forced_way = 6;
  torch::jit::Stack stack{x, w, c10::IValue(), one, one, one, false, zero, int64_t{1}};
  torch::jit::Stack back{gradient, x, w, c10::IValue(), one, one, one, false, zero, int64_t{1},
                         c10::List<bool>({true, true, false})};
  EXPECT_TRUE(try_convolution(stack));
  EXPECT_TRUE(try_convolution_backward(back));
  forced_way = -1;
  is_over = true;
  helper.join();
  EXPECT_GT(helped, 0);
  const auto check = [](const c10::IValue& own, const at::Tensor& eager, const char* what) {
    expect_near(own.toTensor(), eager.to(at::kDouble), eager, what);
    EXPECT_FALSE(own.toTensor().is_inference()) << what;
  };
  check(stack[0], expected, "forward");
  check(back[0], std::get<0>(gradients), "input");
  check(back[1], std::get<1>(gradients), "weight");
}

TEST(Convolution, LeavesWhatCannotBe) {
  const std::vector<int64_t> one{1, 1}, zero{0, 0};
  const auto x = at::randn({2, 3, 5, 5}), w = at::randn({4, 3, 3, 3});
  torch::jit::Stack no_stride{x, w, c10::IValue(), zero, zero, one, false, zero, int64_t{1}};
  EXPECT_FALSE(try_convolution(no_stride));
  torch::jit::Stack no_dilation{x, w, c10::IValue(), one, zero, zero, false, zero, int64_t{1}};
  EXPECT_FALSE(try_convolution(no_dilation));
  torch::jit::Stack too_large{x, at::randn({4, 3, 7, 7}), c10::IValue(), one, zero, one, false, zero, int64_t{1}};
  EXPECT_FALSE(try_convolution(too_large));
}

// With its channels innermost or not, by tiles.
struct ByTiles : testing::Test {
  static constexpr int kWay = 4;
  const std::vector<int64_t> one{1, 1}, zero{0, 0};
  void SetUp() override {
    at::manual_seed(2);
    forced_way = kWay;
  }
  void TearDown() override { forced_way = -1; }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& w) {
    torch::jit::Stack stack{x, w, c10::IValue(), one, one, one, false, zero, int64_t{1}};
    EXPECT_TRUE(try_convolution(stack));
    return stack[0].toTensor();
  }
  std::vector<at::Tensor> backward(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& w) {
    torch::jit::Stack stack{gradient, x, w, c10::IValue(), one, one, one, false, zero, int64_t{1},
                            c10::List<bool>({true, true, false})};
    EXPECT_TRUE(try_convolution_backward(stack));
    return {stack[0].toTensor(), stack[1].toTensor()};
  }
};

TEST_F(ByTiles, ManyBlocksAndThreads) {
  const auto x = at::randn({5, 48, 37, 41}), w = at::randn({72, 48, 3, 3}), gradient = at::randn({5, 72, 37, 41});
  const auto exact = at::convolution(x.to(at::kDouble), w.to(at::kDouble), {}, one, one, one, false, zero, 1);
  const auto gradients = at::convolution_backward(gradient.to(at::kDouble), x.to(at::kDouble), w.to(at::kDouble), {}, one,
                                                  one, one, false, zero, 1, {true, true, false});
  const int before = at::get_num_threads();
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    expect_near(forward(x, w), exact, exact, "forward");
    const auto own = backward(gradient, x, w);
    expect_near(own[0], std::get<0>(gradients), std::get<0>(gradients), "input");
    expect_near(own[1], std::get<1>(gradients), std::get<1>(gradients), "weight");
  }
  at::set_num_threads(before);
}

TEST_F(ByTiles, WhatIsNotFiniteStaysWhereItIsInEager) {
  auto x = at::randn({2, 32, 30, 30});
  const auto w = at::randn({16, 32, 3, 3}), gradient = at::randn({2, 16, 30, 30});
  for (const double value : {double{INFINITY}, double{NAN}, 3e38}) {
    x.index_put_({at::tensor(1), at::tensor(3), at::tensor(7), at::tensor(8)}, at::tensor(value, at::kFloat));
    const auto own = forward(x, w), eager = at::convolution(x, w, {}, one, one, one, false, zero, 1);
    EXPECT_TRUE(at::equal(own.isfinite(), eager.isfinite()));
    EXPECT_TRUE(at::equal(own.isnan(), eager.isnan()));
    const auto own_weight = backward(gradient, x, w)[1];
    const auto eager_weight = std::get<1>(
        at::convolution_backward(gradient, x, w, {}, one, one, one, false, zero, 1, {true, true, false}));
    EXPECT_TRUE(at::equal(own_weight.isfinite(), eager_weight.isfinite()));
  }
}

TEST_F(ByTiles, WhereAWindowSeesOnlyZerosIsZero) {
  auto x = at::randn({2, 32, 30, 30});
  x.slice(2, 9, 20).zero_();  // an odd edge, that tiles do not share
  const auto w = at::randn({16, 32, 3, 3}), eager = at::convolution(x, w, {}, one, one, one, false, zero, 1);
  EXPECT_TRUE(at::equal(forward(x, w) == 0, eager == 0));
  EXPECT_GT((eager == 0).sum().item<int64_t>(), 0);
  auto gradient = at::randn({2, 16, 30, 30});
  gradient.slice(3, 5).zero_();
  const auto own = backward(gradient, at::randn({2, 32, 30, 30}), w)[0];
  EXPECT_EQ((own.slice(3, 6) != 0).sum().item<int64_t>(), 0);
  const auto dot = at::ones({4, 32, 1, 1}), slope = at::ones({4, 16, 1, 1});
  EXPECT_EQ((backward(slope, dot, w)[1] != 0).sum().item<int64_t>(), 16 * 32) << "the middle tap alone";
}

// As in autoregressive nets: what a mask leaves out must not count, however large it is.
TEST_F(ByTiles, MaskedWeightsLetNothingThrough) {
  const auto x = at::randn({2, 32, 30, 30});
  auto w = at::randn({16, 32, 3, 3});
  w.select(0, 3).zero_();  // no mask: all of a window
  auto mask = at::ones({3, 3});
  mask[1].slice(0, 1).zero_();
  mask[2].zero_();
  const auto masked = w * mask, later = at::zeros({2, 32, 30, 30});
  later.slice(2, 15).fill_(1e6);
  EXPECT_TRUE(at::equal(forward(x, masked).slice(2, 0, 15), forward(x + later, masked).slice(2, 0, 15)));
  auto gradient = at::zeros({2, 16, 30, 30});
  gradient.slice(2, 0, 15).copy_(at::randn({2, 16, 15, 30}));
  const auto eager = std::get<0>(
      at::convolution_backward(gradient, x, masked, {}, one, one, one, false, zero, 1, {true, true, false}));
  EXPECT_TRUE(at::equal(backward(gradient, x, masked)[0] == 0, eager == 0));
  EXPECT_GT((eager == 0).sum().item<int64_t>(), 0);
  auto pruned = w.clone();
  pruned.select(1, 7).select(1, 2).zero_();  // a row of taps of one channel
  auto other = x.clone();
  other.select(1, 7).slice(1, 15).fill_(1e6);
  EXPECT_TRUE(at::equal(forward(x, pruned).slice(2, 0, 14), forward(other, pruned).slice(2, 0, 14)));
}

// Adam makes a whole step of what rounding leaves where eager has zero.
TEST_F(ByTiles, AGradientOfWeightsOfZerosAloneIsZero) {
  const auto w = at::randn({32, 32, 3, 3});
  const auto check = [&](const at::Tensor& gradient, const at::Tensor& x, const char* what) {
    const auto eager = std::get<1>(
        at::convolution_backward(gradient, x, w, {}, one, one, one, false, zero, 1, {true, true, false}));
    const auto own = backward(gradient, x, w)[1];
    EXPECT_GT((eager == 0).sum().item<int64_t>(), 0) << what;
    EXPECT_TRUE(at::equal(own == 0, eager == 0)) << what;
    expect_near(own, eager.to(at::kDouble), eager, what);
  };
  const auto x = at::randn({8, 32, 16, 16});
  const auto only = [](at::Tensor map, int64_t dim, int64_t place) {
    auto kept = at::zeros_like(map);
    kept.select(dim, place).copy_(map.select(dim, place));
    return kept;
  };
  for (const int64_t dim : {2, 3}) {
    check(only(at::randn({8, 32, 16, 16}), dim, 15), x, "what a readout at the end leaves of a gradient");
    check(at::randn({8, 32, 16, 16}), only(x, dim, 15), "an input at the end alone");
  }
  auto one_channel = at::randn({8, 32, 16, 16});
  one_channel.select(1, 3).copy_(only(one_channel.select(1, 3), 2, 15));
  check(one_channel, x, "one channel of the gradient");
  auto sparse = at::zeros({8, 32, 16, 16});
  sparse.index_put_({at::tensor(1), at::tensor(5), at::tensor(7), at::tensor(8)}, at::tensor(2.0f));
  auto few = at::randn({8, 32, 16, 16});
  few.select(1, 5).copy_(sparse.select(1, 5));
  check(at::randn({8, 32, 16, 16}) * (at::rand({8, 32, 16, 16}) < 0.02), few, "a channel that is nearly dead");
}

// Where a window reaches beyond the map eager multiplies nothing: infinity times zero would be nan.
TEST(Convolution, WhatIsNotFiniteMeetsNoPadding) {
  const std::vector<int64_t> one{1, 1}, two{2, 2}, zero{0, 0};
  at::manual_seed(5);
  for (const int way : {2, 5}) {
    for (const auto& stride : {one, two}) {
      const int64_t out = stride == one ? 32 : 16;
      auto x = at::randn({8, 3, 32, 32}), w = at::randn({8, 3, 3, 3}), gradient = at::randn({8, 8, out, out});
      const auto check = [&](const char* what) {
        const auto eager = at::convolution(x, w, {}, stride, one, one, false, zero, 1);
        const auto gradients =
            at::convolution_backward(gradient, x, w, {}, stride, one, one, false, zero, 1, {true, true, false});
        torch::jit::Stack stack{x, w, c10::IValue(), stride, one, one, false, zero, int64_t{1}};
        torch::jit::Stack back{gradient, x, w, c10::IValue(), stride, one, one, false, zero, int64_t{1},
                               c10::List<bool>({true, true, false})};
        forced_way = way;
        EXPECT_TRUE(try_convolution(stack) && try_convolution_backward(back));
        forced_way = -1;
        EXPECT_TRUE(at::equal(stack[0].toTensor().isnan(), eager.isnan())) << what << " forward " << way;
        EXPECT_TRUE(at::equal(back[0].toTensor().isnan(), std::get<0>(gradients).isnan())) << what << " input " << way;
        EXPECT_TRUE(at::equal(back[1].toTensor().isnan(), std::get<1>(gradients).isnan())) << what << " weight " << way;
      };
      const auto keep = w[0][0][0][0].item();
      w[0][0][0][0].fill_(INFINITY);
      check("weight");
      w[0][0][0][0].fill_(keep);
      gradient[0][0][0][0].fill_(INFINITY);
      check("gradient");
    }
  }
}

// The gradient's windows reach over its edge also where the map has no padding; so do those of a transposed convolution.
TEST(Convolution, WhatIsNotFiniteMeetsNoEdges) {
  const std::vector<int64_t> two{2, 2}, one{1, 1}, zero{0, 0};
  at::manual_seed(6);
  const auto x = at::randn({8, 3, 33, 33}), gradient = at::randn({8, 8, 16, 16});
  auto w = at::randn({8, 3, 3, 3});
  w[0][0][0][0].fill_(INFINITY);
  const auto eager = at::convolution_backward(gradient, x, w, {}, two, zero, one, false, zero, 1, {true, true, false});
  const auto transposed = at::convolution(gradient, w, {}, two, zero, one, true, zero, 1);
  for (const int way : {2, 5}) {
    torch::jit::Stack back{gradient, x, w, c10::IValue(), two, zero, one, false, zero, int64_t{1}, c10::List<bool>({true, true, false})};
    torch::jit::Stack stack{gradient, w, c10::IValue(), two, zero, one, true, zero, int64_t{1}};
    forced_way = way;
    EXPECT_TRUE(try_convolution_backward(back) && try_convolution(stack));
    forced_way = -1;
    EXPECT_TRUE(at::equal(back[0].toTensor().isnan(), std::get<0>(eager).isnan())) << way;
    EXPECT_TRUE(at::equal(stack[0].toTensor().isnan(), transposed.isnan())) << way;
  }
}

// oneDNN's kernel with channels innermost is wrong there.
TEST(Convolution, OneChannelWithOtherStepsInEachDim) {
  const std::vector<int64_t> stride{1, 3}, padding{2, 2}, one{1, 1}, zero{0, 0};
  at::manual_seed(1);
  const auto x = at::randn({1, 1, 5, 1}), w = at::randn({1, 1, 5, 5});
  const auto exact = at::convolution(x.to(at::kDouble), w.to(at::kDouble), {}, stride, padding, one, false, zero, 1);
  for (int way = 0; way < kMaxWays; ++way) {
    forced_way = way;
    torch::jit::Stack stack{x, w, c10::IValue(), stride, padding, one, false, zero, int64_t{1}};
    if (try_convolution(stack)) expect_near(stack[0].toTensor(), exact, exact, "forward");
  }
  forced_way = -1;
}

// What is not finite comes out where eager has it, also of windows that reach over the edge.
TEST(Convolution, InfiniteWeightsOfChannels) {
  const std::vector<int64_t> one{1, 1}, zero{0, 0};
  at::manual_seed(1);
  const auto x = at::randn({2, 16, 6, 6}), w = at::randn({16, 1, 3, 3});
  w[3][0][0][0] = std::numeric_limits<float>::infinity();
  const auto eager = at::convolution(x, w, {}, one, one, one, false, zero, 16);
  forced_way = 7;
  torch::jit::Stack stack{x, w, c10::IValue(), one, one, one, false, zero, int64_t{16}};
  ASSERT_TRUE(try_convolution(stack));
  forced_way = -1;
  EXPECT_TRUE(at::equal(stack[0].toTensor().isnan(), eager.isnan()));
}

TEST(Convolution, LeavesWhatItDoesNotKnow) {
  const std::vector<int64_t> one{1, 1}, zero{0, 0};
  auto declines = [&](const at::Tensor& x, const at::Tensor& w, int64_t groups = 1) {
    torch::jit::Stack stack{x, w, c10::IValue(), one, zero, one, false, zero, groups};
    const bool handled = try_convolution(stack);
    EXPECT_EQ(stack.size(), handled ? 1u : 9u);
    return !handled;
  };
  const auto x = at::randn({2, 3, 5, 5}), w = at::randn({4, 3, 3, 3});
  EXPECT_FALSE(declines(x, w));
  EXPECT_TRUE(declines(x.to(at::kDouble), w.to(at::kDouble)));
  EXPECT_TRUE(declines(x.to(at::kBFloat16), w.to(at::kBFloat16)));
  constexpr auto kInnermost = at::MemoryFormat::ChannelsLast;
  EXPECT_FALSE(declines(x.contiguous(kInnermost), w));
  EXPECT_TRUE(declines(x, w.contiguous(kInnermost)));
  EXPECT_TRUE(declines(at::randn({2, 3, 1, 5}).contiguous(kInnermost), at::randn({4, 3, 1, 1})));
  EXPECT_TRUE(declines(at::randn({1, 3, 5, 5}).contiguous(kInnermost), at::randn({4, 3, 1, 1})));
  EXPECT_TRUE(declines(x.transpose(2, 3), w));
  EXPECT_TRUE(declines(at::randn({0, 3, 5, 5}), w));
  EXPECT_TRUE(declines(at::randn({3, 5, 5}), w));
  const auto wide = at::randn({2, 4, 5, 5});
  EXPECT_TRUE(declines(wide, w));  // does not fit: eager says so
  EXPECT_FALSE(declines(wide, at::randn({2, 2, 3, 3}), /*groups=*/2));
  EXPECT_TRUE(declines(wide, at::randn({1, 2, 3, 3}), /*groups=*/2));
  EXPECT_TRUE(declines(wide, at::randn({3, 2, 3, 3}), /*groups=*/2));
  at::globalContext().setDeterministicAlgorithms(true, false);
  EXPECT_TRUE(declines(x, w));
  at::globalContext().setDeterministicAlgorithms(false, false);
}

}  // namespace
}  // namespace lockstep::dynamic
