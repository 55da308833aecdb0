#include "dynamic/kernels/shared_product.h"

#include <ATen/ceil_div.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "dynamic/kernels/blas.h"
#include "dynamic/kernels/product.h"
#include "dynamic/threads/shared_loop.h"
#include "dynamic/threads/thread_team.h"

namespace lockstep::dynamic {

namespace {

using at::Tensor;

constexpr int64_t kMostParts = 8, kPartAlign = 16;
constexpr int64_t kHeavyWork = 1 << 23;  // some 150 us of one thread
constexpr int64_t kPartLength = 128;  // rows or columns at least: the BLAS packs the other factor for each part again

struct Sizes {
  int64_t count, rows, depth, columns;
  int64_t work() const { return rows * depth * columns; }  // of one product
  int64_t length() const { return std::max(rows, columns); }
};

Weight weight_of(const Sizes& s) { return s.work() * s.count >= kHeavyWork ? Weight::kHeavy : Weight::kUsual; }

// A part of the rows and columns of a product.
struct Corner {
  int64_t row, row_end, column, column_end;
};

// The part `index` of those that are `size` long, along the longer side.
Corner corner_of(const Sizes& s, int64_t index, int64_t size) {
  const int64_t from = index * size, until = std::min(from + size, s.length());
  return s.rows >= s.columns ? Corner{from, until, 0, s.columns} : Corner{0, s.rows, from, until};
}

// How long the parts are, if there are to be so many.
int64_t part_length(const Sizes& s, int64_t wanted, int64_t work) {
  const int64_t most = std::min(work / kSmallestPart, std::max<int64_t>(s.length() / kPartLength, 2));
  const int64_t parts = std::clamp<int64_t>(most, 1, wanted);
  return at::round_up(at::ceil_div(s.length(), parts), kPartAlign);
}

// One matrix, or several that are so many floats apart.
struct Factor {
  Rows<const float> first;
  int64_t apart = 0;
  Rows<const float> at(int64_t index) const { return {first.values + index * apart, first.apart, first.is_turned}; }
};

Rows<const float> from_row(Rows<const float> m, int64_t row) {
  return {m.values + (m.is_turned ? row : row * m.apart), m.apart, m.is_turned};
}
Rows<const float> from_column(Rows<const float> m, int64_t column) {
  return {m.values + (m.is_turned ? column * m.apart : column), m.apart, m.is_turned};
}

Factor factor_of(const Tensor& matrix) {
  const bool is_turned = !matrix.is_contiguous();
  return {{matrix.const_data_ptr<float>(), matrix.size(is_turned ? 0 : 1), is_turned}};
}

bool lies_in_rows(const Tensor& matrices) { return matrices.stride(2) == 1 && matrices.stride(1) >= matrices.size(2); }
bool lies_in_columns(const Tensor& matrices) {
  return matrices.stride(1) == 1 && matrices.stride(2) >= matrices.size(1);
}

Factor factors_of(const Tensor& matrices) {
  const bool is_turned = !lies_in_rows(matrices);
  return {{matrices.const_data_ptr<float>(), matrices.stride(is_turned ? 2 : 1), is_turned}, matrices.stride(0)};
}

Sizes sizes_of(const Tensor& left, const Tensor& right) {
  return {left.size(0), left.size(1), left.size(2), right.size(2)};
}

void multiply_corner(const Sizes& s, Rows<const float> left, Rows<const float> right, float* out, const Corner& c,
                     float scale) {
  multiply(from_row(left, c.row), from_column(right, c.column), {out + c.row * s.columns + c.column, s.columns},
           c.row_end - c.row, s.depth, c.column_end - c.column, scale);
}

void add_corner(const Sizes& s, const float* from, float* to, const Corner& c) {
  for (int64_t row = c.row; row < c.row_end; ++row) {
    const int64_t begin = row * s.columns + c.column, end = row * s.columns + c.column_end;
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) to[i] += from[i];
  }
}

// `total`: what comes out is added to it, too.
Tensor sum_in_parts(const Sizes& s, const Factor& left, const Factor& right, const float* bias,
                    const at::TensorOptions& options, float* total = nullptr) {
  auto out = at::empty({s.rows, s.columns}, options);
  auto* to = out.mutable_data_ptr<float>();
  const int64_t size = part_length(s, kMostParts, s.work() * s.count);
  shared_loop(0, at::ceil_div(s.length(), size), 1, [&](int64_t begin, int64_t end) {
    const OneThreadScope alone(has_board());  // a loop of one part
    for (int64_t part = begin; part < end; ++part) {
      const auto c = corner_of(s, part, size);
      for (int64_t row = c.row; bias && row < c.row_end; ++row)
        std::copy(bias + c.column, bias + c.column_end, to + row * s.columns + c.column);
      for (int64_t i = 0; i < s.count; ++i) multiply_corner(s, left.at(i), right.at(i), to, c, bias || i > 0 ? 1.0f : 0.0f);
      if (total) add_corner(s, to, total, c);
    }
  }, weight_of(s));
  return out;
}

}  // namespace

bool has_shared_products() {
  return has_blas() && multiplies_in_float32();
}

bool are_dense(const Tensor& matrices) { return lies_in_rows(matrices) || lies_in_columns(matrices); }

Tensor multiply_in_parts(const Tensor& left, const Tensor& right, const std::optional<Tensor>& bias) {
  const Sizes sizes{1, left.size(0), left.size(1), right.size(1)};
  return sum_in_parts(sizes, factor_of(left), factor_of(right), bias ? bias->const_data_ptr<float>() : nullptr,
                      left.options());
}

void add_in_parts(const Tensor& total, const Tensor& left, const Tensor& right) {
  const Sizes sizes{1, left.size(0), left.size(1), right.size(1)};
  sum_in_parts(sizes, factor_of(left), factor_of(right), nullptr, left.options(), total.mutable_data_ptr<float>());
}

Tensor sum_products_in_parts(const Tensor& left, const Tensor& right) {
  return sum_in_parts(sizes_of(left, right), factors_of(left), factors_of(right), nullptr, left.options());
}

Tensor multiply_all_in_parts(const Tensor& left, const Tensor& right) {
  const auto s = sizes_of(left, right);
  auto out = at::empty({s.count, s.rows, s.columns}, left.options());
  auto* to = out.mutable_data_ptr<float>();
  const auto first = factors_of(left), second = factors_of(right);
  const int64_t size = part_length(s, at::ceil_div(kMostParts, s.count), s.work());
  const int64_t parts = at::ceil_div(s.length(), size);
  const int64_t grain = std::max<int64_t>(1, kSmallestPart * parts / std::max<int64_t>(s.work(), 1));
  shared_loop(0, s.count * parts, grain, [&](int64_t begin, int64_t end) {
    const OneThreadScope alone(has_board());
    for (int64_t task = begin; task < end; ++task) {
      const int64_t i = task / parts;
      multiply_corner(s, first.at(i), second.at(i), to + i * s.rows * s.columns, corner_of(s, task % parts, size), 0.0f);
    }
  }, weight_of(s));
  return out;
}

}  // namespace lockstep::dynamic
