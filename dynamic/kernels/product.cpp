#include "dynamic/kernels/product.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ceil_div.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "dynamic/kernels/float_tensor.h"
#include "dynamic/kernels/kernel_choice.h"
#include "dynamic/kernels/product_loops.h"
#include "dynamic/kernels/shared_product.h"
#include "dynamic/kernels/transpose.h"
#include "dynamic/threads/shared_loop.h"

namespace lockstep::dynamic {

namespace {

using at::Tensor;

constexpr int64_t kSmallestForOneDnn = 1 << 22;
constexpr int64_t kLargestForSkinny = 1 << 24;  // beyond, packing pays
constexpr int64_t kDeepestForSkinny = 1 << 12;  // sums are not split
constexpr int64_t kImages = 16;  // so that oneDNN takes it, whatever the number of threads
constexpr int64_t kBlockRows = 32;
constexpr int64_t kGrain = 1 << 18;  // multiplications that a thread takes at least
enum Way { kAsEager, kOneDnn, kSkinny, kAsGradient, kShared, kRounded };
enum Kind : int64_t { kProducts = 18, kProduct = 19 };  // of the problem; convolutions have smaller ones

// Nobody asked for other bits, or for the same ones.
bool may_choose() { return !at::globalContext().deterministicAlgorithms() && multiplies_in_float32(); }

// oneDNN may be told to round what it multiplies, for each of its ops.
bool may_use_onednn(at::Float32Op op) {
  const auto& context = at::globalContext();
  const auto precision = context.float32Precision(at::Float32Backend::MKLDNN, op);
  return context.userEnabledMkldnn() && (precision == at::Float32Precision::NONE || precision == at::Float32Precision::IEEE);
}

void replace(torch::jit::Stack& stack, Tensor result) {
  stack.clear();
  stack.emplace_back(std::move(result));
}

// Rows or columns that lie one behind the other.
bool is_dense_matrix(const Tensor& tensor) {
  return is_float_tensor(tensor) && tensor.dim() == 2 && (tensor.is_contiguous() || tensor.t().is_contiguous());
}

bool can_choose(const Tensor& left, const Tensor& right) {
  return is_dense_matrix(left) && is_dense_matrix(right) && left.size(1) == right.size(0) &&
         left.size(0) * left.size(1) * right.size(1) >= kSmallestProduct && may_choose();
}

// left @ right + bias by oneDNN's product with a weight of (out, in), which may lie in memory either way.
Tensor by_onednn(const Tensor& left, const Tensor& right, const std::optional<Tensor>& bias) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
                             .typed<Tensor(const Tensor&, const Tensor&, const std::optional<Tensor>&, std::string_view,
                                           c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>)>();
  return op.call(left.contiguous(), right.t(), bias, "none", c10::List<std::optional<at::Scalar>>(), "");
}

// left @ right, of (out, points) and (points, in), is the gradient of the weights of a convolution of single pixels: its
// input and the gradient that comes in are read as they are, with what is summed over outermost.
// Not where what comes out is larger than both: oneDNN keeps it twice.
bool is_like_gradient(const Tensor& left, const Tensor& right) {
  return left.t().is_contiguous() && right.is_contiguous() &&
         left.size(0) * right.size(1) <= std::max(left.numel(), right.numel());
}

Tensor as_gradient(const Tensor& left, const Tensor& right) {
  const int64_t out = left.size(0), points = left.size(1), in = right.size(1);
  const int64_t images = std::gcd(points, kImages);
  const auto maps = [&](const Tensor& rows, int64_t channels) {
    return rows.view({images, 1, points / images, channels}).permute({0, 3, 1, 2});
  };
  // Only its sizes are asked for, so that any memory will do.
  const auto weight = (right.numel() >= out * in ? right : left).as_strided({out, in, 1, 1}, {in, 1, 1, 1});
  const auto gradients = at::convolution_backward(maps(left.t(), out), maps(right, in), weight,
                                                  /*bias_sizes=*/at::OptionalIntArrayRef(), /*stride=*/{1, 1},
                                                  /*padding=*/{0, 0}, /*dilation=*/{1, 1}, /*transposed=*/false,
                                                  /*output_padding=*/{0, 0}, /*groups=*/1, {false, true, false});
  return std::get<1>(gradients).reshape({out, in});
}

// In strips of columns, and those in blocks of rows: any number of these a thread.
void multiply_strips(const ProductLoops& loops, ProductLoops::Multiply* multiply, const float* left,
                     MatrixStrides strides, const float* right, int64_t right_row, float* out, int64_t out_row,
                     int64_t rows, int64_t depth, int64_t columns) {
  const int64_t width = loops.tile_width, strips = std::max<int64_t>(columns / width, 1);
  const int64_t blocks = at::ceil_div(rows, kBlockRows);
  const int64_t grain = std::max<int64_t>(1, kGrain / (std::min(rows, kBlockRows) * depth * width));
  shared_loop(0, strips * blocks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t strip = task / blocks, row = task % blocks * kBlockRows, column = strip * width;
      multiply(left + row * strides.row, strides, right + column, right_row, out + row * out_row + column, out_row,
               std::min(kBlockRows, rows - row), depth, strip + 1 == strips ? columns - column : width);
    }
  });
}

// left @ right + bias by our own loops. Where the columns of `right` are dense, what comes out first is turned: few rows
// become few columns.
Tensor by_strips(const Tensor& left, const Tensor& right, const std::optional<Tensor>& bias) {
  const int64_t rows = left.size(0), depth = left.size(1), columns = right.size(1);
  auto out = at::empty({rows, columns}, left.options());
  auto* to = out.mutable_data_ptr<float>();
  const auto* factor = right.const_data_ptr<float>();
  if (right.stride(1) == 1 && columns >= product_loops().lanes) {
    const auto& loops = product_loops();
    multiply_strips(loops, loops.multiply, left.const_data_ptr<float>(), {left.stride(0), left.stride(1)}, factor,
                    right.stride(0), to, columns, rows, depth, columns);
  } else {
    const auto& loops = product_loops_for(rows);
    const int64_t width = at::round_up<int64_t>(rows, loops.lanes);
    const auto dense = left.contiguous(), turned = at::zeros({depth, width}, left.options());
    const auto result = at::empty({columns, width}, left.options());
    transpose(dense.const_data_ptr<float>(), depth, turned.mutable_data_ptr<float>(), width, rows, depth);
    multiply_strips(loops, loops.multiply, factor, {right.stride(1), right.stride(0)}, turned.const_data_ptr<float>(),
                    width, result.mutable_data_ptr<float>(), width, columns, depth, width);
    transpose(result.const_data_ptr<float>(), width, to, columns, columns, rows);
  }
  if (bias) out.add_(*bias);
  return out;
}

// Where the processor multiplies pairs of these; elsewhere nothing is gained.
bool may_round(int64_t work) {
  return RoundedProductsScope::is_on() && has_bfloat16_products() && work >= kSmallestForOneDnn &&
         at::globalContext().userEnabledMkldnn();
}

// Of two matrices or of many; sums are float32.
Tensor rounded(const Tensor& left, const Tensor& right, const std::optional<Tensor>& bias) {
  const auto a = left.to(at::kBFloat16), b = right.to(at::kBFloat16);
  auto out = (left.dim() == 2 ? at::mm(a, b) : at::bmm(a, b)).to(at::kFloat);
  if (bias) out.add_(*bias);
  return out;
}

double handicap(int way) { return way == kShared || way == kSkinny ? 1.0 : team_handicap(); }

uint32_t allowed_ways(const Tensor& left, const Tensor& right, bool has_bias, int64_t work) {
  uint32_t ways = 1u << kAsEager;
  if (work >= kSmallestForOneDnn) {
    if (may_use_onednn(at::Float32Op::MATMUL)) ways |= 1u << kOneDnn;
    if (!has_bias && is_like_gradient(left, right) && may_use_onednn(at::Float32Op::CONV)) ways |= 1u << kAsGradient;
  }
  if (work <= kLargestForSkinny && left.size(1) <= kDeepestForSkinny) ways |= 1u << kSkinny;
  if (has_shared_products() && work >= 2 * kSmallestPart && loop_threads() > 1) ways |= 1u << kShared;
  if (may_round(work)) ways |= 1u << kRounded;
  return ways;
}

Problem problem_of(const Tensor& left, const Tensor& right, bool has_bias) {
  return {kProduct, has_bias, rough_size(left.size(0)), rough_size(left.size(1)), right.size(1), left.is_contiguous(),
          right.is_contiguous(), at::get_num_threads(), has_board(), RoundedProductsScope::is_on()};
}

template <class Eager>
Tensor fastest(const Tensor& left, const Tensor& right, const std::optional<Tensor>& bias, Eager eager) {
  const int64_t work = left.numel() * right.size(1);
  const Problem problem = problem_of(left, right, bias.has_value());
  Tensor result;
  run_chosen(
      problem, allowed_ways(left, right, bias.has_value(), work), static_cast<double>(work), handicap, needs_nothing, [](int) {},
      [&](int way) {
        result = way == kOneDnn       ? by_onednn(left, right, bias)
                 : way == kSkinny     ? by_strips(left, right, bias)
                 : way == kAsGradient ? as_gradient(left, right)
                 : way == kShared     ? multiply_in_parts(left, right, bias)
                 : way == kRounded    ? rounded(left, right, bias)
                                      : eager();
      });
  return result;
}

bool has_dense_rows(const Tensor& matrices) { return matrices.stride(2) == 1; }
bool has_dense_columns(const Tensor& matrices) { return matrices.stride(1) == 1; }

bool can_choose_products(const Tensor& left, const Tensor& right) {
  if (!is_float_tensor(left) || !is_float_tensor(right) || left.dim() != 3 || right.dim() != 3) return false;
  return left.size(0) == right.size(0) && left.size(2) == right.size(1) && left.numel() > 0 && right.numel() > 0 &&
         left.numel() * right.size(2) >= kSmallestProduct && may_choose();
}

uint32_t allowed_ways_of_products(const Tensor& left, const Tensor& right) {
  const int64_t work = left.size(1) * left.size(2) * right.size(2);
  uint32_t ways = 1u << kAsEager;
  if (work <= kLargestForSkinny && left.size(2) <= kDeepestForSkinny && right.size(2) >= product_loops().lanes &&
      (has_dense_rows(right) || has_dense_columns(right)))
    ways |= 1u << kSkinny;
  if (has_shared_products() && left.size(0) > 1 && work * left.size(0) >= 2 * kSmallestPart && loop_threads() > 1 &&
      are_dense(left) && are_dense(right))
    ways |= 1u << kShared;
  if (may_round(work * left.size(0))) ways |= 1u << kRounded;
  return ways;
}

// One product after the other, shared out to threads. Where the columns on the right are dense, they are turned first.
Tensor one_by_one(const Tensor& left, const Tensor& right) {
  const int64_t count = left.size(0), rows = left.size(1), depth = left.size(2), columns = right.size(2);
  auto out = at::empty({count, rows, columns}, left.options());
  const auto& loops = product_loops();
  const bool is_turned = !has_dense_rows(right);
  const auto* from = left.const_data_ptr<float>();
  const auto* other = right.const_data_ptr<float>();
  auto* to = out.mutable_data_ptr<float>();
  shared_loop(0, count, std::max<int64_t>(1, kGrain / (rows * depth * columns)), [&](int64_t begin, int64_t end) {
    std::vector<float> turned(is_turned ? depth * columns : 0);
    for (int64_t i = begin; i < end; ++i) {
      const float* factor = other + i * right.stride(0);
      if (is_turned) transpose(factor, right.stride(2), turned.data(), columns, columns, depth);
      loops.multiply(from + i * left.stride(0), {left.stride(1), left.stride(2)}, is_turned ? turned.data() : factor,
                     is_turned ? columns : right.stride(1), to + i * rows * columns, columns, rows, depth, columns);
    }
  });
  return out;
}

}  // namespace

bool multiplies_in_float32() {
  const auto precision = at::globalContext().float32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL);
  return precision == at::Float32Precision::NONE || precision == at::Float32Precision::IEEE;
}

bool has_bfloat16_products() {
  static const bool has_instructions = __builtin_cpu_supports("avx512bf16");
  return has_instructions;
}

bool try_mm(torch::jit::Stack& stack) {
  const auto left = stack[0].toTensor(), right = stack[1].toTensor();
  if (!can_choose(left, right)) return false;
  replace(stack, fastest(left, right, std::nullopt, [&] { return at::mm(left, right); }));
  return true;
}

bool try_add_mm(const Tensor& total, const Tensor& left, const Tensor& right) {
  if (!can_choose(left, right) || !is_float_tensor(total) || !total.is_contiguous() || total.dim() != 2 ||
      total.size(0) != left.size(0) || total.size(1) != right.size(1))
    return false;
  const int way = known_way(problem_of(left, right, /*has_bias=*/false));
  if (way < 0 || !(allowed_ways(left, right, /*has_bias=*/false, left.numel() * right.size(1)) >> way & 1)) return false;
  if (way == kShared) return add_in_parts(total, left, right), true;
  const auto& loops = product_loops();
  if (way != kSkinny || right.stride(1) != 1 || right.size(1) % loops.lanes != 0) return false;
  multiply_strips(loops, loops.add, left.const_data_ptr<float>(), {left.stride(0), left.stride(1)},
                  right.const_data_ptr<float>(), right.stride(0), total.mutable_data_ptr<float>(), total.size(1),
                  left.size(0), left.size(1), right.size(1));
  return true;
}

bool try_bmm(torch::jit::Stack& stack) {
  const auto left = stack[0].toTensor(), right = stack[1].toTensor();
  if (!can_choose_products(left, right)) return false;
  const uint32_t allowed = allowed_ways_of_products(left, right);
  if (allowed == 1u << kAsEager) return false;
  const int64_t work = left.numel() * right.size(2);
  const Problem problem{kProducts, rough_size(left.size(0)), rough_size(left.size(1)), rough_size(left.size(2)),
                        rough_size(right.size(2)), left.stride(2) == 1, has_dense_rows(right), at::get_num_threads(),
                        has_board(), RoundedProductsScope::is_on()};
  Tensor result;
  run_chosen(
      problem, allowed, static_cast<double>(work), handicap, needs_nothing, [](int) {}, [&](int way) {
        result = way == kSkinny    ? one_by_one(left, right)
                 : way == kShared  ? multiply_all_in_parts(left, right)
                 : way == kRounded ? rounded(left, right, std::nullopt)
                                   : at::bmm(left, right);
      });
  replace(stack, std::move(result));
  return true;
}

// A bias for each column, as in a linear layer.
bool try_addmm(torch::jit::Stack& stack) {
  const auto bias = stack[0].toTensor(), left = stack[1].toTensor(), right = stack[2].toTensor();
  const auto beta = stack[3].toScalar(), alpha = stack[4].toScalar();
  if (!can_choose(left, right) || beta.toDouble() != 1 || alpha.toDouble() != 1) return false;
  if (!bias.defined() || bias.dim() != 1 || bias.size(0) != right.size(1) || bias.scalar_type() != at::kFloat ||
      !bias.is_contiguous() || bias.is_neg())
    return false;
  replace(stack, fastest(left, right, bias, [&] { return at::addmm(bias, left, right); }));
  return true;
}

}  // namespace lockstep::dynamic
