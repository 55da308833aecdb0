#include "dynamic/kernels/by_float32.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "dynamic/kernels/convolution.h"
#include "dynamic/kernels/kernel_choice.h"
#include "dynamic/kernels/product.h"
#include "graph/layout.h"

namespace lockstep::dynamic {

namespace {

constexpr int64_t kSmallestWork = 1 << 14;  // values; below it the calls themselves count
constexpr int64_t kByFloat32 = 20;          // of the problem; products have smaller ones
enum Way { kAsEager, kWidened };

// The peak of memory may rise by an eighth, or a little: a step in halves of float32 takes half of its memory, of which one
// op's operands are little, and PyTorch's kernels may take 20 times as long.
constexpr size_t kLittle = 1 << 24, kRiseShare = 8;

bool is_tensor(const c10::IValue& value) { return value.isTensor() && value.toTensor().defined(); }

// PyTorch's products make full use of a processor that multiplies pairs of bfloat16. Its attention and convolutions do not,
// always: gradients of attention of small heads took four times as long as by way of float32.
bool is_for_processor(const graph::OpInfo& op, at::ScalarType type) {
  return type == at::kBFloat16 && has_bfloat16_products() && is_product(op);
}

// What attention keeps of its sums is float32 in any case.
constexpr size_t kSumsOfResults = 1, kSumsOfArguments = 5;
size_t results_of(const graph::OpInfo& op) {
  return op.name == "aten::_scaled_dot_product_flash_attention_for_cpu" ? kSumsOfResults : op.returns.size();
}

at::ScalarType type_of(const torch::jit::Stack& stack) {
  const auto first = std::find_if(stack.begin(), stack.end(), is_tensor);
  return first == stack.end() ? at::ScalarType::Undefined : first->toTensor().scalar_type();
}

// Of other types, or of several, PyTorch's kernel may say that it does not take them.
bool are_plain(const graph::OpInfo& op, const torch::jit::Stack& stack, at::ScalarType of_all) {
  if (of_all != at::kBFloat16 && of_all != at::kHalf) return false;
  const bool has_sums = op.name == "aten::_scaled_dot_product_flash_attention_for_cpu_backward";
  for (size_t i = 0; i < stack.size(); ++i) {
    if (!is_tensor(stack[i])) continue;
    const auto& tensor = stack[i].toTensor();
    const auto type = has_sums && i == kSumsOfArguments ? at::kFloat : of_all;
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

Problem problem_of(const graph::OpInfo& op, const torch::jit::Stack& stack, at::ScalarType type) {
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
  Problem problem{kByFloat32, static_cast<int64_t>(std::hash<std::string>()(op.name)), static_cast<int64_t>(type),
                  at::get_num_threads()};
  problem.insert(problem.end(), words.begin(), words.end());
  return problem;
}

}  // namespace

bool try_by_float32(const graph::OpInfo& op, const OwnKernelRow* row, torch::jit::Stack& stack) {
  const auto type = type_of(stack);
  if (at::globalContext().deterministicAlgorithms() || !multiplies_in_float32() || !are_plain(op, stack, type)) return false;
  if (op.base == "aten::convolution_backward" && wants_bias_alone(stack.back())) return false;
  if (is_for_processor(op, type) && forced_way < 0) return false;
  int64_t values = 0, bytes = 0;
  for (const auto& value : stack) {
    if (!is_tensor(value)) continue;
    values += value.toTensor().numel();
    bytes += static_cast<int64_t>(value.toTensor().nbytes());
  }
  if (values < kSmallestWork) return false;
  const auto problem = problem_of(op, stack, type);
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
        const RoundedProductsScope rounded(RoundedProductsScope::is_on() && type == at::kBFloat16);  // else digits were lost
        std::optional<FixedChoiceScope> fixed;  // one thing is measured at a time
        if (!is_settled) fixed.emplace(true);
        results = converted(stack, type, at::kFloat, stack.size());
        if (!row || !row->run(results)) op.handle.callBoxed(&results);
        results = converted(std::move(results), at::kFloat, type, results_of(op));
      },
      is_settled ? 0 : std::max(kLittle, room_for_trials().peak / kRiseShare));
  stack = std::move(results);
  return true;
}

}  // namespace lockstep::dynamic
