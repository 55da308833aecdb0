#include "dynamic/kernels/attention.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ceil_div.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "dynamic/kernels/attention_loops.h"
#include "dynamic/kernels/float_tensor.h"
#include "dynamic/kernels/kernel_choice.h"
#include "dynamic/kernels/product.h"
#include "dynamic/kernels/product_loops.h"
#include "dynamic/kernels/transpose.h"
#include "dynamic/threads/shared_loop.h"

namespace lockstep::dynamic {

namespace {

using at::Tensor;
using Optional = std::optional<Tensor>;
using Kind = ScoreMask::Kind;

constexpr int64_t kMostScores = 1 << 17;  // of a block of queries: they stay in the second cache
constexpr int64_t kFewestQueries = 4;     // a register is filled with them
constexpr int64_t kFewestKeys = 16;       // with fewer, PyTorch's kernel makes 0 of nan
constexpr int64_t kDepth = 512;           // products of more are added up in parts, so that long rows lose no digits
constexpr int64_t kGrain = 1 << 18;       // multiplications that a thread takes at least
enum Way { kAsEager, kOwn };
enum Problems : int64_t { kForward = 21, kBackward = 22 };

// (batch, heads, length, width): of one head rows of `width` dense values, `row` apart.
struct Heads {
  float* values;
  int64_t batch, head, row;
  float* at(int64_t b, int64_t h) const { return values + b * batch + h * head; }
};

Heads heads_of(const Tensor& tensor) {
  return {const_cast<float*>(tensor.const_data_ptr<float>()), tensor.stride(0), tensor.stride(1), tensor.stride(2)};
}

struct Attention {
  Tensor query, key, value;
  Optional mask;
  Kind mask_kind = Kind::kNone;
  bool is_causal = false;
  std::optional<double> scale;

  int64_t batch() const { return query.size(0); }
  int64_t heads() const { return query.size(1); }
  int64_t queries() const { return query.size(2); }
  int64_t keys() const { return key.size(2); }
  int64_t width() const { return query.size(3); }
  int64_t work() const { return batch() * heads() * queries() * keys() * width(); }
  float factor() const { return static_cast<float>(scale ? *scale : 1 / std::sqrt(static_cast<double>(width()))); }
  // How many of the keys the queries before `end` look at.
  int64_t keys_until(int64_t end) const { return is_causal ? std::min(end, keys()) : keys(); }
};

bool are_heads(const Tensor& tensor) {
  return is_float_tensor(tensor) && !tensor._is_zerotensor() && tensor.dim() == 4 && tensor.numel() > 0 &&
         tensor.stride(3) == 1;
}

// One value for each key, or for each key and query, of which those for the same query are dense.
std::optional<Kind> kind_of(const Tensor& mask, const Attention& a) {
  const int64_t dims = mask.dim();
  if (!is_float_tensor(mask) || mask._is_zerotensor() || (dims != 2 && dims != 4)) return std::nullopt;
  if (mask.size(-1) != a.keys() || (mask.stride(-1) != 1 && a.keys() > 1)) return std::nullopt;
  if (dims == 4)
    for (const auto& [dim, size] : {std::pair(0, a.batch()), std::pair(1, a.heads())})
      if (mask.size(dim) != 1 && mask.size(dim) != size) return std::nullopt;
  if (mask.size(-2) == 1 && a.queries() > 1) return Kind::kByKey;
  if (mask.size(-2) != a.queries()) return std::nullopt;
  return mask.stride(-2) == 0 ? Kind::kByKey : Kind::kByPair;
}

// Where there are 0 values to a dim, or as many as the others have.
int64_t step_of(const Tensor& mask, int64_t dim) { return mask.dim() == 4 && mask.size(dim) > 1 ? mask.stride(dim) : 0; }

// From argument `at`: dropout, is_causal, mask, scale.
std::optional<Attention> read(const torch::jit::Stack& stack, size_t query, size_t at) {
  Attention a{stack[query].toTensor(), stack[query + 1].toTensor(), stack[query + 2].toTensor()};
  if (at::globalContext().deterministicAlgorithms() || !multiplies_in_float32()) return std::nullopt;
  if (stack[at].toDouble() != 0) return std::nullopt;
  a.is_causal = stack[at + 1].toBool();
  a.mask = stack[at + 2].toOptional<Tensor>();
  if (a.mask && !(a.mask->defined() && a.mask->numel() > 0)) a.mask.reset();
  a.scale = stack[at + 3].toOptional<double>();
  for (const auto* tensor : {&a.query, &a.key, &a.value})
    if (!are_heads(*tensor)) return std::nullopt;
  const std::array<int64_t, 4> sizes{a.batch(), a.heads(), a.keys(), a.width()};
  if (a.key.sizes() != at::IntArrayRef(sizes) || a.value.sizes() != at::IntArrayRef(sizes)) return std::nullopt;
  if (a.mask) {
    const auto kind = kind_of(*a.mask, a);
    if (!kind) return std::nullopt;
    a.mask_kind = *kind;
  }
  if (a.work() < kSmallestProduct || a.queries() < kFewestQueries || a.keys() < kFewestKeys) return std::nullopt;
  if (a.keys() * attention_loops().lanes > kMostScores) return std::nullopt;
  if (a.is_causal && !(a.factor() > 0)) return std::nullopt;  // PyTorch scales what it has hidden
  return a;
}

// What one thread needs for blocks of queries, and how they are worked on.
class Worker {
 public:
  explicit Worker(const Attention& a)
      : a_(a), products_(product_loops()), loops_(attention_loops()), key_(heads_of(a.key)), value_(heads_of(a.value)),
        query_(heads_of(a.query)), columns_(block_columns(a)), turned_(a.width() * columns_), scores_(a.keys() * columns_),
        sums_(columns_), shifts_(columns_) {
    if (a.mask_kind == Kind::kByPair) mask_.resize(a.keys() * columns_);
  }

  // Queries of a block.
  static int64_t block_columns(const Attention& a) {
    const int64_t lanes = attention_loops().lanes;
    const int64_t most = std::min<int64_t>(AttentionLoops::kMostRegisters * lanes, kMostScores / a.keys() / lanes * lanes);
    return std::min(most, at::round_up(a.queries(), lanes));
  }

  void attend(int64_t b, int64_t h, int64_t first, const Heads& out, float* logarithms, int64_t logarithm_step) {
    begin(b, h, first);
    score(key_.at(b, h), key_.row, query_.at(b, h) + first * query_.row, query_.row, scores_);
    hide_later_keys(-std::numeric_limits<float>::infinity());
    loops_.exponentiate(scores_.data(), keys_, width_, a_.factor(), mask_of_block(), shifts_.data(), sums_.data());
    for (int64_t i = 0; i < rows_; ++i) {
      if (sums_[i] == 0) sums_[i] = 1;  // all keys are hidden: the result is 0
      logarithms[i * logarithm_step] = shifts_[i] + std::log(sums_[i]);
    }
    combine(value_.at(b, h), value_.row, scores_);
    for (int64_t i = 0; i < width_; ++i) sums_[i] = 1 / sums_[i];
    for (int64_t d = 0; d < a_.width(); ++d)
#pragma omp simd
      for (int64_t i = 0; i < width_; ++i) turned_[d * width_ + i] *= sums_[i];
    transpose(turned_.data(), width_, out.at(b, h) + first * out.row, out.row, a_.width(), rows_);
  }

  struct Gradients {
    Heads result, out, query, key, value;  // of the result, the result, and the gradients that are wanted
    const float* logarithms;
    int64_t logarithm_step;
  };

  // All queries of a head, one block after the other.
  void differentiate(int64_t b, int64_t h, const Gradients& g) {
    const int64_t width = a_.width(), padded = at::round_up<int64_t>(width, products_.lanes);
    gradient_scores_.resize(scores_.size());
    of_key_.assign(a_.keys() * padded, 0);
    of_value_.assign(a_.keys() * padded, 0);
    for (int64_t first = 0; first < a_.queries(); first += columns_) {
      begin(b, h, first);
      const Block query = padded_rows(query_.at(b, h) + first * query_.row, query_.row, padded, query_rows_);
      const Block result = padded_rows(g.result.at(b, h) + first * g.result.row, g.result.row, padded, result_rows_);
      score(key_.at(b, h), key_.row, query.values, query.row, scores_);
      score(value_.at(b, h), value_.row, result.values, result.row, gradient_scores_);
      std::fill(shifts_.begin(), shifts_.end(), 0.0f);
      std::fill(sums_.begin(), sums_.end(), 0.0f);
      for (int64_t i = 0; i < rows_; ++i) {
        shifts_[i] = g.logarithms[(first + i) * g.logarithm_step];
        sums_[i] = dot(result.values + i * result.row, g.out.at(b, h) + (first + i) * g.out.row);
      }
      loops_.restore(scores_.data(), keys_, width_, a_.factor(), mask_of_block(), shifts_.data());
      hide_later_keys(0);
      loops_.differentiate(scores_.data(), gradient_scores_.data(), keys_, width_, a_.factor(), sums_.data());
      const MatrixStrides by_key{width_, 1};
      products_.add(scores_.data(), by_key, result.values, result.row, of_value_.data(), padded, keys_, rows_, padded);
      products_.add(gradient_scores_.data(), by_key, query.values, query.row, of_key_.data(), padded, keys_, rows_, padded);
      combine(key_.at(b, h), key_.row, gradient_scores_);
      transpose(turned_.data(), width_, g.query.at(b, h) + first * g.query.row, g.query.row, width, rows_);
    }
    for (int64_t key = 0; key < a_.keys(); ++key) {
      std::copy_n(of_key_.data() + key * padded, width, g.key.at(b, h) + key * g.key.row);
      std::copy_n(of_value_.data() + key * padded, width, g.value.at(b, h) + key * g.value.row);
    }
  }

 private:
  struct Block {
    const float* values;
    int64_t row;
  };

  void begin(int64_t b, int64_t h, int64_t first) {
    b_ = b, h_ = h, first_ = first;
    rows_ = std::min(columns_, a_.queries() - first);
    width_ = at::round_up<int64_t>(rows_, loops_.lanes);
    keys_ = a_.keys_until(first + rows_);
  }

  // into = rows of all keys @ those of the queries, turned
  void score(const float* of_keys, int64_t key_row, const float* of_queries, int64_t query_row, std::vector<float>& into) {
    if (rows_ < width_) std::fill(turned_.begin(), turned_.end(), 0.0f);
    transpose(of_queries, query_row, turned_.data(), width_, rows_, a_.width());
    for (int64_t d = 0; d < a_.width(); d += kDepth) {
      const auto add = d == 0 ? products_.multiply : products_.add;
      add(of_keys + d, {key_row, 1}, turned_.data() + d * width_, width_, into.data(), width_, keys_,
          std::min(kDepth, a_.width() - d), width_);
    }
  }

  // turned_ = rows of all keys, turned, @ weights
  void combine(const float* of_keys, int64_t key_row, const std::vector<float>& weights) {
    for (int64_t key = 0; key < keys_; key += kDepth) {
      const auto add = key == 0 ? products_.multiply : products_.add;
      add(of_keys + key * key_row, {1, key_row}, weights.data() + key * width_, width_, turned_.data(), width_, a_.width(),
          std::min(kDepth, keys_ - key), width_);
    }
  }

  // Of each query, those that come after it.
  void hide_later_keys(float value) {
    if (!a_.is_causal) return;
    for (int64_t key = first_ + 1; key < keys_; ++key)
      std::fill_n(scores_.data() + key * width_, std::min(key - first_, width_), value);
  }

  ScoreMask mask_of_block() {
    if (a_.mask_kind == Kind::kNone) return {};
    const auto& mask = *a_.mask;
    const float* values = mask.const_data_ptr<float>() + b_ * step_of(mask, 0) + h_ * step_of(mask, 1);
    if (a_.mask_kind == Kind::kByKey) return {Kind::kByKey, values};
    const int64_t row = mask.stride(-2);
    if (rows_ < width_) std::fill(mask_.begin(), mask_.end(), 0.0f);
    transpose(values + first_ * row, row, mask_.data(), width_, rows_, keys_);
    return {Kind::kByPair, mask_.data()};
  }

  // Rows of whole registers, with zeros behind.
  Block padded_rows(const float* values, int64_t row, int64_t padded, std::vector<float>& copy) {
    if (padded == a_.width()) return {values, row};
    copy.assign(columns_ * padded, 0);
    for (int64_t i = 0; i < rows_; ++i) std::copy_n(values + i * row, a_.width(), copy.data() + i * padded);
    return {copy.data(), padded};
  }

  float dot(const float* left, const float* right) const {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t d = 0; d < a_.width(); ++d) sum += left[d] * right[d];
    return sum;
  }

  const Attention& a_;
  const ProductLoops& products_;
  const AttentionLoops& loops_;
  const Heads key_, value_, query_;
  const int64_t columns_;
  int64_t b_ = 0, h_ = 0, first_ = 0, rows_ = 0, width_ = 0, keys_ = 0;  // of the block; `width_`: with columns that pad
  std::vector<float> turned_, scores_, gradient_scores_, mask_, sums_, shifts_, of_key_, of_value_, query_rows_, result_rows_;
};

// body(worker, batch, head, block) for blocks of all heads; `blocks` of each head, which take so many multiplications.
template <class Body>
void for_blocks(const Attention& a, int64_t blocks, int64_t work, Body body) {
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(work, 1));
  shared_loop(0, a.batch() * a.heads() * blocks, grain, [&](int64_t begin, int64_t end) {
    Worker worker(a);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t head = task / blocks;
      body(worker, head / a.heads(), head % a.heads(), task % blocks);
    }
  });
}

// Sizes and strides as PyTorch's.
Tensor empty_with_lengths_first(const Tensor& like, int64_t length) {
  auto sizes = like.sizes().vec();
  std::swap(sizes[1], sizes[2]);
  sizes[1] = length;
  return at::empty(sizes, like.options()).transpose(1, 2);
}

std::pair<Tensor, Tensor> attend(const Attention& a) {
  auto out = at::empty_like(a.query);
  auto logarithms = at::empty({a.batch(), a.queries(), a.heads()}, a.query.options()).transpose(1, 2);
  auto* sums = logarithms.mutable_data_ptr<float>();
  const auto results = heads_of(out);
  const int64_t columns = Worker::block_columns(a), step = logarithms.stride(2);
  for_blocks(a, at::ceil_div(a.queries(), columns), 2 * columns * a.keys() * a.width(),
             [&](Worker& worker, int64_t b, int64_t h, int64_t block) {
               const int64_t first = block * columns;
               float* of_block = sums + b * logarithms.stride(0) + h * logarithms.stride(1) + first * step;
               worker.attend(b, h, first, results, of_block, step);
             });
  return {out, logarithms};
}

std::tuple<Tensor, Tensor, Tensor> differentiate(const Attention& a, const Tensor& gradient, const Tensor& out,
                                                 const Tensor& logarithms) {
  auto query = empty_with_lengths_first(a.query, a.queries());
  auto key = empty_with_lengths_first(a.key, a.keys()), value = empty_with_lengths_first(a.key, a.keys());
  const auto* sums = logarithms.const_data_ptr<float>();
  for_blocks(a, 1, 5 * a.queries() * a.keys() * a.width(), [&](Worker& worker, int64_t b, int64_t h, int64_t) {
    worker.differentiate(b, h, {heads_of(gradient), heads_of(out), heads_of(query), heads_of(key), heads_of(value),
                                sums + b * logarithms.stride(0) + h * logarithms.stride(1), logarithms.stride(2)});
  });
  return {query, key, value};
}

// Of the loops that run for it, that of a team of OpenMP's is eager's alone.
double handicap(int way) { return way == kOwn ? 1.0 : team_handicap(); }

template <class Run>
void run_fastest(int64_t kind, const Attention& a, Run run) {
  const Problem problem{kind, rough_size(a.batch() * a.heads()), rough_size(a.queries()), rough_size(a.keys()), a.width(),
                        a.is_causal, static_cast<int64_t>(a.mask_kind), at::get_num_threads(), has_board()};
  run_chosen(problem, 1u << kAsEager | 1u << kOwn, static_cast<double>(a.work()), handicap, needs_nothing, [](int) {}, run);
}

template <class... Results>
void replace(torch::jit::Stack& stack, Results... results) {
  stack.clear();
  (stack.emplace_back(std::move(results)), ...);
}

}  // namespace

bool try_attention(torch::jit::Stack& stack) {
  const auto a = read(stack, 0, 3);
  if (!a) return false;
  std::pair<Tensor, Tensor> results;
  run_fastest(kForward, *a, [&](int way) {
    if (way == kOwn) {
      results = attend(*a);
    } else {
      auto [out, logarithms] =
          at::_scaled_dot_product_flash_attention_for_cpu(a->query, a->key, a->value, 0, a->is_causal, a->mask, a->scale);
      results = {std::move(out), std::move(logarithms)};
    }
  });
  replace(stack, std::move(results.first), std::move(results.second));
  return true;
}

bool try_attention_backward(torch::jit::Stack& stack) {
  const auto a = read(stack, 1, 6);
  if (!a) return false;
  auto gradient = stack[0].toTensor();
  const auto out = stack[4].toTensor(), logarithms = stack[5].toTensor();
  if (!is_float_tensor(gradient) || gradient._is_zerotensor() || gradient.sizes() != a->query.sizes()) return false;
  if (!are_heads(out) || out.sizes() != a->query.sizes()) return false;
  if (!is_float_tensor(logarithms) || logarithms._is_zerotensor() || logarithms.sizes() != a->query.sizes().slice(0, 3))
    return false;
  std::tuple<Tensor, Tensor, Tensor> results;
  run_fastest(kBackward, *a, [&](int way) {
    if (way == kOwn) {
      results = differentiate(*a, gradient.stride(3) == 1 ? gradient : gradient.contiguous(), out, logarithms);
    } else {
      results = at::_scaled_dot_product_flash_attention_for_cpu_backward(gradient, a->query, a->key, a->value, out, logarithms,
                                                                         0, a->is_causal, a->mask, a->scale);
    }
  });
  auto& [query, key, value] = results;
  replace(stack, std::move(query), std::move(key), std::move(value));
  return true;
}

}  // namespace lockstep::dynamic
