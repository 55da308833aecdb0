// Microseconds of small matrix products, each way that can take them in turn; medians, p10 and p90. JSON on the standard
// output.
//     ninja -C build lockstep_bench_products && build/lockstep_bench_products [threads] [rounds]
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/quantile.h"
#include "dynamic/kernels/kernel_choice.h"
#include "dynamic/kernels/product.h"

namespace {

struct Case {
  int64_t count, rows, depth, columns;  // count 0: mm, else bmm
  bool is_left_turned, is_right_turned;
};

constexpr const char* kWays[] = {"eager", "onednn", "strips", "as_gradient", "parts"};
constexpr int kCalls = 50;       // a sample

at::Tensor make(int64_t count, int64_t rows, int64_t columns, bool is_turned) {
  auto matrices = is_turned ? at::randn({std::max<int64_t>(count, 1), columns, rows}).transpose(1, 2)
                            : at::randn({std::max<int64_t>(count, 1), rows, columns});
  return count ? matrices : matrices[0];
}

double microseconds(const Case& product, const at::Tensor& left, const at::Tensor& right) {
  const auto start = std::chrono::steady_clock::now();
  for (int call = 0; call < kCalls; ++call) {
    torch::jit::Stack stack{left, right};
    const bool was_done = product.count ? lockstep::dynamic::try_bmm(stack) : lockstep::dynamic::try_mm(stack);
    if (!was_done) std::abort();
  }
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() / kCalls;
}

void measure(const Case& product, int round_count, bool is_last) {
  const auto left = make(product.count, product.rows, product.depth, product.is_left_turned);
  const auto right = make(product.count, product.depth, product.columns, product.is_right_turned);
  std::vector<double> times[std::size(kWays)];
  for (int round = -1; round < round_count; ++round) {
    for (size_t w = 0; w < std::size(kWays); ++w) {
      lockstep::dynamic::forced_way = static_cast<int>(w);
      const double time = microseconds(product, left, right);
      if (round >= 0) times[w].push_back(time);
    }
  }
  std::string name = product.count ? std::to_string(product.count) + " x " : "";
  name += std::to_string(product.rows) + "x" + std::to_string(product.depth) + (product.is_left_turned ? "t" : "") + " @ " +
          std::to_string(product.depth) + "x" + std::to_string(product.columns) + (product.is_right_turned ? "t" : "");
  std::printf("  \"%s\": {", name.c_str());
  for (size_t w = 0; w < std::size(kWays); ++w)
    std::printf("\"%s\": {\"median\": %.1f, \"p10\": %.1f, \"p90\": %.1f}%s", kWays[w], quantile(times[w], .5),
                quantile(times[w], .1), quantile(times[w], .9), w + 1 == std::size(kWays) ? "}" : ", ");
  std::printf(is_last ? "\n" : ",\n");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) at::set_num_threads(std::atoi(argv[1]));
  const int round_count = argc > 2 ? std::atoi(argv[2]) : 25;
  const c10::InferenceMode inference;
  constexpr Case kCases[] = {
      {0, 24, 192, 768, false, false}, {0, 24, 768, 192, false, true},  {0, 192, 24, 768, true, false},
      {0, 8, 256, 1024, false, false}, {0, 64, 128, 512, false, false}, {0, 100, 256, 300, false, true},
      {32, 50, 32, 50, false, true},   {32, 50, 50, 32, false, false},  {64, 64, 32, 64, false, true},
      {64, 64, 64, 32, true, false},   {0, 576, 128, 128, false, true}, {0, 576, 128, 128, false, false},
      {0, 128, 576, 128, true, false}, {0, 512, 128, 384, false, true}, {0, 384, 512, 128, true, false},
      {0, 128, 128, 256, false, true}, {0, 256, 128, 128, true, false}, {24, 96, 32, 96, false, true},
      {24, 96, 96, 32, false, false},  {24, 96, 96, 32, true, false},   {24, 32, 96, 96, true, false},
  };
  std::printf("{\n");
  for (const auto& product : kCases) measure(product, round_count, &product == std::end(kCases) - 1);
  std::printf("}\n");
}
