// Compiled for each instruction set (instruction_sets_body.h), inside of a namespace and under its target options; hence
// no include guard and no includes. LOCKSTEP_LANES: float32 lanes of a register. Blocks are summed up in such lanes, and
// the blocks in double.

typedef float Floats __attribute__((vector_size(4 * LOCKSTEP_LANES)));
typedef float FloatsInMemory __attribute__((vector_size(4 * LOCKSTEP_LANES), aligned(4), may_alias));

constexpr int64_t kBlock = 1 << 12;
constexpr int kRegisters = 4;  // sums at once: an addition takes four cycles

static inline Floats load(const float* from) { return *reinterpret_cast<const FloatsInMemory*>(from); }
static inline Floats spread(float value) { return Floats{} + value; }

static inline void store_past_cache(float* to, Floats value) {
#if defined(__SSE__) && LOCKSTEP_LANES == 16
  __builtin_ia32_movntps512(to, value);
#elif defined(__SSE__) && LOCKSTEP_LANES == 8
  __builtin_ia32_movntps256(to, value);
#elif defined(__SSE__)
  __builtin_ia32_movntps(to, value);
#else
  *reinterpret_cast<FloatsInMemory*>(to) = value;
#endif
}

static inline void finish_past_cache() {
#if defined(__SSE__)
  __builtin_ia32_sfence();
#endif
}

// Writes `one(i)` for all i; past the cache with `whole(i)`, a register at i, where `out` has come to a cache line. Both
// must round alike: no sum of two products, of which a compiler may contract either.
template <class One, class Whole>
static inline void write_all(float* out, int64_t count, bool past_cache, One one, Whole whole) {
  int64_t i = 0;
  if (past_cache) {
    for (; i < count && reinterpret_cast<uintptr_t>(out + i) % 64 != 0; ++i) out[i] = one(i);
    for (; i + LOCKSTEP_LANES <= count; i += LOCKSTEP_LANES) store_past_cache(out + i, whole(i));
    for (; i < count; ++i) out[i] = one(i);
    return;
  }
#pragma omp simd
  for (int64_t k = 0; k < count; ++k) out[k] = one(k);
}

static inline double add_lanes(Floats lanes) {
  float total = 0;
  for (int lane = 0; lane < LOCKSTEP_LANES; ++lane) total += lanes[lane];
  return total;
}

// Adds up `add(sums, i)` over whole registers at i, and `rest(i)` for the values that are left.
template <int kSums, class Add, class Rest>
static inline void sum_up(int64_t count, double* totals, Add add, Rest rest) {
  constexpr int64_t kStep = kRegisters * LOCKSTEP_LANES;
  int64_t i = 0;
  while (i + kStep <= count) {
    Floats sums[kRegisters][kSums] = {};
    for (const int64_t end = std::min(i + kBlock, count - kStep + 1); i < end; i += kStep)
      for (int r = 0; r < kRegisters; ++r) add(sums[r], i + r * LOCKSTEP_LANES);
    for (int k = 0; k < kSums; ++k)
      totals[k] += add_lanes((sums[0][k] + sums[1][k]) + (sums[2][k] + sums[3][k]));
  }
  Floats last[kSums] = {};
  for (; i + LOCKSTEP_LANES <= count; i += LOCKSTEP_LANES) add(last, i);
  for (int k = 0; k < kSums; ++k) totals[k] += add_lanes(last[k]);
  for (; i < count; ++i) rest(i);
}

static double sum(const float* x, int64_t count) {
  double total = 0;
  sum_up<1>(
      count, &total, [x](Floats* sums, int64_t i) { sums[0] += load(x + i); }, [&](int64_t i) { total += x[i]; });
  return total;
}

static double squares(const float* x, int64_t count, float mean) {
  double total = 0;
  const Floats means = spread(mean);
  sum_up<1>(
      count, &total,
      [x, means](Floats* sums, int64_t i) {
        const Floats apart = load(x + i) - means;
        sums[0] += apart * apart;
      },
      [&](int64_t i) { total += (x[i] - mean) * (x[i] - mean); });
  return total;
}

static void moments(const float* x, int64_t count, float about, double* sum, double* squares) {
  double totals[2] = {};
  const Floats abouts = spread(about);
  sum_up<2>(
      count, totals,
      [x, abouts](Floats* sums, int64_t i) {
        const Floats apart = load(x + i) - abouts;
        sums[0] += apart;
        sums[1] += apart * apart;
      },
      [&](int64_t i) {
        const float apart = x[i] - about;
        totals[0] += apart;
        totals[1] += apart * apart;
      });
  *sum += totals[0];
  *squares += totals[1];
}

static void scale(const float* x, int64_t count, float mean, float factor, float shift, float* y, bool past_cache) {
  write_all(
      y, count, past_cache, [=](int64_t i) { return (x[i] - mean) * factor + shift; },
      [=](int64_t i) { return (load(x + i) - mean) * factor + shift; });
  if (past_cache) finish_past_cache();
}

static void products(const float* g, const float* x, int64_t count, float mean, double* sum, double* dot) {
  double totals[2] = {};
  const Floats means = spread(mean);
  sum_up<2>(
      count, totals,
      [g, x, means](Floats* sums, int64_t i) {
        const Floats slope = load(g + i);
        sums[0] += slope;
        sums[1] += slope * (load(x + i) - means);
      },
      [&](int64_t i) {
        totals[0] += g[i];
        totals[1] += g[i] * (x[i] - mean);
      });
  *sum += totals[0];
  *dot += totals[1];
}

static void gradient(const float* g, const float* x, int64_t count, float mean, float of_g, float of_x, float shift,
                     float* out, bool past_cache) {
  write_all(
      out, count, past_cache, [=](int64_t i) { return g[i] * of_g + ((x[i] - mean) * of_x + shift); },
      [=](int64_t i) { return load(g + i) * of_g + ((load(x + i) - mean) * of_x + shift); });
  if (past_cache) finish_past_cache();
}

static void column_sums(const float* x, int64_t rows, int64_t width, float* sums) {
  for (int64_t row = 0; row < rows; ++row, x += width)
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) sums[i] += x[i];
}

static void column_squares(const float* x, int64_t rows, int64_t width, const float* mean, float* sums) {
  for (int64_t row = 0; row < rows; ++row, x += width)
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) sums[i] += (x[i] - mean[i]) * (x[i] - mean[i]);
}

static void column_moments(const float* x, int64_t rows, int64_t width, const float* about, float* sums, float* squares) {
  for (int64_t row = 0; row < rows; ++row, x += width)
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      const float apart = x[i] - about[i];
      sums[i] += apart;
      squares[i] += apart * apart;
    }
}

static void column_scale(const float* x, int64_t rows, int64_t width, const float* mean, const float* factor,
                         const float* shift, float* y, bool past_cache) {
  for (int64_t row = 0; row < rows; ++row, x += width, y += width)
    write_all(
        y, width, past_cache, [=](int64_t i) { return (x[i] - mean[i]) * factor[i] + shift[i]; },
        [=](int64_t i) { return (load(x + i) - load(mean + i)) * load(factor + i) + load(shift + i); });
  if (past_cache) finish_past_cache();
}

static void column_products(const float* g, const float* x, int64_t rows, int64_t width, const float* mean,
                            float* sums, float* dots) {
  for (int64_t row = 0; row < rows; ++row, g += width, x += width)
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      sums[i] += g[i];
      dots[i] += g[i] * (x[i] - mean[i]);
    }
}

static void column_gradient(const float* g, const float* x, int64_t rows, int64_t width, const float* mean,
                            const float* of_g, const float* of_x, const float* shift, float* out, bool past_cache) {
  for (int64_t row = 0; row < rows; ++row, g += width, x += width, out += width)
    write_all(
        out, width, past_cache,
        [=](int64_t i) { return g[i] * of_g[i] + ((x[i] - mean[i]) * of_x[i] + shift[i]); },
        [=](int64_t i) {
          return load(g + i) * load(of_g + i) + ((load(x + i) - load(mean + i)) * load(of_x + i) + load(shift + i));
        });
  if (past_cache) finish_past_cache();
}

constexpr bool kRoundsOnce = LOCKSTEP_LANES > 4;  // with AVX2 comes FMA: the compiler contracts a * b + c

constexpr ChannelLoops kLoops{kRoundsOnce, &sum,         &squares,        &moments,        &scale,        &products,       &gradient,
                              &column_sums, &column_squares, &column_moments, &column_scale, &column_products, &column_gradient};
