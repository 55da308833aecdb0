// The loops under batch norm, compiled once for each instruction set and chosen at run time. Float32; sums of long rows
// are within float32's accuracy, and the same for the same processor and number of threads. `past_cache`: see
// past_cache.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace lockstep::dynamic {

struct ChannelLoops {
  bool rounds_once;  // (x - mean) * factor + shift, after the subtraction
  // Values of one channel, one behind the other.
  double (*sum)(const float* x, int64_t count);
  double (*squares)(const float* x, int64_t count, float mean);  // of x - mean
  // Adds both to what is there.
  void (*moments)(const float* x, int64_t count, float about, double* sum, double* squares);
  void (*scale)(const float* x, int64_t count, float mean, float factor, float shift, float* y, bool past_cache);
  // Adds g to `sum` and g * (x - mean) to `dot`.
  void (*products)(const float* g, const float* x, int64_t count, float mean, double* sum, double* dot);
  void (*gradient)(const float* g, const float* x, int64_t count, float mean, float of_g, float of_x, float shift,
                   float* out, bool past_cache);

  // Rows of `width` channels; everything by column, and sums are added to, in float32: some hundred rows at a time.
  void (*column_sums)(const float* x, int64_t rows, int64_t width, float* sums);
  void (*column_squares)(const float* x, int64_t rows, int64_t width, const float* mean, float* sums);
  void (*column_moments)(const float* x, int64_t rows, int64_t width, const float* about, float* sums, float* squares);
  void (*column_scale)(const float* x, int64_t rows, int64_t width, const float* mean, const float* factor,
                       const float* shift, float* y, bool past_cache);
  void (*column_products)(const float* g, const float* x, int64_t rows, int64_t width, const float* mean, float* sums,
                          float* dots);
  void (*column_gradient)(const float* g, const float* x, int64_t rows, int64_t width, const float* mean,
                          const float* of_g, const float* of_x, const float* shift, float* out, bool past_cache);
};

const ChannelLoops& channel_loops();

// Something near the mean, as a rule. Means are found from what values are apart from it, so that equal ones have no variance.
inline float middle_of(const float* x, int64_t count) {
  constexpr int64_t kEnough = 256;
  const int64_t looked_at = std::min(count, kEnough);
  const auto middle = static_cast<float>(channel_loops().sum(x, looked_at) / static_cast<double>(looked_at));
  return std::isfinite(middle) ? middle : 0.0f;
}

// Whether the squares about something tell those about the mean, which lack `lost`. Else two bits and more are gone.
inline bool is_near(double lost, double squares) {
  constexpr double kLostAtMost = 3;  // times the squares
  return !(lost > kLostAtMost * squares);
}

// The squares about a mean, of those about what it was rounded to.
inline double squares_about(double mean, float rounded, double squares, int64_t count) {
  const double off = mean - rounded;
  return squares - std::min(squares, off * off * static_cast<double>(count));  // nan stays
}

struct PlaneMoments {
  double mean;
  float rounded;   // the mean
  double squares;  // of what is apart from the mean
};

// From the sum and the squares of what `count` values are apart from `about`. `squares_of(mean)`: about what the mean was
// rounded to, where those say too little.
template <class SquaresOf>
inline PlaneMoments plane_moments(float about, double sum, double squares, int64_t count, SquaresOf squares_of) {
  const double apart = sum / static_cast<double>(count), mean = about + apart, lost = sum * apart;
  const auto rounded = static_cast<float>(mean);
  squares -= lost;
  if (!is_near(lost, squares)) squares = squares_about(mean, rounded, squares_of(rounded), count);
  return {mean, rounded, squares};
}

}  // namespace lockstep::dynamic
