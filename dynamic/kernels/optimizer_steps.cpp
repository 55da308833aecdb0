#include "dynamic/kernels/optimizer_steps.h"

#include <ATen/Context.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "dynamic/kernels/float_tensor.h"
#include "dynamic/kernels/optimizer_loops.h"
#include "dynamic/kernels/pieces.h"

namespace lockstep::dynamic {

namespace {

constexpr int64_t kFew = 1 << 17;    // parameters that one thread has done in some 100 us

// A tensor without holes, as a part of its storage or of all memory.
struct Range {
  const c10::StorageImpl* storage;  // null: begin and end are addresses
  uintptr_t begin, end;
  bool is_written;
};

// Strides of dims of size 1 say nothing: gradients of weights with one channel have other ones than the weights.
bool is_laid_out_as(const at::Tensor& tensor, const at::Tensor& parameter) {
  if (!is_whole_float_tensor(tensor) || tensor.sizes() != parameter.sizes()) return false;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim)
    if (tensor.size(dim) != 1 && tensor.stride(dim) != parameter.stride(dim)) return false;
  return true;
}

bool writes_what_others_use(std::vector<Range>& ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return a.storage != b.storage ? std::less<>()(a.storage, b.storage) : a.begin < b.begin;
  });
  const Range* furthest = nullptr;        // of this storage so far
  const Range* furthest_written = nullptr;
  for (const auto& range : ranges) {
    if (furthest && furthest->storage != range.storage) furthest = furthest_written = nullptr;
    const auto reaches = [&](const Range* other) { return other && other->end > range.begin && range.end > range.begin; };
    if (range.is_written ? reaches(furthest) : reaches(furthest_written)) return true;
    if (!furthest || range.end > furthest->end) furthest = &range;
    if (range.is_written && (!furthest_written || range.end > furthest_written->end)) furthest_written = &range;
  }
  return false;
}

}  // namespace

bool has_usual_rates(double rate, double weight_decay, std::initializer_list<double> below_one) {
  const auto is_usual = [](double number) { return number == 0 || (std::abs(number) > 1e-30 && std::abs(number) < 1e30); };
  return is_usual(rate) && is_usual(weight_decay) &&
         std::all_of(below_one.begin(), below_one.end(), [](double number) { return number >= 0 && number < 1; });
}

bool fit_one_step(const StepTensors& tensors, SharedBy shared_by) {
  const size_t count = tensors.parameters.size();
  const auto is_complete = [count](const std::vector<at::Tensor>& list) { return list.size() == count; };
  if (!is_complete(tensors.gradients) || !std::all_of(tensors.states.begin(), tensors.states.end(), is_complete) ||
      !(tensors.counts.empty() || is_complete(tensors.counts)))
    return false;
  std::vector<Range> ranges;
  ranges.reserve(count * (3 + tensors.states.size()));
  const auto add = [&](const at::Tensor& tensor, bool is_written) {
    const bool by_address = shared_by == SharedBy::kAddress;
    const uintptr_t begin = by_address ? reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) : tensor.storage_offset();
    const size_t values = tensor.numel() * (by_address ? sizeof(float) : 1);
    ranges.push_back({by_address ? nullptr : tensor.storage().unsafeGetStorageImpl(), begin, begin + values, is_written});
  };
  for (size_t i = 0; i < count; ++i) {
    const auto& parameter = tensors.parameters[i];
    if (!is_whole_float_tensor(parameter) || !is_laid_out_as(tensors.gradients[i], parameter)) return false;
    add(parameter, true);
    add(tensors.gradients[i], false);
    for (const auto& state : tensors.states) {
      if (!is_laid_out_as(state[i], parameter)) return false;
      add(state[i], true);
    }
    if (tensors.counts.empty()) continue;
    if (!is_whole_float_tensor(tensors.counts[i]) || tensors.counts[i].dim() != 0) return false;
    add(tensors.counts[i], true);
  }
  return !writes_what_others_use(ranges);
}

namespace {

// body(piece) for pieces of all parameters.
template <class Body>
void each_piece_of(const std::vector<at::Tensor>& parameters, const Body& body) {
  const auto pieces = pieces_of(parameters);
  each_piece(pieces, kFew, [&](int64_t i) { body(pieces[i]); });
}

// Where the values of each tensor begin. What is written and shares its memory until then gets its own.
std::vector<float*> memory_to_write(const std::vector<at::Tensor>& tensors) {
  std::vector<float*> memory;
  for (const auto& tensor : tensors) memory.push_back(tensor.mutable_data_ptr<float>());
  return memory;
}

struct Memory {
  std::vector<float*> parameters;
  std::vector<const float*> gradients;
  std::vector<std::vector<float*>> states;

  explicit Memory(const StepTensors& step) : parameters(memory_to_write(step.parameters)) {
    for (const auto& gradient : step.gradients) gradients.push_back(gradient.const_data_ptr<float>());
    for (const auto& state : step.states) states.push_back(memory_to_write(state));
  }
  float* parameter(const Piece& piece) const { return parameters[piece.tensor] + piece.begin; }
  const float* gradient(const Piece& piece) const { return gradients[piece.tensor] + piece.begin; }
  float* state(size_t which, const Piece& piece) const { return states[which][piece.tensor] + piece.begin; }
};

// Scaled gradients and steps that may be skipped are PyTorch's, and so is all where its bits are asked for.
bool is_refused(const c10::IValue& grad_scale, const c10::IValue& found_inf) {
  return !grad_scale.isNone() || !found_inf.isNone() || at::globalContext().deterministicAlgorithms();
}

double count_of(const at::Tensor& count) { return *count.const_data_ptr<float>(); }

// self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, lr, beta1, beta2, weight_decay, eps, amsgrad, maximize,
// grad_scale, found_inf. Numbers are computed in double and rounded once, as Python does.
bool try_adam(torch::jit::Stack& stack, bool is_decoupled) {
  if (is_refused(stack[13], stack[14])) return false;
  StepTensors step{stack[0].toTensorVector(), stack[1].toTensorVector(),
                   {stack[2].toTensorVector(), stack[3].toTensorVector()}, stack[5].toTensorVector()};
  const bool keeps_largest = stack[11].toBool();
  if (keeps_largest) step.states.push_back(stack[4].toTensorVector());
  if (step.counts.size() != step.parameters.size() || !fit_one_step(step, SharedBy::kAddress)) return false;
  const double rate = stack[6].toDouble(), beta1 = stack[7].toDouble(), beta2 = stack[8].toDouble();
  const double weight_decay = stack[9].toDouble();
  AdamNumbers common;
  common.sign = stack[12].toBool() ? -1 : 1;
  common.weight_decay = static_cast<float>(is_decoupled ? 0 : weight_decay);
  common.keep = static_cast<float>(is_decoupled ? 1 - rate * weight_decay : 1);
  common.to_gradient = static_cast<float>(1 - beta1);
  common.beta2 = static_cast<float>(beta2);
  common.from_square = static_cast<float>(1 - beta2);
  common.eps = static_cast<float>(stack[10].toDouble());
  std::vector<AdamNumbers> numbers(step.parameters.size(), common);
  for (size_t i = 0; i < numbers.size(); ++i) {
    const double count = count_of(step.counts[i]);
    numbers[i].rate = static_cast<float>(rate / (1 - std::pow(beta1, count)));
    numbers[i].correction = static_cast<float>(std::sqrt(1 - std::pow(beta2, count)));
  }
  const auto& loops = optimizer_loops();
  const Memory memory(step);
  each_piece_of(step.parameters, [&](const Piece& piece) {
    loops.adam(memory.parameter(piece), memory.gradient(piece), memory.state(0, piece), memory.state(1, piece),
               keeps_largest ? memory.state(2, piece) : nullptr, piece.count, numbers[piece.tensor]);
  });
  stack.clear();
  return true;
}

}  // namespace

bool try_adam_step(torch::jit::Stack& stack) { return try_adam(stack, /*is_decoupled=*/false); }
bool try_adamw_step(torch::jit::Stack& stack) { return try_adam(stack, /*is_decoupled=*/true); }

// self, grads, momentum_buffer_list, weight_decay, momentum, lr, dampening, nesterov, maximize, is_first_step, grad_scale,
// found_inf
bool try_sgd_step(torch::jit::Stack& stack) {
  if (is_refused(stack[10], stack[11]) || stack[9].toBool()) return false;
  StepTensors step{stack[0].toTensorVector(), stack[1].toTensorVector(), {}, {}};
  SgdNumbers numbers;
  const double momentum = stack[4].toDouble();
  const bool has_momentum = momentum != 0;
  if (has_momentum) step.states.push_back(stack[2].toTensorVector());
  if (!fit_one_step(step, SharedBy::kAddress)) return false;
  numbers.sign = stack[8].toBool() ? -1 : 1;
  numbers.weight_decay = static_cast<float>(stack[3].toDouble());
  numbers.momentum = static_cast<float>(momentum);
  numbers.from_gradient = static_cast<float>(1 - stack[6].toDouble());
  numbers.rate = static_cast<float>(stack[5].toDouble());
  numbers.is_nesterov = stack[7].toBool();
  const auto& loops = optimizer_loops();
  const Memory memory(step);
  each_piece_of(step.parameters, [&](const Piece& piece) {
    loops.sgd(memory.parameter(piece), memory.gradient(piece), has_momentum ? memory.state(0, piece) : nullptr,
              piece.count, numbers);
  });
  stack.clear();
  return true;
}

// self, grads, state_sums, state_steps, lr, lr_decay, weight_decay, eps, maximize, grad_scale, found_inf
bool try_adagrad_step(torch::jit::Stack& stack) {
  if (is_refused(stack[9], stack[10])) return false;
  const StepTensors step{stack[0].toTensorVector(), stack[1].toTensorVector(), {stack[2].toTensorVector()},
                         stack[3].toTensorVector()};
  if (step.counts.size() != step.parameters.size() || !fit_one_step(step, SharedBy::kAddress)) return false;
  AdagradNumbers common;
  common.sign = stack[8].toBool() ? -1 : 1;
  common.weight_decay = static_cast<float>(stack[6].toDouble());
  common.eps = static_cast<float>(stack[7].toDouble());
  std::vector<AdagradNumbers> numbers(step.parameters.size(), common);
  for (size_t i = 0; i < numbers.size(); ++i)
    numbers[i].rate = static_cast<float>(stack[4].toDouble() / (1 + (count_of(step.counts[i]) - 1) * stack[5].toDouble()));
  const auto& loops = optimizer_loops();
  const Memory memory(step);
  each_piece_of(step.parameters, [&](const Piece& piece) {
    loops.adagrad(memory.parameter(piece), memory.gradient(piece), memory.state(0, piece), piece.count,
                  numbers[piece.tensor]);
  });
  stack.clear();
  return true;
}

// self, grads, square_avgs, grad_avgs, momentum_buffers, lr, alpha, eps, weight_decay, momentum, maximize
bool try_rmsprop_step(torch::jit::Stack& stack) {
  if (at::globalContext().deterministicAlgorithms()) return false;
  StepTensors step{stack[0].toTensorVector(), stack[1].toTensorVector(), {stack[2].toTensorVector()}, {}};
  const auto means = stack[3].toTensorVector(), buffers = stack[4].toTensorVector();
  for (const auto& optional : {means, buffers})
    if (!optional.empty()) step.states.push_back(optional);
  if (!fit_one_step(step, SharedBy::kAddress)) return false;
  RmspropNumbers numbers;
  const double alpha = stack[6].toDouble();
  numbers.sign = stack[10].toBool() ? -1 : 1;
  numbers.weight_decay = static_cast<float>(stack[8].toDouble());
  numbers.rate = static_cast<float>(stack[5].toDouble());
  numbers.eps = static_cast<float>(stack[7].toDouble());
  numbers.momentum = static_cast<float>(stack[9].toDouble());
  numbers.alpha = static_cast<float>(alpha);
  numbers.from_square = static_cast<float>(1 - alpha);
  const auto& loops = optimizer_loops();
  const Memory memory(step);
  each_piece_of(step.parameters, [&](const Piece& piece) {
    loops.rmsprop(memory.parameter(piece), memory.gradient(piece), memory.state(0, piece),
                  means.empty() ? nullptr : memory.state(1, piece),
                  buffers.empty() ? nullptr : memory.state(step.states.size() - 1, piece), piece.count, numbers);
  });
  stack.clear();
  return true;
}

// self, scalar
bool try_count_steps(torch::jit::Stack& stack) {
  if (!stack[1].isInt() && !stack[1].isDouble()) return false;
  const auto tensors = stack[0].toTensorVector();
  if (tensors.empty()) return false;  // PyTorch raises
  for (const auto& tensor : tensors)
    if (!is_whole_float_tensor(tensor) || tensor.dim() != 0) return false;
  const double exact = stack[1].toScalar().toDouble();
  if (stack[1].isInt() && std::abs(exact) > 0x1p53) return false;  // it would be rounded twice
  if (std::isfinite(exact) && std::abs(exact) > std::numeric_limits<float>::max()) return false;  // PyTorch raises
  const auto number = static_cast<float>(exact);
  for (const auto& tensor : tensors) *tensor.mutable_data_ptr<float>() += number;
  stack.clear();
  return true;
}

}  // namespace lockstep::dynamic
