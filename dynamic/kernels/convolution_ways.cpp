#include "dynamic/kernels/convolution_ways.h"

#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <cstring>

#include "dynamic/kernels/shared_product.h"
#include "dynamic/threads/shared_loop.h"

namespace lockstep::dynamic {

bool products_are_shared() { return has_board() && has_shared_products(); }

namespace {

// (A, B, L) -> (B, A, L)
at::Tensor swap_outer(const at::Tensor& tensor, int64_t a, int64_t b) {
  return tensor.view({a, b, -1}).transpose(0, 1).contiguous();
}

at::Tensor multiply(const at::Tensor& left, const at::Tensor& right) {
  return products_are_shared() ? multiply_in_parts(left, right, std::nullopt) : at::mm(left, right);
}

at::Tensor multiply_all(const at::Tensor& left, const at::Tensor& right) {
  return products_are_shared() ? multiply_all_in_parts(left, right) : at::bmm(left, right);
}

// What a row of columns and the map have in common: outputs [first, last) of a line lie inside of the input.
struct Span {
  int64_t first, last;
};
Span inside(int64_t size, int64_t out_size, int64_t stride, int64_t begin) {
  const int64_t first = begin >= 0 ? 0 : (-begin + stride - 1) / stride;
  const int64_t last = size > begin ? (size - begin + stride - 1) / stride : 0;
  return {std::min(first, out_size), std::clamp<int64_t>(last, std::min(first, out_size), out_size)};
}

// Calls visit(map offset of the line, column offset of the line, columns inside, first map column) for each line of
// row `row` of the columns that lies inside of the map, and outside(column offset) for the others.
template <class Visit, class Outside>
void visit_row(const ConvolutionShape& s, int64_t row, Visit visit, Outside outside) {
  const int64_t channel = row / (s.kh * s.kw), ky = row / s.kw % s.kh, kx = row % s.kw;
  const int64_t x_begin = kx * s.dilation[1] - s.padding[1];
  const Span columns = inside(s.w, s.ow, s.stride[1], x_begin);
  for (int64_t n = 0; n < s.n; ++n) {
    for (int64_t y = 0; y < s.oh; ++y) {
      const int64_t from = y * s.stride[0] + ky * s.dilation[0] - s.padding[0];
      const int64_t to = (n * s.oh + y) * s.ow;
      if (from < 0 || from >= s.h) {
        outside(to);
      } else {
        visit(((n * s.c + channel) * s.h + from) * s.w, to, columns, x_begin);
      }
    }
  }
}

}  // namespace

at::Tensor columns_of(const at::Tensor& input, const ConvolutionShape& s) {
  if (s.is_pointwise()) return s.n == 1 ? input.view({s.c, -1}) : swap_outer(input, s.n, s.c).view({s.c, -1});
  auto columns = at::empty({s.depth(), s.positions()}, input.options());
  const float* source = input.const_data_ptr<float>();
  float* target = columns.mutable_data_ptr<float>();
  const int64_t step = s.stride[1];
  shared_loop(0, s.depth(), std::max<int64_t>(1, (1 << 14) / s.positions()), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* out = target + row * s.positions();
      visit_row(
          s, row,
          [&](int64_t line, int64_t to, Span span, int64_t x_begin) {
            std::fill(out + to, out + to + span.first, 0.0f);
            const float* from = source + line + x_begin;
            if (step == 1) {
              std::memcpy(out + to + span.first, from + span.first, sizeof(float) * (span.last - span.first));
            } else {
              for (int64_t x = span.first; x < span.last; ++x) out[to + x] = from[x * step];
            }
            std::fill(out + to + span.last, out + to + s.ow, 0.0f);
          },
          [&](int64_t to) { std::fill(out + to, out + to + s.ow, 0.0f); });
    }
  });
  return columns;
}

at::Tensor sum_of_columns(const at::Tensor& columns, const ConvolutionShape& s) {
  auto map = at::empty({s.n, s.c, s.h, s.w}, columns.options());
  const float* source = columns.const_data_ptr<float>();
  float* target = map.mutable_data_ptr<float>();
  const int64_t step = s.stride[1], window = s.kh * s.kw;
  shared_loop(0, s.c, std::max<int64_t>(1, (1 << 14) / (window * s.positions())), [&](int64_t begin, int64_t end) {
    for (int64_t channel = begin; channel < end; ++channel) {
      for (int64_t n = 0; n < s.n; ++n) std::fill_n(target + (n * s.c + channel) * s.h * s.w, s.h * s.w, 0.0f);
      for (int64_t row = channel * window; row < (channel + 1) * window; ++row) {
        const float* in = source + row * s.positions();
        visit_row(
            s, row,
            [&](int64_t line, int64_t from, Span span, int64_t x_begin) {
              float* to = target + line + x_begin;
              for (int64_t x = span.first; x < span.last; ++x) to[x * step] += in[from + x];
            },
            [](int64_t) {});
      }
    }
  });
  return map;
}

at::Tensor forward_by_columns(const at::Tensor& input, const at::Tensor& weight, const ConvolutionShape& s) {
  auto product = multiply(weight.view({s.o, s.depth()}), columns_of(input, s));
  if (s.n > 1) product = swap_outer(product, s.o, s.n);
  return product.view({s.n, s.o, s.oh, s.ow});
}

at::Tensor input_gradient_by_columns(const at::Tensor& gradient, const at::Tensor& weight, const ConvolutionShape& s) {
  const auto rows = s.n == 1 ? gradient : swap_outer(gradient, s.n, s.o);
  const auto columns = multiply(weight.view({s.o, s.depth()}).t(), rows.view({s.o, s.positions()}));
  if (!s.is_pointwise()) return sum_of_columns(columns, s);
  return (s.n == 1 ? columns : swap_outer(columns, s.c, s.n)).view({s.n, s.c, s.h, s.w});
}

at::Tensor weight_gradient_by_columns(const at::Tensor& gradient, const at::Tensor& input, const ConvolutionShape& s) {
  const auto rows = s.n == 1 ? gradient : swap_outer(gradient, s.n, s.o);
  return multiply(rows.view({s.o, s.positions()}), columns_of(input, s).t()).view({s.o, s.c, s.kh, s.kw});
}

at::Tensor forward_by_samples(const at::Tensor& input, const at::Tensor& weight, const ConvolutionShape& s) {
  return multiply_all(weight.view({1, s.o, s.c}).expand({s.n, s.o, s.c}), input.view({s.n, s.c, -1}))
      .view({s.n, s.o, s.oh, s.ow});
}

at::Tensor input_gradient_by_samples(const at::Tensor& gradient, const at::Tensor& weight, const ConvolutionShape& s) {
  return multiply_all(weight.view({s.o, s.c}).t().unsqueeze(0).expand({s.n, s.c, s.o}), gradient.view({s.n, s.o, -1}))
      .view({s.n, s.c, s.h, s.w});
}

at::Tensor weight_gradient_by_samples(const at::Tensor& gradient, const at::Tensor& input, const ConvolutionShape& s) {
  const auto left = gradient.view({s.n, s.o, -1}), right = input.view({s.n, s.c, -1}).transpose(1, 2);
  if (products_are_shared()) return sum_products_in_parts(left, right).view({s.o, s.c, 1, 1});
  const auto products = at::bmm(left, right);
  return (s.n == 1 ? products : products.sum(0)).view({s.o, s.c, 1, 1});
}

}  // namespace lockstep::dynamic
