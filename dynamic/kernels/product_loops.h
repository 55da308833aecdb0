// The loops under skinny matrix products, compiled once for each instruction set and chosen at run time. Nothing is
// packed; each element is added up in the order of its depth, whoever computes it, so that threads and tiles change no
// bits.
#pragma once

#include <cstdint>

namespace lockstep::dynamic {

// A matrix in memory: where element (i, j) is, in floats from the first one.
struct MatrixStrides {
  int64_t row, column;
};

struct ProductLoops {
  int lanes;       // of a register; fewer columns than that are not taken
  int tile_width;  // columns that are worked on at a time, if there are as many
  // out[i, j] = sum over k < depth of left[i, k] * right[k, j]. Rows of `right` and `out` are dense.
  using Multiply = void(const float* left, MatrixStrides left_strides, const float* right, int64_t right_row, float* out,
                        int64_t out_row, int64_t rows, int64_t depth, int64_t columns);
  Multiply* multiply;
  Multiply* add;  // out[i, j] += that sum; so many columns that no lanes are left over
};

const ProductLoops& product_loops();
// Those whose registers so few columns fill best.
const ProductLoops& product_loops_for(int64_t columns);

}  // namespace lockstep::dynamic
