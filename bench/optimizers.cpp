// Bytes a second of optimizer steps on parameters that do not fit the cache: our kernel, PyTorch's fused one, and its loop of
// single ops, beside a plain copy, in turn; medians. Traffic is the least that the step needs. Not a test; needs an idle
// machine.
//     ninja -C build lockstep_bench_optimizers && build/lockstep_bench_optimizers [million parameters, 16] [rounds]
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "bench/quantile.h"
#include "dynamic/kernels/optimizer_steps.h"

namespace {

using namespace lockstep::dynamic;
using Tensors = std::vector<at::Tensor>;

constexpr int kTensors = 8;
constexpr double kRate = 1e-3, kDecay = 0.01, kEps = 1e-8;

struct Case {
  const char* name;
  int words;  // read and written for each parameter
  std::function<void()> own, fused, loop;
};

Tensors make(int64_t count, double from = -1) {
  Tensors tensors;
  for (int i = 0; i < kTensors; ++i) tensors.push_back(at::empty({count / kTensors}).uniform_(from, 1));
  return tensors;
}

void run(bool (*kernel)(torch::jit::Stack&), torch::jit::Stack stack) {
  if (!kernel(stack)) std::abort();
}

double seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::vector<Case> cases(int64_t count) {
  const auto p = make(count), g = make(count), m = make(count), s = make(count, 0);
  const Tensors counts(kTensors, at::scalar_tensor(10.0)), none;
  Tensors steps;
  for (const auto& step : counts) steps.push_back(step.clone());
  return {
      {"AdamW", 7,
       [=] {
         run(try_adamw_step, {p, g, m, s, none, steps, kRate, 0.9, 0.999, kDecay, kEps, false, false, c10::IValue(),
                              c10::IValue()});
       },
       [=] { at::_fused_adamw_(p, g, m, s, none, steps, kRate, 0.9, 0.999, kDecay, kEps, false, false); },
       [=] {
         for (int i = 0; i < kTensors; ++i) {
           p[i].mul_(1 - kRate * kDecay);
           m[i].lerp_(g[i], 0.1);
           s[i].mul_(0.999).addcmul_(g[i], g[i], 0.001);
           p[i].addcdiv_(m[i], (s[i].sqrt() / 0.1).add_(kEps), -kRate);
         }
       }},
      {"SGD with momentum", 5,
       [=] {
         run(try_sgd_step, {p, g, m, kDecay, 0.9, kRate, 0.0, false, false, false, c10::IValue(), c10::IValue()});
       },
       [=] { at::_fused_sgd_(p, g, m, kDecay, 0.9, kRate, 0, false, false, false); },
       [=] {
         for (int i = 0; i < kTensors; ++i) {
           const auto gradient = g[i].add(p[i], kDecay);
           m[i].mul_(0.9).add_(gradient);
           p[i].add_(m[i], -kRate);
         }
       }},
      {"Adagrad", 5,
       [=] { run(try_adagrad_step, {p, g, s, steps, kRate, 0.0, 0.0, kEps, false, c10::IValue(), c10::IValue()}); },
       [=] { at::_fused_adagrad_(p, g, s, steps, kRate, 0, 0, kEps, false); },
       [=] {
         for (int i = 0; i < kTensors; ++i) {
           s[i].addcmul_(g[i], g[i]);
           p[i].addcdiv_(g[i], s[i].sqrt().add_(kEps), -kRate);
         }
       }},
  };
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t count = (argc > 1 ? std::atoll(argv[1]) : 16) << 20;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 9;
  const auto from = make(count), to = make(count);
  std::printf("%-8s %-20s %8s %8s %8s %8s %8s\n", "threads", "GB/s", "ours", "fused", "loop", "copy", "of copy");
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    for (const auto& step : cases(count)) {
      const std::function<void()> copy = [&] {
        for (int i = 0; i < kTensors; ++i) to[i].copy_(from[i]);
      };
      const std::function<void()> work[] = {step.own, step.fused, step.loop, copy};
      std::vector<double> rates[4];
      for (int round = -1; round < rounds; ++round)
        for (int w = 0; w < 4; ++w) {
          const double rate = 4e-9 * static_cast<double>(count) * (w == 3 ? 2 : step.words) / seconds(work[w]);
          if (round >= 0) rates[w].push_back(rate);
        }
      double median[4];
      for (int w = 0; w < 4; ++w) median[w] = quantile(rates[w], 0.5);
      std::printf("%-8d %-20s %8.1f %8.1f %8.1f %8.1f %7.0f%%\n", threads, step.name, median[0], median[1], median[2],
                  median[3], 100 * median[0] / median[3]);
      std::fflush(stdout);
    }
  }
}
