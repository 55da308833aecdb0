// A matrix turned in memory.
#pragma once

#include <algorithm>
#include <cstdint>

namespace lockstep::dynamic {

// out[j, i] = matrix[i, j], in squares that stay in the first cache. Rows of both are dense; `row` and `out_row` are the
// distances between them, in values.
template <typename Value>
void transpose(const Value* matrix, int64_t row, Value* out, int64_t out_row, int64_t rows, int64_t columns) {
  constexpr int64_t kSquare = 16;
  for (int64_t j0 = 0; j0 < columns; j0 += kSquare)
    for (int64_t i0 = 0; i0 < rows; i0 += kSquare)
      for (int64_t j = j0; j < std::min(j0 + kSquare, columns); ++j)
        for (int64_t i = i0; i < std::min(i0 + kSquare, rows); ++i) out[j * out_row + i] = matrix[i * row + j];
}

}  // namespace lockstep::dynamic
