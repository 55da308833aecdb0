// A matrix turned in memory.
#pragma once

#include <xmmintrin.h>

#include <algorithm>
#include <cstdint>

namespace lockstep::dynamic {

namespace detail {

// 4x4 values of 32 bits.
inline void transpose_block(const void* matrix, int64_t row, void* out, int64_t out_row) {
  const auto* from = static_cast<const float*>(matrix);
  auto* to = static_cast<float*>(out);
  __m128 a = _mm_loadu_ps(from), b = _mm_loadu_ps(from + row), c = _mm_loadu_ps(from + 2 * row),
         d = _mm_loadu_ps(from + 3 * row);
  _MM_TRANSPOSE4_PS(a, b, c, d);
  _mm_storeu_ps(to, a);
  _mm_storeu_ps(to + out_row, b);
  _mm_storeu_ps(to + 2 * out_row, c);
  _mm_storeu_ps(to + 3 * out_row, d);
}

}  // namespace detail

// out[j, i] = matrix[i, j], in squares that stay in the first cache. Rows of both are dense; `row` and `out_row` are the
// distances between them, in values.
template <typename Value>
void transpose(const Value* matrix, int64_t row, Value* out, int64_t out_row, int64_t rows, int64_t columns) {
  constexpr int64_t kSquare = 16, kBlock = sizeof(Value) == 4 ? 4 : 1;
  const auto one_by_one = [&](int64_t i0, int64_t i_end, int64_t j0, int64_t j_end) {
    for (int64_t j = j0; j < j_end; ++j)
      for (int64_t i = i0; i < i_end; ++i) out[j * out_row + i] = matrix[i * row + j];
  };
  const auto block = [&](int64_t i, int64_t j) {
    if constexpr (kBlock == 4) detail::transpose_block(matrix + i * row + j, row, out + j * out_row + i, out_row);
  };
  for (int64_t i0 = 0; i0 < rows; i0 += kSquare)
    for (int64_t j0 = 0; j0 < columns; j0 += kSquare) {
      const int64_t i_end = std::min(i0 + kSquare, rows), j_end = std::min(j0 + kSquare, columns);
      if (kBlock == 1) {
        one_by_one(i0, i_end, j0, j_end);
        continue;
      }
      const int64_t i_blocks = i_end - (i_end - i0) % kBlock, j_blocks = j_end - (j_end - j0) % kBlock;
      if (row > out_row) {  // lines far from each other share places in the cache: four of them at a time
        for (int64_t i = i0; i < i_blocks; i += kBlock)
          for (int64_t j = j0; j < j_blocks; j += kBlock) block(i, j);
      } else {
        for (int64_t j = j0; j < j_blocks; j += kBlock)
          for (int64_t i = i0; i < i_blocks; i += kBlock) block(i, j);
      }
      one_by_one(i_blocks, i_end, j0, j_end);
      one_by_one(i0, i_blocks, j_blocks, j_end);
    }
}

}  // namespace lockstep::dynamic
