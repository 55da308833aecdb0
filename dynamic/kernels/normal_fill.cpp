// The float transform is PyTorch's own header, compiled as PyTorch compiles it: with AVX2 and FMA and with contraction,
// which decides the last bits. That the bits agree is checked at run time (random_check.h), since it depends on the
// compilers of both.
#include "dynamic/kernels/normal_fill.h"

#include <cmath>
#include <cstdlib>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)

#include <x86intrin.h>

#pragma GCC push_options
#pragma GCC target("avx2,fma")
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-variable"
#define CPU_CAPABILITY_AVX2
#include <ATen/native/cpu/avx_mathfun.h>
#pragma GCC diagnostic pop

namespace lockstep::dynamic {

void transform_to_normal(float* data, int64_t count, float mean, float std) {
  const __m256 one = _mm256_set1_ps(1.0f), minus_two = _mm256_set1_ps(-2.0f), two_pi = _mm256_set1_ps(2.0f * M_PI);
  const __m256 means = _mm256_set1_ps(mean), stds = _mm256_set1_ps(std);
  for (float* end = data + count; data != end; data += 16) {
    const __m256 u1 = _mm256_sub_ps(one, _mm256_loadu_ps(data));
    const __m256 u2 = _mm256_loadu_ps(data + 8);
    const __m256 radius = _mm256_sqrt_ps(_mm256_mul_ps(minus_two, log256_ps(u1)));
    __m256 sine, cosine;
    sincos256_ps(_mm256_mul_ps(two_pi, u2), &sine, &cosine);
    _mm256_storeu_ps(data, _mm256_fmadd_ps(_mm256_mul_ps(radius, cosine), stds, means));
    _mm256_storeu_ps(data + 8, _mm256_fmadd_ps(_mm256_mul_ps(radius, sine), stds, means));
  }
}

}  // namespace lockstep::dynamic

#pragma GCC pop_options

namespace lockstep::dynamic {

bool has_single_precision_normal() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

}  // namespace lockstep::dynamic

#else

namespace lockstep::dynamic {

bool has_single_precision_normal() { return false; }
void transform_to_normal(float*, int64_t, float, float) { std::abort(); }

}  // namespace lockstep::dynamic

#endif

namespace lockstep::dynamic {

void transform_to_normal(double* data, int64_t count, double mean, double std) {
  for (double* end = data + count; data != end; data += 16)
    for (int i = 0; i < 8; ++i) {
      const double radius = std::sqrt(-2 * std::log(1 - data[i]));
      const double theta = 2.0f * M_PI * data[i + 8];
      data[i] = std::fma(radius * std::cos(theta), std, mean);
      data[i + 8] = std::fma(radius * std::sin(theta), std, mean);
    }
}

}  // namespace lockstep::dynamic
