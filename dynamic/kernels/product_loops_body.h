// Compiled for each instruction set (instruction_sets_body.h), inside of a namespace and under its target options; hence
// no include guard and no includes. LOCKSTEP_LANES: float32 lanes of a register.

typedef float Floats __attribute__((vector_size(4 * LOCKSTEP_LANES)));
typedef float FloatsInMemory __attribute__((vector_size(4 * LOCKSTEP_LANES), aligned(4), may_alias));

// Of a tile of the result that stays in registers: 32 of them with 16 lanes, else 16.
constexpr int kTileRows = LOCKSTEP_LANES == 16 ? 8 : 4;
constexpr int kTileVectors = 3;

// Of so many products each sum is made one after the other; where there are more, such sums are added to each other: what
// rounding loses grows with the longer of both chains.
constexpr int64_t kChain = 256;

template <int kRows, int kVectors>
static inline void add_products(Floats (&sums)[kRows][kVectors], const float* left, MatrixStrides strides, const float* right,
                                int64_t right_row, int64_t depth) {
  for (int64_t k = 0; k < depth; ++k) {
    Floats columns[kVectors];
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v)
      columns[v] = *reinterpret_cast<const FloatsInMemory*>(right + k * right_row + v * LOCKSTEP_LANES);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const float factor = left[r * strides.row + k * strides.column];
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) sums[r][v] += factor * columns[v];
    }
  }
}

template <bool kAdds, int kRows, int kVectors>
static inline void put(const Floats (&sums)[kRows][kVectors], float* out, int64_t out_row) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) {
      FloatsInMemory* to = reinterpret_cast<FloatsInMemory*>(out + r * out_row + v * LOCKSTEP_LANES);
      if constexpr (kAdds) {
        *to += sums[r][v];
      } else {
        *to = sums[r][v];
      }
    }
}

template <bool kAdds, int kRows, int kVectors>
[[gnu::noinline]] static void deep_tile(const float* left, MatrixStrides strides, const float* right, int64_t right_row,
                                        float* out, int64_t out_row, int64_t depth) {
  Floats sums[kRows][kVectors] = {};
  for (int64_t k = 0; k < depth; k += kChain) {
    Floats chain[kRows][kVectors] = {};
    add_products(chain, left + k * strides.column, strides, right + k * right_row, right_row, std::min(depth - k, kChain));
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) sums[r][v] += chain[r][v];
  }
  put<kAdds>(sums, out, out_row);
}

template <bool kAdds, int kRows, int kVectors>
static inline void tile(const float* left, MatrixStrides strides, const float* right, int64_t right_row, float* out,
                        int64_t out_row, int64_t depth) {
  if (depth > kChain) return deep_tile<kAdds, kRows, kVectors>(left, strides, right, right_row, out, out_row, depth);
  Floats sums[kRows][kVectors] = {};
  add_products(sums, left, strides, right, right_row, depth);
  put<kAdds>(sums, out, out_row);
}

// All rows of so many columns; the rows that are left over by ever smaller tiles.
template <bool kAdds, int kRows, int kVectors>
static void strip(const float* left, MatrixStrides strides, const float* right, int64_t right_row, float* out,
                  int64_t out_row, int64_t rows, int64_t depth) {
  int64_t row = 0;
  for (; row + kRows <= rows; row += kRows)
    tile<kAdds, kRows, kVectors>(left + row * strides.row, strides, right, right_row, out + row * out_row, out_row, depth);
  if constexpr (kRows > 1)
    strip<kAdds, kRows / 2, kVectors>(left + row * strides.row, strides, right, right_row, out + row * out_row, out_row,
                                      rows - row, depth);
}

template <bool kAdds>
static void multiply(const float* left, MatrixStrides strides, const float* right, int64_t right_row, float* out,
                     int64_t out_row, int64_t rows, int64_t depth, int64_t columns) {
  int64_t column = 0;
  const auto run = [&](auto vectors) {
    strip<kAdds, kTileRows, vectors.value>(left, strides, right + column, right_row, out + column, out_row, rows, depth);
    column += vectors.value * LOCKSTEP_LANES;
  };
  while (column + kTileVectors * LOCKSTEP_LANES <= columns) run(std::integral_constant<int, kTileVectors>());
  if (column + 2 * LOCKSTEP_LANES <= columns) run(std::integral_constant<int, 2>());
  if (column + LOCKSTEP_LANES <= columns) run(std::integral_constant<int, 1>());
  if (kAdds || column == columns) return;
  column = columns - LOCKSTEP_LANES;  // some of them once more, with the same bits
  run(std::integral_constant<int, 1>());
}

static constexpr ProductLoops kLoops = {LOCKSTEP_LANES, kTileVectors * LOCKSTEP_LANES, &multiply<false>, &multiply<true>};
