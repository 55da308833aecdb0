// Compiled for each instruction set (instruction_sets_body.h), inside of a namespace and under its target options; hence
// no include guard and no includes. No two of the pointers lead to the same memory. Each rounds where PyTorch's kernels for
// single ops do, which multiply and add at once; nothing else is contracted (CMakeLists.txt).

static inline float multiply_add(float a, float b, float c) {
#if LOCKSTEP_LANES > 4
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

// Terms that are not there are left out, not multiplied by zero: 0 * inf is no number.
template <bool kDecays>
static inline float gradient_of(float gradient, float parameter, const StepNumbers& numbers) {
  const float own = numbers.sign * gradient;
  return kDecays ? multiply_add(parameter, numbers.weight_decay, own) : own;
}

// at::lerp: exact at both ends.
static inline float move_towards(float from, float to, float part) {
  return part < 0.5f ? multiply_add(part, to - from, from) : multiply_add(part - 1, to - from, to);
}

template <bool kDecays, bool kKeepsLargest>
static void adam_loop(float* __restrict p, const float* __restrict g, float* __restrict mean, float* __restrict square,
                      float* __restrict largest, int64_t count, const AdamNumbers n) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float x = p[i] * n.keep;
    const float gradient = gradient_of<kDecays>(g[i], p[i], n);
    const float m = move_towards(mean[i], gradient, n.to_gradient);
    const float s = multiply_add(n.from_square * gradient, gradient, square[i] * n.beta2);
    float used = s;
    if (kKeepsLargest) {
      used = !(s <= largest[i]) && !(largest[i] != largest[i]) ? s : largest[i];  // a nan of either stays
      largest[i] = used;
    }
    mean[i] = m;
    square[i] = s;
    p[i] = x + -n.rate * m / (sqrtf(used) / n.correction + n.eps);
  }
}

static void adam(float* p, const float* g, float* mean, float* square, float* largest, int64_t count, const AdamNumbers& n) {
  const bool decays = n.weight_decay != 0;
  const auto loop = largest ? (decays ? adam_loop<true, true> : adam_loop<false, true>)
                            : (decays ? adam_loop<true, false> : adam_loop<false, false>);
  loop(p, g, mean, square, largest, count, n);
}

enum class Momentum { kNone, kPlain, kNesterov };

template <bool kDecays, Momentum kMomentum>
static void sgd_loop(float* __restrict p, const float* __restrict g, float* __restrict buffer, int64_t count,
                     const SgdNumbers n) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    float gradient = gradient_of<kDecays>(g[i], p[i], n);
    if (kMomentum != Momentum::kNone) {
      const float b = multiply_add(gradient, n.from_gradient, buffer[i] * n.momentum);
      buffer[i] = b;
      gradient = kMomentum == Momentum::kNesterov ? multiply_add(b, n.momentum, gradient) : b;
    }
    p[i] = multiply_add(gradient, -n.rate, p[i]);
  }
}

template <bool kDecays>
static void sgd_with(float* p, const float* g, float* buffer, int64_t count, const SgdNumbers& n) {
  const auto loop = !buffer         ? sgd_loop<kDecays, Momentum::kNone>
                    : n.is_nesterov ? sgd_loop<kDecays, Momentum::kNesterov>
                                    : sgd_loop<kDecays, Momentum::kPlain>;
  loop(p, g, buffer, count, n);
}

static void sgd(float* p, const float* g, float* buffer, int64_t count, const SgdNumbers& n) {
  n.weight_decay != 0 ? sgd_with<true>(p, g, buffer, count, n) : sgd_with<false>(p, g, buffer, count, n);
}

template <bool kDecays>
static void adagrad_loop(float* __restrict p, const float* __restrict g, float* __restrict sum, int64_t count,
                         const AdagradNumbers n) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float gradient = gradient_of<kDecays>(g[i], p[i], n);
    const float s = multiply_add(gradient, gradient, sum[i]);
    sum[i] = s;
    p[i] += -n.rate * gradient / (sqrtf(s) + n.eps);
  }
}

static void adagrad(float* p, const float* g, float* sum, int64_t count, const AdagradNumbers& n) {
  n.weight_decay != 0 ? adagrad_loop<true>(p, g, sum, count, n) : adagrad_loop<false>(p, g, sum, count, n);
}

template <bool kDecays, bool kIsCentered, bool kHasMomentum>
static void rmsprop_loop(float* __restrict p, const float* __restrict g, float* __restrict square, float* __restrict mean,
                         float* __restrict buffer, int64_t count, const RmspropNumbers n) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float gradient = gradient_of<kDecays>(g[i], p[i], n);
    const float s = multiply_add(n.from_square * gradient, gradient, square[i] * n.alpha);
    square[i] = s;
    float used = s;
    if (kIsCentered) {
      const float m = move_towards(mean[i], gradient, n.from_square);
      mean[i] = m;
      used = multiply_add(-m, m, s);
    }
    const float root = sqrtf(used) + n.eps;
    if (kHasMomentum) {
      const float b = buffer[i] * n.momentum + gradient / root;
      buffer[i] = b;
      p[i] = multiply_add(b, -n.rate, p[i]);
    } else {
      p[i] += -n.rate * gradient / root;
    }
  }
}

template <bool kDecays>
static void rmsprop_with(float* p, const float* g, float* square, float* mean, float* buffer, int64_t count,
                         const RmspropNumbers& n) {
  const auto loop = mean ? (buffer ? rmsprop_loop<kDecays, true, true> : rmsprop_loop<kDecays, true, false>)
                         : (buffer ? rmsprop_loop<kDecays, false, true> : rmsprop_loop<kDecays, false, false>);
  loop(p, g, square, mean, buffer, count, n);
}

static void rmsprop(float* p, const float* g, float* square, float* mean, float* buffer, int64_t count,
                    const RmspropNumbers& n) {
  const auto loop = n.weight_decay != 0 ? rmsprop_with<true> : rmsprop_with<false>;
  loop(p, g, square, mean, buffer, count, n);
}

static constexpr OptimizerLoops kLoops = {adam, sgd, adagrad, rmsprop};
