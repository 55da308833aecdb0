// Products by PyTorch's BLAS, MKL in its own builds, for parts of a loop: each runs on the thread that asks for it.
#pragma once

#include <cstdint>

// Null where the BLAS has none of this name.
extern "C" __attribute__((weak)) void sgemm_(const char* turns_a, const char* turns_b, const int* m, const int* n,
                                             const int* k, const float* alpha, const float* a, const int* a_column,
                                             const float* b, const int* b_column, const float* beta, float* c,
                                             const int* c_column);

namespace lockstep::dynamic {

inline bool has_blas() { return sgemm_ != nullptr; }

// Rows of a matrix, dense, so many floats apart.
template <class Value>
struct Rows {
  Value* values;
  int64_t apart;
  bool is_turned = false;  // it is the transposed of what lies in memory
};

// out = left * right + scale * out
inline void multiply(Rows<const float> left, Rows<const float> right, Rows<float> out, int64_t rows, int64_t depth,
                     int64_t columns, float scale) {
  const auto letter = [](bool is_turned) { return is_turned ? "T" : "N"; };
  const int m = static_cast<int>(columns), n = static_cast<int>(rows), k = static_cast<int>(depth);
  const int right_apart = static_cast<int>(right.apart), left_apart = static_cast<int>(left.apart),
            out_apart = static_cast<int>(out.apart);
  const float one = 1;
  sgemm_(letter(right.is_turned), letter(left.is_turned), &m, &n, &k, &one, right.values, &right_apart, left.values,
         &left_apart, &scale, out.values, &out_apart);  // its columns are our rows
}

}  // namespace lockstep::dynamic
