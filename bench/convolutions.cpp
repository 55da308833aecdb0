// Milliseconds of convolutions with windows of 3x3 and of their gradients by each way, in turn; medians. Maps lie in the
// order that the way wants. And the largest error against float64, of the largest value. JSON on the standard output.
//     ninja -C build lockstep_bench_convolutions && build/lockstep_bench_convolutions [threads] [rounds]
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "bench/quantile.h"
#include "dynamic/kernels/convolution.h"
#include "dynamic/kernels/kernel_choice.h"

namespace {

using lockstep::dynamic::forced_way;

struct Case {
  int64_t n, channels, size, out, stride = 1;
};

constexpr struct {
  int way;
  const char* name;
  bool is_innermost;
} kWays[] = {{0, "eager", false}, {1, "innermost", true}, {2, "columns", false}, {4, "winograd", true},
             {5, "strips", true}};

constexpr const char* kParts[] = {"forward", "input gradient", "weight gradient"};

struct Problem {
  at::Tensor x, y, w;
  std::vector<int64_t> stride, one{1, 1}, zero{0, 0};

  explicit Problem(const Case& c)
      : x(at::randn({c.n, c.channels, c.size, c.size}).relu()), w(at::randn({c.out, c.channels, 3, 3})),
        stride{c.stride, c.stride} {
    y = at::randn_like(at::convolution(x, w, {}, stride, one, one, false, zero, 1));
  }

  at::Tensor exact(int part) const {
    const auto a = x.to(at::kDouble), b = w.to(at::kDouble);
    if (part == 0) return at::convolution(a, b, {}, stride, one, one, false, zero, 1);
    auto [of_input, of_weight, of_bias] = at::convolution_backward(y.to(at::kDouble), a, b, {}, stride, one, one, false,
                                                                   zero, 1, {part == 1, part == 2, false});
    return part == 1 ? of_input : of_weight;
  }

  at::Tensor run(bool is_innermost, int part, double* milliseconds) const {
    const auto order = is_innermost ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
    torch::jit::Stack stack{x.contiguous(order), w, c10::IValue(), stride, one, one, false, zero, int64_t{1}};
    if (part > 0) {
      stack.insert(stack.begin(), y.contiguous(order));
      stack.emplace_back(c10::List<bool>({part == 1, part == 2, false}));
    }
    const auto start = std::chrono::steady_clock::now();
    const bool was_done = part ? lockstep::dynamic::try_convolution_backward(stack, true)
                               : lockstep::dynamic::try_convolution(stack, true);
    if (!was_done) std::abort();
    *milliseconds = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    return stack[part == 2 ? 1 : 0].toTensor();
  }
};

void measure(const Case& c, int part, int round_count) {
  const Problem problem(c);
  const auto exact = problem.exact(part);
  std::vector<double> times[std::size(kWays)];
  double errors[std::size(kWays)];
  for (int round = -1; round < round_count; ++round)
    for (size_t w = 0; w < std::size(kWays); ++w) {
      forced_way = kWays[w].way;
      double time = 0;
      const auto result = problem.run(kWays[w].is_innermost, part, &time);
      if (round >= 0) times[w].push_back(time);
      if (round < 0)
        errors[w] = ((result.to(at::kDouble) - exact).abs().max() / exact.abs().max()).item<double>();
    }
  std::printf("  \"%ldx%ldx%ldx%ld to %ld, step %ld, %s\": {", c.n, c.channels, c.size, c.size, c.out, c.stride,
              kParts[part]);
  for (size_t w = 0; w < std::size(kWays); ++w)
    std::printf("\"%s\": {\"ms\": %.2f, \"error\": %.1e}%s", kWays[w].name, quantile(times[w], 0.5), errors[w],
                w + 1 < std::size(kWays) ? ", " : "}");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) at::set_num_threads(std::atoi(argv[1]));
  const int round_count = argc > 2 ? std::atoi(argv[2]) : 9;
  const c10::InferenceMode inference;
  constexpr Case kCases[] = {{32, 64, 32, 64},  {32, 128, 16, 128}, {32, 256, 8, 256}, {32, 512, 4, 512},
                             {4, 64, 56, 64},   {4, 32, 104, 64},   {8, 128, 26, 256}, {16, 16, 32, 16}, {2, 32, 64, 64},
                             {4, 12, 128, 24, 2}, {2, 32, 128, 32, 2}, {2, 64, 64, 64, 2}, {2, 128, 32, 128, 2}};
  std::printf("{\n");
  for (const auto& c : kCases) {
    for (int part = 0; part < 3; ++part) {
      measure(c, part, round_count);
      std::printf(&c == std::end(kCases) - 1 && part == 2 ? "\n" : ",\n");
    }
  }
  std::printf("}\n");
}
