#include "dynamic/kernels/convolution.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/accumulate.h>
#include <c10/util/strides.h>

#include <atomic>

#include "dynamic/kernels/convolution_depthwise.h"
#include "dynamic/kernels/convolution_strips.h"
#include "dynamic/kernels/convolution_ways.h"
#include "dynamic/kernels/float_tensor.h"
#include "dynamic/kernels/kernel_choice.h"
#include "dynamic/kernels/map_order.h"
#include "dynamic/kernels/winograd.h"
#include "dynamic/threads/shared_loop.h"
#include "dynamic/vm/allocator.h"
#include "dynamic/vm/memory_log.h"

namespace lockstep::dynamic {

namespace {

using at::IntArrayRef;
using at::Tensor;

constexpr int64_t kSmallColumnsBytes = 1 << 20;  // whatever the maps take
constexpr size_t kScratchShare = 2;  // of maps: what oneDNN's kernels ask for beside them, where it is not known
constexpr int64_t kFewestChannels = 8;  // that have a window each
constexpr int64_t kSmallPaddedBytes = 1 << 22;
constexpr double kOpening = 1.1;  // who makes the first map with channels innermost makes work for others, perhaps
constexpr auto kChannelsLast = at::MemoryFormat::ChannelsLast;

struct Convolution {
  Tensor input, weight;
  std::vector<int64_t> stride, padding, dilation, output_padding;
  bool transposed = false;
  int64_t groups = 1;
  bool in_any_order = false;  // maps come, and may go, with their channels innermost
  bool is_visibly_innermost = false;  // they lie so for everybody, and so do eager's results
};

// From argument `at`: stride, padding, dilation, transposed, output_padding, groups.
bool read_geometry(Convolution& c, const torch::jit::Stack& stack, size_t at) {
  for (const size_t list : {at, at + 1, at + 2, at + 4})
    if (!stack[list].isIntList() || stack[list].toIntVector().size() != 2) return false;
  c.stride = stack[at].toIntVector();
  c.padding = stack[at + 1].toIntVector();
  c.dilation = stack[at + 2].toIntVector();
  c.transposed = stack[at + 3].toBool();
  c.output_padding = stack[at + 4].toIntVector();
  c.groups = stack[at + 5].toInt();
  const auto all = [](const std::vector<int64_t>& list, int64_t least) { return list[0] >= least && list[1] >= least; };
  return all(c.stride, 1) && all(c.padding, 0) && all(c.dilation, 1) && all(c.output_padding, 0) &&
         c.groups >= 1;  // else eager says what is wrong
}

bool is_float_map(const Tensor& tensor) {
  return is_float_tensor(tensor) && tensor.dim() == 4 && tensor.numel() > 0;
}

bool is_plain(const Tensor& tensor) { return is_float_map(tensor) && tensor.is_contiguous(); }

bool is_innermost(const Tensor& map) { return !map.is_contiguous(); }

bool is_map(const Tensor& tensor, const Convolution& c) {
  const bool may_be_innermost = c.in_any_order || c.is_visibly_innermost;
  return is_plain(tensor) || (may_be_innermost && is_float_map(tensor) && tensor.is_contiguous(kChannelsLast));
}

// As channels_last makes them, or a permutation. Where a dim has one item, strides do not tell; and single pixels of one
// sample go another way in eager, whose gradients lie otherwise.
bool lies_innermost(const Convolution& c) {
  if (!is_float_map(c.input) || !is_float_map(c.weight)) return false;
  if (c.input.size(0) == 1 && c.weight.size(2) == 1 && c.weight.size(3) == 1) return false;
  return is_innermost(c.input) && c.input.is_contiguous(kChannelsLast) && c.input.size(2) > 1 && c.input.size(3) > 1 &&
         c.weight.size(0) > 1 && !c.transposed && (c.weight.is_contiguous() || c.weight.is_contiguous(kChannelsLast));
}

bool can_choose(const Convolution& c) {
  const auto& context = at::globalContext();
  return is_map(c.input, c) && (c.is_visibly_innermost || is_plain(c.weight)) && context.userEnabledMkldnn() &&
         !context.deterministicAlgorithms();
}

int64_t window(const Convolution& c, int dim) { return c.dilation[dim] * (c.weight.size(2 + dim) - 1) + 1; }

// Of a dim of the input, or of the map that a transposed convolution makes.
int64_t out_size(const Convolution& c, int dim, int64_t size) {
  const int64_t room = size + 2 * c.padding[dim] - window(c, dim);
  return room < 0 ? 0 : room / c.stride[dim] + 1;
}
int64_t transposed_size(const Convolution& c, int dim) {
  return (c.input.size(2 + dim) - 1) * c.stride[dim] - 2 * c.padding[dim] + window(c, dim) + c.output_padding[dim];
}

// A transposed convolution is the gradient of another one by its input: that one's shape.
ConvolutionShape shape_of(const Convolution& c) {
  ConvolutionShape s{};
  const int64_t h = c.input.size(2), w = c.input.size(3);
  s.n = c.input.size(0), s.o = c.weight.size(0), s.kh = c.weight.size(2), s.kw = c.weight.size(3);
  if (c.transposed) {
    s.c = c.weight.size(1), s.h = transposed_size(c, 0), s.w = transposed_size(c, 1), s.oh = h, s.ow = w;
  } else {
    s.c = c.input.size(1), s.h = h, s.w = w, s.oh = out_size(c, 0, h), s.ow = out_size(c, 1, w);
  }
  for (int i = 0; i < 2; ++i) s.stride[i] = c.stride[i], s.padding[i] = c.padding[i], s.dilation[i] = c.dilation[i];
  return s;
}

// Otherwise it is eager's to say what is wrong.
bool fits(const Convolution& c, const ConvolutionShape& s) {
  if (s.h <= 0 || s.w <= 0 || s.oh <= 0 || s.ow <= 0 || c.weight.size(0) % c.groups != 0) return false;
  if (!c.transposed) return s.c == c.weight.size(1) * c.groups;
  return s.o == c.input.size(1) && out_size(c, 0, s.h) == s.oh && out_size(c, 1, s.w) == s.ow;
}

// A gradient of another size is eager's to refuse, too.
bool is_of_result(const Tensor& gradient, const Convolution& c, const ConvolutionShape& s) {
  const std::array<int64_t, 4> planes{s.n, s.o, s.oh, s.ow}, transposed{s.n, s.c * c.groups, s.h, s.w};
  return gradient.sizes() == IntArrayRef(c.transposed ? transposed : planes);
}

void add_words(Problem& problem, IntArrayRef words) { problem.insert(problem.end(), words.begin(), words.end()); }

double work_of(const Convolution& c) { return static_cast<double>(c.input.numel()); }

// What order the maps come in, and whether the result may go in any, is part of the problem.
Problem problem_of(int64_t kind, const Convolution& c, const Tensor& gradient, int64_t with_bias) {
  const int64_t orders = c.in_any_order | is_innermost(c.input) << 1 | (gradient.defined() && is_innermost(gradient)) << 2;
  Problem problem{kind, with_bias | orders << 1, c.transposed, c.groups, at::get_num_threads(), has_board()};
  problem.reserve(24);
  for (const int64_t size : {c.input.size(0), c.input.size(2), c.input.size(3)}) problem.push_back(rough_size(size));
  add_words(problem, c.weight.sizes());
  for (const auto* list : {&c.stride, &c.padding, &c.dilation, &c.output_padding}) add_words(problem, *list);
  return problem;
}

enum Way { kAsEager, kChannelsInnermost, kByColumns, kBySamples, kByWinograd, kByStrips, kInParts, kByChannels };
constexpr uint32_t bit(int way) { return 1u << way; }
enum Kind : int64_t { kForward = 1, kInputGradient = 2, kWeightGradient = 3 };

// In planes, and with the strides that eager gives dims of size 1.
Tensor as_eager(const Tensor& result) {
  const auto map = map_in_order(result, at::MemoryFormat::Contiguous);
  return map.as_strided(map.sizes(), c10::contiguous_strides(map.sizes()));
}

// With channels innermost, and the strides that eager gives them.
Tensor as_eager_innermost(const Tensor& result) {
  const auto map = map_in_order(result, kChannelsLast);
  return map.as_strided(map.sizes(), innermost_strides(map.sizes()));
}

Tensor as_eager(const Convolution& c, const Tensor& result) {
  return c.is_visibly_innermost ? as_eager_innermost(result) : as_eager(result);
}

Tensor finished(const Convolution& c, const Tensor& map) { return c.in_any_order ? map : as_eager(c, map); }
// In the order of the input: what comes next in the backward pass combines it with that.
Tensor finished_like_input(const Convolution& c, const Tensor& map) {
  if (!c.in_any_order) return as_eager(c, map);
  return map_in_order(map, is_innermost(c.input) ? kChannelsLast : at::MemoryFormat::Contiguous);
}

Tensor forward(const Convolution& c, const std::optional<Tensor>& bias) {
  return at::convolution(c.input, c.weight, bias, c.stride, c.padding, c.dilation, c.transposed, c.output_padding,
                         c.groups);
}

std::tuple<Tensor, Tensor, Tensor> backward(const Convolution& c, const Tensor& gradient,
                                            at::OptionalIntArrayRef bias_sizes, std::array<bool, 3> mask) {
  return at::convolution_backward(gradient, c.input, c.weight, bias_sizes, c.stride, c.padding, c.dilation,
                                  c.transposed, c.output_padding, c.groups, mask);
}

// On a board PyTorch's kernels run in parts of the samples, each on one thread: a team would have to be woken.
constexpr int64_t kFewSamples = 8, kMostParts = 4;
int64_t sample_parts(int64_t samples) { return samples < kFewSamples ? std::min<int64_t>(samples, 2) : kMostParts; }

// body(part, first sample, convolution of these samples, their gradient), under the modes of this thread on any.
template <class Body>
void for_parts(const Convolution& c, const Tensor& gradient, Body body) {
  const int64_t samples = c.input.size(0), parts = sample_parts(samples);
  const auto keys = c10::impl::tls_local_dispatch_key_set();
  const auto asker = AllocationScope::asker();
  shared_loop(
      0, parts, 1,
      [&](int64_t begin, int64_t end) {
        const c10::InferenceMode not_inferring(false);
        const c10::impl::ForceDispatchKeyGuard same_keys(keys);
        const PoolScope pool;
        const AllocationScope allocations(asker);
        for (int64_t part = begin; part < end; ++part) {
          const int64_t first = part * samples / parts, count = (part + 1) * samples / parts - first;
          Convolution own = c;
          own.input = c.input.narrow(0, first, count);
          body(part, first, own, gradient.defined() ? gradient.narrow(0, first, count) : gradient);
        }
      },
      Weight::kHeavy);
}

// Of such sizes, by `of_part(convolution, gradient)`.
template <class OfPart>
Tensor map_in_parts(const Convolution& c, const Tensor& gradient, IntArrayRef sizes, OfPart of_part) {
  const auto result = create_innermost_map(sizes[0], sizes[1], sizes[2], sizes[3], c.input);
  for_parts(c, gradient, [&](int64_t, int64_t first, const Convolution& own, const Tensor& of_own) {
    result.narrow(0, first, own.input.size(0)).copy_(of_part(own, of_own));
  });
  return result;
}

Tensor forward_in_parts(const Convolution& c, const std::optional<Tensor>& bias, IntArrayRef sizes) {
  return map_in_parts(c, {}, sizes, [&](const Convolution& own, const Tensor&) { return forward(own, bias); });
}

Tensor input_gradient_in_parts(const Convolution& c, const Tensor& gradient) {
  return map_in_parts(c, gradient, c.input.sizes(), [](const Convolution& own, const Tensor& of_own) {
    return std::get<0>(backward(own, of_own, std::nullopt, {true, false, false}));
  });
}

Tensor weight_gradient_in_parts(const Convolution& c, const Tensor& gradient) {
  std::vector<Tensor> sums(sample_parts(c.input.size(0)));
  for_parts(c, gradient, [&](int64_t part, int64_t, const Convolution& own, const Tensor& of_own) {
    sums[part] = std::get<1>(backward(own, of_own, std::nullopt, {false, true, false}));
  });
  for (size_t part = 1; part < sums.size(); ++part) sums[0].add_(sums[part]);
  return as_eager(c, sums[0]);
}

// A map that lies the same in both orders says by its strides which one is meant.
Tensor in_order(const Tensor& map, at::MemoryFormat order) {
  const auto ordered = map_in_order(map, order);
  return order == kChannelsLast ? ordered.as_strided(map.sizes(), innermost_strides(map.sizes())) : ordered;
}

bool wants_innermost(int way) {
  return way == kChannelsInnermost || way == kByWinograd || way == kByStrips || way == kInParts || way == kByChannels;
}

// Eager takes maps as they lie.
bool wants_innermost(int way, const Convolution& c) {
  return way == kAsEager ? c.is_visibly_innermost : wants_innermost(way);
}

at::MemoryFormat order_of(int way, const Convolution& c) {
  return wants_innermost(way, c) ? kChannelsLast : at::MemoryFormat::Contiguous;
}

// With the strides of that order over the same values, which lie in another.
Tensor as_if_in_order(const Tensor& map, at::MemoryFormat order) {
  const auto sizes = map.sizes();
  if (order == kChannelsLast) return map.as_strided(sizes, innermost_strides(sizes));
  return map.as_strided(sizes, c10::contiguous_strides(sizes));
}

// The maps in the order that a way takes, and the weight.
struct Ordered {
  Convolution c;
  Tensor gradient;
};
enum class Unread { kNothing, kInput, kWeight };  // of what a kernel is given, and asks for sizes and order alone
Ordered in_order_of(int way, const Convolution& c, const Tensor& gradient, Unread unread) {
  const auto order = order_of(way, c);
  Ordered ordered{c, gradient.defined() ? in_order(gradient, order) : gradient};
  ordered.c.input = unread == Unread::kInput ? as_if_in_order(c.input, order) : in_order(c.input, order);
  return ordered;
}

// Of a way whose loops are those of a team of OpenMP's.
bool has_team(int way) {
  if (way == kByColumns || way == kBySamples) return !products_are_shared();
  return way != kByWinograd && way != kByStrips && way != kInParts && way != kByChannels;
}

size_t bytes_unless(at::MemoryFormat order, const Tensor& map) {
  return map.defined() && !map.is_contiguous(order) ? map.nbytes() : 0;
}

// One of the results of a convolution, of `bytes`, by one of the ways `allowed`.
struct Task {
  Problem problem;
  uint32_t allowed;
  size_t bytes;
  Unread unread;
};

// About what a way asks for at a time, its result included, where eager's takes `of_eager` in all, or that is not known: 0.
size_t bytes_needed(int way, size_t of_eager, const Convolution& c, const Tensor& gradient, const ConvolutionShape& s,
                    const Task& task) {
  const size_t result = task.bytes;
  const Unread unread = task.unread;
  const size_t weights = c.weight.nbytes(), given = c.input.nbytes() + (gradient.defined() ? gradient.nbytes() : 0);
  const bool fits_order = c.in_any_order && (!gradient.defined() || is_innermost(c.input));
  const bool goes_back = c.is_visibly_innermost ? !wants_innermost(way, c) : wants_innermost(way) && !fits_order;
  const size_t moved = (unread == Unread::kInput ? 0 : bytes_unless(order_of(way, c), c.input)) +
                       bytes_unless(order_of(way, c), gradient) + (goes_back ? result : 0);
  const size_t scratch = (given + result) / kScratchShare;
  switch (way) {
    // oneDNN orders them for itself; where eager gets the same maps, its peak has room for that.
    case kAsEager: return moved == 0 ? result : 2 * result + given + moved + scratch;
    case kChannelsInnermost:  // PyTorch orders a gradient of weights twice
      return moved + (unread == Unread::kWeight ? 3 * result : std::max(of_eager, result + scratch) + weights);
    case kByColumns: return 2 * result + moved + given + s.columns_bytes();
    case kBySamples: return result + moved + weights * s.n;
    case kByWinograd: return result + moved + weights * 4 + winograd_block_bytes();  // two tiles are less than four windows
    case kByStrips: return result + moved + weights * loop_threads();
    case kByChannels:
      return result + moved + (unread == Unread::kWeight ? loop_threads() * (weights * 2 + padded_bytes_by_channels(s)) : weights);
    case kInParts:
      return result + std::max(of_eager, result + scratch) + moved + weights * (unread == Unread::kWeight ? sample_parts(s.n) : 1);
    default: return result;
  }
}

// `run(way, ordered)` by the way that is fastest. Where maps go in any order, bringing them into that of a way counts by
// half: a chain of convolutions that take the same needs it at its ends only.
template <class Run>
void run_in_order(const Task& task, const Convolution& c, const ConvolutionShape& s, const Tensor& gradient, Run run) {
  Ordered ordered;
  run_chosen(
      task.problem, task.allowed, work_of(c),
      [&](int way) {
        const bool opens_chain = wants_innermost(way) && c.in_any_order && !is_innermost(c.input) &&
                                 !(gradient.defined() && is_innermost(gradient));
        return (opens_chain ? kOpening : 1.0) * (has_team(way) ? team_handicap() : 1.0);
      },
      [&](int way, size_t of_eager) { return bytes_needed(way, of_eager, c, gradient, s, task); },
      [&](int way) {
        if (c.in_any_order) ordered = in_order_of(way, c, gradient, task.unread);
      },
      [&](int way) {
        if (!c.in_any_order) ordered = in_order_of(way, c, gradient, task.unread);
        if (way == kChannelsInnermost || way == kInParts)
          ordered.c.weight = task.unread == Unread::kWeight ? as_if_in_order(c.weight, kChannelsLast)
                                                       : in_order(c.weight, kChannelsLast);
        run(way, ordered);
      });
}

// All columns are there at once, and so are maps with samples and channels exchanged: where the columns are larger than
// the maps, a step's peak would be theirs.
bool is_for_columns(const ConvolutionShape& s) {
  const int64_t maps_bytes = 4 * s.n * (s.c * s.h * s.w + s.o * s.oh * s.ow);
  return s.is_pointwise() || s.columns_bytes() <= std::max(kSmallColumnsBytes, maps_bytes / 2);
}

// A window for each channel. Few channels fill no register.
bool is_depthwise(const Convolution& c) {
  return !c.transposed && c.weight.size(1) == 1 && c.weight.size(0) == c.groups && c.groups >= kFewestChannels;
}

// Where windows reach far, what is copied for a gradient of weights is larger than it is worth.
bool is_for_channels(Kind kind, const ConvolutionShape& s) {
  return kind != kWeightGradient || padded_bytes_by_channels(s) <= std::max<int64_t>(kSmallPaddedBytes, s.n * s.c * s.h * s.w);
}

// Those of our own.
uint32_t own_ways(Kind kind, const Convolution& c, const ConvolutionShape& s) {
  if (c.groups != 1) return is_depthwise(c) && is_for_channels(kind, s) ? bit(kByChannels) : 0;
  const bool may_use_tiles = kind == kWeightGradient ? is_weight_gradient_for_winograd(s) : is_for_winograd(s);
  return (is_for_columns(s) ? bit(kByColumns) : 0) | (s.is_pointwise() ? bit(kBySamples) : 0) |
         (may_use_tiles ? bit(kByWinograd) : 0) | (is_for_strips(s) ? bit(kByStrips) : 0);
}

// PyTorch's own. In parts the same kernels run as with channels innermost: only one of the two is worth measuring.
uint32_t their_ways(const Convolution& c, const ConvolutionShape& s) {
  // oneDNN's kernel for one channel, innermost, is wrong where steps in the two dims differ; that for dilated windows of
  // one pixel reads what is not there.
  const bool dilates_one = (s.kh == 1 && s.dilation[0] > 1) || (s.kw == 1 && s.dilation[1] > 1);
  if (dilates_one || (s.c == 1 && s.stride[0] != s.stride[1])) return bit(kAsEager);
  if (has_board() && s.n > 1) return bit(kAsEager) | bit(kInParts);
  return bit(kAsEager) | (c.is_visibly_innermost ? 0 : bit(kChannelsInnermost));
}

using Optional = std::optional<Tensor>;

bool is_finite(const Tensor& weights) {
  const auto* values = weights.const_data_ptr<float>();
  std::atomic<bool> holds{true};
  shared_loop(0, weights.numel(), 1 << 15, [&](int64_t begin, int64_t end) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = begin; i < end; ++i) sum += values[i] - values[i];
    if (sum != 0) holds = false;
  });
  return holds;
}

// Windows on the gradient of a map reach over its edge without padding, too, where some of PyTorch's kernels multiply.
bool meets_edges(int way) { return way == kByColumns || way == kByStrips || way == kByChannels; }
// These ways multiply by the zeros around a map, which eager leaves out, or leave out what it multiplies: with what is not
// finite that is not the same.
bool meets_padding(int way, const ConvolutionShape& s) {
  return meets_edges(way) && (s.padding[0] > 0 || s.padding[1] > 0);
}

// Those of our own take weights in planes.
Tensor weight_for(int way, const Convolution& c) {
  const bool is_ours = way != kAsEager && way != kInParts;
  return is_ours && c.is_visibly_innermost ? as_eager(c.weight) : c.weight;
}

Tensor plus_bias(Tensor map, const Optional& bias) {
  if (bias && map.defined()) map.add_(bias->view({1, bias->size(0), 1, 1}));
  return map;
}

// By one of our own ways; undefined where it is none, or declines.
Tensor forward_by(int way, const Tensor& input, const Tensor& weight, const Optional& bias, const ConvolutionShape& s) {
  if (meets_padding(way, s) && !is_finite(weight)) return {};
  switch (way) {
    case kByColumns: return plus_bias(forward_by_columns(input, weight, s), bias);
    case kBySamples: return plus_bias(forward_by_samples(input, weight, s), bias);
    case kByWinograd: return forward_by_winograd(input, weight, bias, s);
    case kByStrips: return forward_by_strips(input, weight, bias, s);
    case kByChannels: return forward_by_channels(input, weight, bias, s);
    default: return {};
  }
}

Tensor input_gradient_by(int way, const Tensor& gradient, const Tensor& weight, const ConvolutionShape& s) {
  if (meets_edges(way) && !is_finite(weight)) return {};
  switch (way) {
    case kByColumns: return input_gradient_by_columns(gradient, weight, s);
    case kBySamples: return input_gradient_by_samples(gradient, weight, s);
    case kByWinograd: return input_gradient_by_winograd(gradient, weight, s);
    case kByStrips: return input_gradient_by_strips(gradient, weight, s);
    case kByChannels: return input_gradient_by_channels(gradient, weight, s);
    default: return {};
  }
}

Tensor weight_gradient_by(int way, const Tensor& gradient, const Tensor& input, const ConvolutionShape& s) {
  Tensor result;
  switch (way) {
    case kByColumns: result = weight_gradient_by_columns(gradient, input, s); break;
    case kBySamples: return weight_gradient_by_samples(gradient, input, s);
    case kByWinograd: return weight_gradient_by_winograd(gradient, input, s);
    case kByStrips: result = weight_gradient_by_strips(gradient, input, s); break;
    case kByChannels: result = weight_gradient_by_channels(gradient, input, s); break;
    default: return {};
  }
  return meets_padding(way, s) && !is_finite(result) ? Tensor() : result;
}

// The two gradients apart, each by the way that is fastest for it alone: PyTorch's own kernel computes them one after the
// other, that of the input first.
Task input_gradient_task(const Convolution& c, const Tensor& gradient, const ConvolutionShape& s) {
  return {problem_of(kInputGradient, c, gradient, 0), their_ways(c, s) | own_ways(kInputGradient, c, s), c.input.nbytes(),
          Unread::kInput};
}

Task weight_gradient_task(const Convolution& c, const Tensor& gradient, const ConvolutionShape& s, bool with_bias) {
  return {problem_of(kWeightGradient, c, gradient, with_bias), their_ways(c, s) | own_ways(kWeightGradient, c, s),
          c.weight.nbytes(), Unread::kWeight};
}

Tensor input_gradient(const Task& task, const Convolution& c, const Tensor& gradient, const ConvolutionShape& s) {
  Tensor result;
  run_in_order(task, c, s, gradient, [&](int way, const Ordered& o) {
    result = way == kInParts ? input_gradient_in_parts(o.c, o.gradient)
             : c.transposed  ? forward_by(way, o.gradient, c.weight, std::nullopt, s)
                             : input_gradient_by(way, o.gradient, weight_for(way, c), s);
    if (!result.defined()) result = std::get<0>(backward(o.c, o.gradient, std::nullopt, {true, false, false}));
    result = finished_like_input(c, result);
  });
  return result;
}

// With that of the bias, where it is wanted.
std::pair<Tensor, Tensor> weight_gradient(const Task& task, const Convolution& c, const Tensor& gradient,
                                          const ConvolutionShape& s, at::OptionalIntArrayRef bias_sizes, bool with_bias) {
  std::tuple<Tensor, Tensor, Tensor> results;
  auto& [unused, weight, bias] = results;
  run_in_order(task, c, s, gradient, [&](int way, const Ordered& o) {
    weight = way == kInParts ? weight_gradient_in_parts(o.c, o.gradient)
             : c.transposed  ? weight_gradient_by(way, o.c.input, o.gradient, s)
                             : weight_gradient_by(way, o.gradient, o.c.input, s);
    if (!weight.defined()) {
      results = backward(o.c, o.gradient, bias_sizes, {false, true, with_bias});
    } else if (with_bias) {
      bias = o.gradient.sum({0, 2, 3});
    }
    weight = as_eager(c, weight);
  });
  return {weight, bias};
}

// The second one runs while the result of the first is there: where the peak of memory has no room for eager's order, the
// one that raises it less.
bool is_input_first(const Task& input, const Task& weight, const Convolution& c, const Tensor& gradient,
                    const ConvolutionShape& s) {
  const auto bytes = [&](const Task& task) {
    return bytes_to_run(task.problem, task.allowed,
                        [&](int way, size_t of_eager) { return bytes_needed(way, of_eager, c, gradient, s, task); });
  };
  const size_t for_input = bytes(input), for_weight = bytes(weight);
  const size_t input_first = std::max(for_input, input.bytes + for_weight);
  return input_first <= std::max(room_for_trials().room, std::max(for_weight, weight.bytes + for_input));
}

// ---- along lines: (samples, channels, length), as maps of one row, which is how PyTorch computes them, too

bool are_lines(const torch::jit::Stack& stack, int tensors) {
  for (int i = 0; i < tensors; ++i)
    if (!stack[i].isTensor() || !stack[i].toTensor().defined() || stack[i].toTensor().dim() != 3) return false;
  return true;
}

// With `value` for the row where the list holds one number.
void prepend(c10::IValue& list, int64_t value) {
  if (!list.isIntList()) return;
  auto numbers = list.toIntVector();
  if (numbers.size() == 1) list = std::vector<int64_t>{value, numbers[0]};
}

// `run` for maps; the first `results` of what it gives are maps or windows.
template <class Run>
bool run_for_lines(torch::jit::Stack& stack, int tensors, size_t geometry, int results, Run run) {
  torch::jit::Stack maps = stack;
  for (int i = 0; i < tensors; ++i) {
    auto line = stack[i].toTensor();
    if (!is_float_tensor(line)) return false;
    const bool is_gradient = tensors == 3 && i == 0;  // how it lies, eager does not ask
    if (is_gradient) line = line.contiguous();
    if (!line.is_contiguous()) return false;  // eager takes channels for innermost, perhaps
    maps[i] = line.unsqueeze(2);
  }
  for (const auto& [list, value] : {std::pair(0, 1), std::pair(1, 0), std::pair(2, 1), std::pair(4, 0)})
    prepend(maps[geometry + list], value);
  if (!run(maps)) return false;
  for (int i = 0; i < results; ++i)
    if (maps[i].isTensor() && maps[i].toTensor().defined()) maps[i] = maps[i].toTensor().squeeze(2);
  stack = std::move(maps);
  return true;
}

}  // namespace

bool try_convolution(torch::jit::Stack& stack, bool in_any_order) {
  if (are_lines(stack, 2))
    return run_for_lines(stack, 2, 3, 1,
                         [](torch::jit::Stack& maps) { return try_convolution(maps, /*in_any_order=*/false); });
  Convolution c;
  c.in_any_order = in_any_order;
  if (!stack[0].isTensor() || !stack[1].isTensor()) return false;
  c.input = stack[0].toTensor(), c.weight = stack[1].toTensor();
  if (!read_geometry(c, stack, 3)) return false;
  c.is_visibly_innermost = !in_any_order && lies_innermost(c);
  if (!can_choose(c)) return false;
  auto bias = stack[2].toOptional<Tensor>();
  if (bias && !bias->defined()) bias.reset();
  const auto s = shape_of(c);
  const int64_t channels = c.transposed ? c.weight.size(1) * c.groups : s.o;
  if (!fits(c, s) || (bias && (bias->dim() != 1 || bias->size(0) != channels))) return false;
  const bool may_add_bias = !bias || (is_float_tensor(*bias) && bias->is_contiguous());
  const uint32_t allowed = their_ways(c, s) | (may_add_bias ? own_ways(kForward, c, s) : 0);
  const std::array<int64_t, 4> sizes_of_forward{s.n, channels, c.transposed ? s.h : s.oh, c.transposed ? s.w : s.ow};
  const size_t bytes_of_forward = sizeof(float) * c10::multiply_integers(sizes_of_forward);
  Tensor result;
  run_in_order({problem_of(kForward, c, {}, bias.has_value()), allowed, bytes_of_forward, Unread::kNothing}, c, s, {},
               [&](int way, const Ordered& o) {
                 result = way == kInParts ? forward_in_parts(o.c, bias, sizes_of_forward)
                          : c.transposed  ? plus_bias(input_gradient_by(way, o.c.input, c.weight, s), bias)
                                          : forward_by(way, o.c.input, weight_for(way, c), bias, s);
                 if (!result.defined()) result = forward(o.c, bias);
                 result = finished(c, result);
               });
  stack.clear();
  stack.emplace_back(std::move(result));
  return true;
}

bool wants_bias_alone(const c10::IValue& mask) {
  const auto wanted = mask.toBoolList();
  return wanted[2] && !wanted[1];
}

bool try_convolution_backward(torch::jit::Stack& stack, bool in_any_order) {
  if (are_lines(stack, 3))
    return run_for_lines(stack, 3, 4, 2,
                         [](torch::jit::Stack& maps) { return try_convolution_backward(maps, /*in_any_order=*/false); });
  Convolution c;
  c.in_any_order = in_any_order;
  for (int i = 0; i < 3; ++i)
    if (!stack[i].isTensor()) return false;
  auto gradient = stack[0].toTensor();
  c.input = stack[1].toTensor(), c.weight = stack[2].toTensor();
  if (!is_float_map(gradient) || !read_geometry(c, stack, 4)) return false;
  c.is_visibly_innermost = !in_any_order && lies_innermost(c);
  if (!can_choose(c)) return false;
  const auto bias_sizes = stack[3].isNone() ? std::vector<int64_t>() : stack[3].toIntVector();
  const at::OptionalIntArrayRef sizes = stack[3].isNone() ? at::OptionalIntArrayRef() : bias_sizes;
  const auto wanted = stack[10].toBoolList();
  const std::array<bool, 3> mask{wanted[0], wanted[1], wanted[2]};
  if (wants_bias_alone(stack[10]) || (!mask[0] && !mask[1])) return false;
  const auto s = shape_of(c);
  if (!fits(c, s) || !is_of_result(gradient, c, s)) return false;
  if (!is_map(gradient, c)) gradient = gradient.contiguous();  // how it lies, eager does not ask
  Tensor input, weight, bias;
  const auto of_input = input_gradient_task(c, gradient, s), of_weight = weight_gradient_task(c, gradient, s, mask[2]);
  const bool input_first = !mask[0] || !mask[1] || is_input_first(of_input, of_weight, c, gradient, s);
  if (mask[0] && input_first) input = input_gradient(of_input, c, gradient, s);
  if (mask[1]) std::tie(weight, bias) = weight_gradient(of_weight, c, gradient, s, sizes, mask[2]);
  if (mask[0] && !input_first) input = input_gradient(of_input, c, gradient, s);
  stack.clear();
  stack.emplace_back(std::move(input));
  stack.emplace_back(std::move(weight));
  stack.emplace_back(std::move(bias));
  return true;
}

}  // namespace lockstep::dynamic
