#include "dynamic/kernels/by_float32.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <functional>
#include <optional>

#include "dynamic/kernels/kernel_choice.h"
#include "dynamic/kernels/product.h"
#include "graph/layout.h"

namespace lockstep::dynamic {

namespace {

constexpr int64_t kSmallestWork = 1 << 14;  // values; below it the calls themselves count
constexpr int64_t kByFloat32 = 20;          // of the problem; products have smaller ones
enum Way { kAsEager, kWidened };

bool is_tensor(const c10::IValue& value) { return value.isTensor() && value.toTensor().defined(); }

// What attention keeps of its sums is float32 in any case.
constexpr size_t kSumsOfResults = 1, kSumsOfArguments = 5;
size_t results_of(const graph::OpInfo& op) {
  return op.name == "aten::_scaled_dot_product_flash_attention_for_cpu" ? kSumsOfResults : op.returns.size();
}

// Of other types, or of several, PyTorch's kernel may say that it does not take them.
bool are_plain(const graph::OpInfo& op, const torch::jit::Stack& stack) {
  const bool has_sums = op.name == "aten::_scaled_dot_product_flash_attention_for_cpu_backward";
  for (size_t i = 0; i < stack.size(); ++i) {
    if (!is_tensor(stack[i])) continue;
    const auto& tensor = stack[i].toTensor();
    const auto type = has_sums && i == kSumsOfArguments ? at::kFloat : at::kBFloat16;
    if (!tensor.is_cpu() || tensor.layout() != at::kStrided || tensor.is_neg() || tensor.scalar_type() != type) return false;
  }
  return true;
}

// Of the first `count` values the tensors of one type.
torch::jit::Stack converted(torch::jit::Stack stack, at::ScalarType from, at::ScalarType to, size_t count) {
  for (size_t i = 0; i < count; ++i)
    if (auto& value = stack[i]; is_tensor(value) && value.toTensor().scalar_type() == from)
      value = value.toTensor().to(to);
  return stack;
}

Problem problem_of(const graph::OpInfo& op, const torch::jit::Stack& stack) {
  graph::SignatureWords words;
  for (const auto& value : stack) {
    if (!is_tensor(value)) {
      graph::append_constant(words, value.isTensor() ? c10::IValue() : value);
      continue;
    }
    const auto& tensor = value.toTensor();
    words.push_back(tensor.is_contiguous());
    for (const int64_t size : tensor.sizes()) words.push_back(rough_size(size));  // sequences may grow from call to call
  }
  Problem problem{kByFloat32, static_cast<int64_t>(std::hash<std::string>()(op.name)), at::get_num_threads()};
  problem.insert(problem.end(), words.begin(), words.end());
  return problem;
}

}  // namespace

bool try_by_float32(const graph::OpInfo& op, const OwnKernelRow* row, torch::jit::Stack& stack) {
  if ((has_bfloat16_products() && forced_way < 0) || at::globalContext().deterministicAlgorithms()) return false;
  if (!are_plain(op, stack)) return false;
  int64_t values = 0, bytes = 0;
  for (const auto& value : stack) {
    if (!is_tensor(value)) continue;
    values += value.toTensor().numel();
    bytes += static_cast<int64_t>(value.toTensor().nbytes());
  }
  if (values < kSmallestWork) return false;
  const auto problem = problem_of(op, stack);
  const bool is_settled = choice_for(problem).settled_way() >= 0;
  torch::jit::Stack results;
  run_chosen(
      problem, 1u << kAsEager | 1u << kWidened, static_cast<double>(values), [](int) { return 1.0; },
      [&](int way, size_t of_eager) { return way == kAsEager ? of_eager : 3 * of_eager + 2 * static_cast<size_t>(bytes); },
      [](int) {},
      [&](int way) {
        if (way == kAsEager) {
          results = stack;
          op.handle.callBoxed(&results);
          return;
        }
        std::optional<FixedChoiceScope> fixed;  // one thing is measured at a time
        if (!is_settled) fixed.emplace(true);
        results = converted(stack, at::kBFloat16, at::kFloat, stack.size());
        if (!row || !row->run(results)) op.handle.callBoxed(&results);
        results = converted(std::move(results), at::kFloat, at::kBFloat16, results_of(op));
      });
  stack = std::move(results);
  return true;
}

}  // namespace lockstep::dynamic
