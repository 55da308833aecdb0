// Nanoseconds an element of the samplers against PyTorch's, one thread, in turn; medians. JSON on the standard output.
//     ninja -C build lockstep_bench_random && build/lockstep_bench_random [elements] [rounds]
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "bench/quantile.h"
#include "dynamic/kernels/random.h"
#include "dynamic/kernels/vector_loops.h"

namespace {

using lockstep::dynamic::InstructionSet;

struct Row {
  const char* name;
  std::function<bool()> own;
  std::function<void()> eager;
};

double nanoseconds(const std::function<void()>& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
}

void print(const char* name, const std::vector<double>& values, const char* end) {
  std::printf("\"%s\": {\"median\": %.3f, \"p10\": %.3f, \"p90\": %.3f}%s", name, quantile(values, 0.5),
              quantile(values, 0.1), quantile(values, 0.9), end);
}

void measure(const Row& row, int64_t count, int round_count, bool is_last) {
  constexpr struct {
    InstructionSet set;
    const char* name;
  } kSets[] = {{InstructionSet::kBaseline, "baseline"}, {InstructionSet::kAvx2, "avx2"},
               {InstructionSet::kAvx512, "avx512"}};
  std::vector<double> eager, own[3];
  const auto per_element = 1.0 / static_cast<double>(count);
  for (int round = -1; round < round_count; ++round) {
    const double eager_time = nanoseconds(row.eager) * per_element;
    if (round >= 0) eager.push_back(eager_time);
    for (int i = 0; i <= static_cast<int>(lockstep::dynamic::best_instruction_set()); ++i) {
      lockstep::dynamic::use_instruction_set(kSets[i].set);
      bool was_done = false;
      const double time = nanoseconds([&] { was_done = row.own(); }) * per_element;
      if (round >= 0 && was_done) own[i].push_back(time);
    }
  }
  std::printf("  \"%s\": {", row.name);
  for (int i = 0; i < 3; ++i)
    if (!own[i].empty()) print(kSets[i].name, own[i], ", ");
  print("eager", eager, is_last ? "}\n" : "},\n");
}

}  // namespace

int main(int argc, char** argv) {
  using namespace lockstep::dynamic;
  const int64_t count = argc > 1 ? std::atoll(argv[1]) : 10'000'000;
  const int round_count = argc > 2 ? std::atoi(argv[2]) : 9;
  at::set_num_threads(1);
  const c10::InferenceMode inference;
  at::Tensor values = at::empty({count}), halves = at::empty({count}, at::kBFloat16);
  at::Tensor doubles = at::empty({count}, at::kDouble), integers = at::empty({count}, at::kLong);
  const at::Tensor p = at::rand({count});
  std::vector<uint8_t> bits(count / 8 + 1);
  const std::optional<at::Generator> none;
  const Row rows[] = {
      {"bernoulli_ float32", [&] { return try_bernoulli_(values, 0.9, none); }, [&] { values.bernoulli_(0.9); }},
      {"bernoulli_ bfloat16", [&] { return try_bernoulli_(halves, 0.9, none); }, [&] { halves.bernoulli_(0.9); }},
      {"bernoulli bits", [&] { return generate_bernoulli_mask(at::kFloat, none, 0.9, count, bits.data()); },
       [&] { values.bernoulli_(0.9); }},
      {"bernoulli_ each", [&] { return try_bernoulli_(values, p, none); }, [&] { values.bernoulli_(p); }},
      {"uniform_ float32", [&] { return try_uniform_(values, 0, 1, none); }, [&] { values.uniform_(0, 1); }},
      {"uniform_ bfloat16", [&] { return try_uniform_(halves, 0, 1, none); }, [&] { halves.uniform_(0, 1); }},
      {"uniform_ float64", [&] { return try_uniform_(doubles, 0, 1, none); }, [&] { doubles.uniform_(0, 1); }},
      {"normal_ float32", [&] { return try_normal_(values, 0, 1, none); }, [&] { values.normal_(0, 1); }},
      {"normal_ bfloat16", [&] { return try_normal_(halves, 0, 1, none); }, [&] { halves.normal_(0, 1); }},
      {"normal_ float64", [&] { return try_normal_(doubles, 0, 1, none); }, [&] { doubles.normal_(0, 1); }},
      {"random_ int64 < 1000", [&] { return try_random_(integers, 0, 1000, none); },
       [&] { integers.random_(0, 1000); }},
      {"random_ int64", [&] { return try_random_(integers, none); }, [&] { integers.random_(); }},
  };
  std::printf("{\n");
  for (const auto& row : rows) measure(row, count, round_count, &row == std::end(rows) - 1);
  std::printf("}\n");
}
