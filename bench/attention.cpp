// Milliseconds of attention and its gradients by PyTorch's kernel and by ours, in turn; medians, and billions of
// operations a second in the products that the algorithm has. And the largest error against float64, of the largest value.
// JSON on the standard output.
//     ninja -C build lockstep_bench_attention && build/lockstep_bench_attention [threads] [rounds]
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <vector>

#include "bench/quantile.h"
#include "dynamic/kernels/attention.h"
#include "dynamic/kernels/kernel_choice.h"

namespace {

using at::Tensor;

struct Case {
  int64_t batch, heads, length, width;
  bool is_causal, has_mask;
};

constexpr const char* kWays[] = {"eager", "own"};
constexpr const char* kParts[] = {"forward", "backward"};

struct Problem {
  Case c;
  Tensor query, key, value, gradient, out, logarithms;
  c10::IValue mask;

  // As modules make them: (batch, length, heads, width), with two dims exchanged.
  explicit Problem(const Case& c) : c(c) {
    const auto make = [&] { return at::randn({c.batch, c.length, c.heads, c.width}).transpose(1, 2); };
    query = make(), key = make(), value = make(), gradient = make();
    if (c.has_mask) mask = at::randn({c.batch, 1, c.length, c.length});
    std::tie(out, logarithms) = at::_scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0, c.is_causal, mask.toOptional<Tensor>());
  }

  std::vector<Tensor> exact(int part) const {
    const auto exactly = [](const Tensor& tensor) { return tensor.to(at::kDouble); };
    std::optional<Tensor> added;
    if (c.has_mask) added = exactly(mask.toTensor());
    const auto q = exactly(query), k = exactly(key), v = exactly(value);
    const auto [result, sums] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0, c.is_causal, added);
    if (part == 0) return {result, sums};
    const auto [of_q, of_k, of_v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(exactly(gradient), q, k, v, result,
                                                                                          sums, 0, c.is_causal, added);
    return {of_q, of_k, of_v};
  }

  std::vector<Tensor> run(int way, int part, double* milliseconds) const {
    lockstep::dynamic::forced_way = way;
    torch::jit::Stack stack;
    if (part == 0) stack = {query, key, value, 0.0, c.is_causal, mask, c10::IValue()};
    if (part == 1) stack = {gradient, query, key, value, out, logarithms, 0.0, c.is_causal, mask, c10::IValue()};
    const auto start = std::chrono::steady_clock::now();
    if (!(part ? lockstep::dynamic::try_attention_backward(stack) : lockstep::dynamic::try_attention(stack))) std::abort();
    *milliseconds = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    std::vector<Tensor> results;
    for (const auto& value : stack) results.push_back(value.toTensor());
    return results;
  }
};

double error_of(const std::vector<Tensor>& results, const std::vector<Tensor>& exact) {
  double worst = 0;
  for (size_t i = 0; i < results.size(); ++i)
    worst = std::max(worst, ((results[i].to(at::kDouble) - exact[i]).abs().max() / exact[i].abs().max()).item<double>());
  return worst;
}

void measure(const Case& c, int part, int round_count) {
  const Problem problem(c);
  const auto exact = problem.exact(part);
  std::vector<double> times[std::size(kWays)];
  double errors[std::size(kWays)];
  for (int round = -1; round < round_count; ++round)
    for (size_t way = 0; way < std::size(kWays); ++way) {
      double time = 0;
      const auto results = problem.run(static_cast<int>(way), part, &time);
      if (round >= 0) times[way].push_back(time);
      if (round < 0) errors[way] = error_of(results, exact);
    }
  const double products = (part ? 5 : 2) * (c.is_causal ? .5 : 1);
  const double operations = 2 * products * static_cast<double>(c.batch * c.heads * c.length * c.length * c.width);
  std::printf("  \"%ldx%ld heads, %ld long, %ld wide%s%s, %s\": {", c.batch, c.heads, c.length, c.width,
              c.is_causal ? ", causal" : "", c.has_mask ? ", mask" : "", kParts[part]);
  for (size_t way = 0; way < std::size(kWays); ++way) {
    const double time = quantile(times[way], 0.5);
    std::printf("\"%s\": {\"ms\": %.3f, \"gigaflops\": %.0f, \"error\": %.1e}%s", kWays[way], time, operations / time / 1e6,
                errors[way], way + 1 < std::size(kWays) ? ", " : "}");
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) at::set_num_threads(std::atoi(argv[1]));
  const int round_count = argc > 2 ? std::atoi(argv[2]) : 15;
  const c10::InferenceMode inference;
  constexpr Case kCases[] = {
      {8, 6, 96, 32, false, false},  {8, 6, 96, 32, true, false},   {8, 8, 128, 32, false, false}, {8, 8, 128, 32, false, true},
      {4, 12, 128, 64, false, false}, {4, 12, 128, 64, true, false}, {8, 3, 65, 64, false, false},  {2, 8, 512, 64, true, false},
      {2, 16, 256, 64, false, false}, {64, 3, 49, 32, false, true},  {1, 4, 2048, 64, true, false}, {8, 4, 32, 24, false, false},
      {2, 8, 197, 80, false, false}};
  std::printf("{\n");
  for (const auto& c : kCases) {
    for (int part = 0; part < 2; ++part) {
      measure(c, part, round_count);
      std::printf(&c == std::end(kCases) - 1 && part == 1 ? "\n" : ",\n");
    }
  }
  std::printf("}\n");
}
