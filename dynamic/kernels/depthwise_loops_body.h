// Compiled for each instruction set (instruction_sets_body.h), inside of a namespace and under its target options; hence
// no include guard and no includes. LOCKSTEP_LANES: float32 lanes of a register.

typedef float Floats __attribute__((vector_size(4 * LOCKSTEP_LANES)));
typedef float FloatsInMemory __attribute__((vector_size(4 * LOCKSTEP_LANES), aligned(4), may_alias));

constexpr int kMostTaps = 8;  // of a window's row at a time: a register each

static inline Floats load(const float* from) { return *reinterpret_cast<const FloatsInMemory*>(from); }
static inline void store(float* to, Floats value) { *reinterpret_cast<FloatsInMemory*>(to) = value; }

// Of some channels of a pixel; `Value` is a register or a single value.
template <int kValues, class Value, class Load>
static inline void combine_channels(const float* source, const float* weights, const DepthwiseTap* rows, int64_t row_count,
                                    const DepthwiseTap* columns, int64_t column_count, const float* bias, Load load_at,
                                    Value (&sums)[kValues]) {
  constexpr int64_t kStep = sizeof(Value) / sizeof(float);
#pragma GCC unroll 4
  for (int v = 0; v < kValues; ++v) sums[v] = bias ? load_at(bias + v * kStep) : Value{};
  for (int64_t r = 0; r < row_count; ++r)
    for (int64_t k = 0; k < column_count; ++k) {
      const float* from = source + rows[r].source + columns[k].source;
      const float* weight = weights + rows[r].weight + columns[k].weight;
#pragma GCC unroll 4
      for (int v = 0; v < kValues; ++v) sums[v] += load_at(from + v * kStep) * load_at(weight + v * kStep);
    }
}

static void combine(const float* source, const float* weights, const DepthwiseTap* rows, int64_t row_count,
                    DepthwiseTaps columns, const float* bias, float* out, int64_t width, int64_t channels) {
  constexpr int kRegisters = 4;
  for (int64_t x = 0; x < width; ++x) {
    const DepthwiseTap* taps = columns.taps + columns.ends[x];
    const int64_t count = columns.ends[x + 1] - columns.ends[x];
    float* to = out + x * channels;
    const auto run = [&](auto registers, int64_t c) {
      Floats sums[registers.value];
      combine_channels(source + c, weights + c, rows, row_count, taps, count, bias ? bias + c : nullptr, load, sums);
#pragma GCC unroll 4
      for (int v = 0; v < registers.value; ++v) store(to + c + v * LOCKSTEP_LANES, sums[v]);
    };
    int64_t c = 0;
    for (; c + kRegisters * LOCKSTEP_LANES <= channels; c += kRegisters * LOCKSTEP_LANES)
      run(std::integral_constant<int, kRegisters>(), c);
    for (; c + LOCKSTEP_LANES <= channels; c += LOCKSTEP_LANES) run(std::integral_constant<int, 1>(), c);
    if (c < channels && channels >= LOCKSTEP_LANES) {  // some of them once more, with the same bits
      run(std::integral_constant<int, 1>(), channels - LOCKSTEP_LANES);
      continue;
    }
    for (; c < channels; ++c) {
      float sum[1];
      combine_channels(source + c, weights + c, rows, row_count, taps, count, bias ? bias + c : nullptr,
                       [](const float* from) { return *from; }, sum);
      to[c] = sum[0];
    }
  }
}

// For `kTaps` taps beside each other.
template <int kTaps>
static inline void correlate_taps(const float* gradient, const float* source, int64_t width, int64_t step, int64_t spacing,
                                  int64_t channels, float* sums) {
  int64_t c = 0;
  for (; c + LOCKSTEP_LANES <= channels; c += LOCKSTEP_LANES) {
    Floats totals[kTaps] = {};
    for (int64_t x = 0; x < width; ++x) {
      const Floats slope = load(gradient + x * channels + c);
      const float* from = source + x * step + c;
#pragma GCC unroll 8
      for (int k = 0; k < kTaps; ++k) totals[k] += slope * load(from + k * spacing);
    }
#pragma GCC unroll 8
    for (int k = 0; k < kTaps; ++k) store(sums + k * channels + c, load(sums + k * channels + c) + totals[k]);
  }
  for (; c < channels; ++c)
    for (int k = 0; k < kTaps; ++k) {
      float total = 0;
      for (int64_t x = 0; x < width; ++x) total += gradient[x * channels + c] * source[x * step + k * spacing + c];
      sums[k * channels + c] += total;
    }
}

static void correlate(const float* gradient, const float* source, int64_t width, int64_t step, int64_t spacing,
                      int64_t window, int64_t channels, float* sums) {
  for (int64_t first = 0; first < window; first += kMostTaps) {
    const float* from = source + first * spacing;
    float* into = sums + first * channels;
    const auto run = [&](auto taps) { correlate_taps<taps.value>(gradient, from, width, step, spacing, channels, into); };
    switch (std::min<int64_t>(kMostTaps, window - first)) {
      case 1: run(std::integral_constant<int, 1>()); break;
      case 2: run(std::integral_constant<int, 2>()); break;
      case 3: run(std::integral_constant<int, 3>()); break;
      case 4: run(std::integral_constant<int, 4>()); break;
      case 5: run(std::integral_constant<int, 5>()); break;
      case 6: run(std::integral_constant<int, 6>()); break;
      case 7: run(std::integral_constant<int, 7>()); break;
      default: run(std::integral_constant<int, kMostTaps>());
    }
  }
}

static constexpr DepthwiseLoops kLoops = {&combine, &correlate};
