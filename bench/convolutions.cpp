// Milliseconds of convolutions with windows of 3x3 and of their gradients by each way, in turn; medians. Maps lie in the
// order that the way wants. JSON on the standard output.
//     ninja -C build lockstep_bench_convolutions && build/lockstep_bench_convolutions [threads] [rounds]
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "dynamic/kernels/convolution.h"
#include "dynamic/kernels/kernel_choice.h"

namespace {

using lockstep::dynamic::forced_way;

struct Case {
  int64_t n, channels, size, out;
};

constexpr struct {
  int way;
  const char* name;
  bool is_innermost;
} kWays[] = {{0, "eager", false}, {1, "innermost", true}, {2, "columns", false}, {4, "winograd", true}};

double milliseconds(const Case& c, bool is_innermost, int part) {
  const auto order = is_innermost ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  const auto x = at::randn({c.n, c.channels, c.size, c.size}).contiguous(order);
  const auto y = at::randn({c.n, c.out, c.size, c.size}).contiguous(order);
  const auto w = at::randn({c.out, c.channels, 3, 3});
  const std::vector<int64_t> one{1, 1}, zero{0, 0};
  torch::jit::Stack stack{x, w, c10::IValue(), one, one, one, false, zero, int64_t{1}};
  if (part > 0)
    stack = {y, x, w, c10::IValue(), one, one, one, false, zero, int64_t{1}, c10::List<bool>({part == 1, part == 2, false})};
  const auto start = std::chrono::steady_clock::now();
  const bool was_done = part ? lockstep::dynamic::try_convolution_backward(stack, true)
                             : lockstep::dynamic::try_convolution(stack, true);
  if (!was_done) std::abort();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) at::set_num_threads(std::atoi(argv[1]));
  const int round_count = argc > 2 ? std::atoi(argv[2]) : 9;
  const c10::InferenceMode inference;
  constexpr Case kCases[] = {{32, 64, 32, 64},  {32, 128, 16, 128}, {32, 256, 8, 256}, {32, 512, 4, 512},
                             {4, 64, 56, 64},   {4, 32, 104, 64},   {8, 128, 26, 256}, {16, 16, 32, 16}};
  constexpr const char* kParts[] = {"forward", "input gradient", "weight gradient"};
  std::printf("{\n");
  for (const auto& c : kCases) {
    for (int part = 0; part < 3; ++part) {
      std::vector<double> times[std::size(kWays)];
      for (int round = -1; round < round_count; ++round)
        for (size_t w = 0; w < std::size(kWays); ++w) {
          forced_way = kWays[w].way;
          const double time = milliseconds(c, kWays[w].is_innermost, part);
          if (round >= 0) times[w].push_back(time);
        }
      std::printf("  \"%ldx%ldx%ldx%ld to %ld, %s\": {", c.n, c.channels, c.size, c.size, c.out, kParts[part]);
      for (size_t w = 0; w < std::size(kWays); ++w)
        std::printf("\"%s\": %.2f%s", kWays[w].name, median(times[w]), w + 1 < std::size(kWays) ? ", " : "}");
      std::printf(&c == std::end(kCases) - 1 && part == 2 ? "\n" : ",\n");
    }
  }
  std::printf("}\n");
}
