// Compiled for each instruction set (instruction_sets_body.h), inside of a namespace and under its target options; hence
// no include guard and no includes. LOCKSTEP_LANES: float32 lanes of a register.
//
// Lavin and Gray, "Fast algorithms for convolutional neural networks": with window g and pixels d,
//     y = A' [(G g G') * (B' d B)] A,  the product element by element and added up over the channels.

typedef float Floats __attribute__((vector_size(4 * LOCKSTEP_LANES)));
typedef float FloatsInMemory __attribute__((vector_size(4 * LOCKSTEP_LANES), aligned(4), may_alias));

template <class Lanes>
static inline Lanes load(const float* from) {
  if constexpr (sizeof(Lanes) == sizeof(float)) {
    return *from;
  } else {
    return *reinterpret_cast<const FloatsInMemory*>(from);
  }
}

template <class Lanes>
static inline void store(float* to, Lanes value) {
  if constexpr (sizeof(Lanes) == sizeof(float)) {
    *to = value;
  } else {
    *reinterpret_cast<FloatsInMemory*>(to) = value;
  }
}

// Zero as long as all that was added is finite.
struct Finite {
  Floats lanes{};
  float rest = 0;
  void add(Floats value) { lanes += value - value; }
  void add(float value) { rest += value - value; }
  bool holds() const {
    float total = rest;
    for (int lane = 0; lane < LOCKSTEP_LANES; ++lane) total += lanes[lane];
    return total == 0;
  }
};

template <class Lanes>
static inline Lanes absolute(Lanes value) {
  return value < 0 ? -value : value;
}

// Whether one of the numbers is other than zero, and smaller than its bound: -1 in its lane then, else 1.
struct Remainders {
  Floats least = Floats{} + 1;
  float least_rest = 1;
  void add(Floats value, Floats bound) {
    const Floats size = absolute(value), one = Floats{} + 1;
    const Floats kept = (size < bound) & (size > 0) ? -one : one;
    least = kept < least ? kept : least;
  }
  void add(float value, float bound) {
    if (value != 0 && absolute(value) < bound) least_rest = -1;
  }
  bool are_there() const {
    float all = least_rest;
    for (int lane = 0; lane < LOCKSTEP_LANES; ++lane) all = least[lane] < all ? least[lane] : all;
    return all < 0;
  }
};

// body(lanes of a register, first channel) over all channels, the last ones one by one.
template <class Body>
static inline void for_channels(int64_t count, Body body) {
  int64_t i = 0;
  for (; i + LOCKSTEP_LANES <= count; i += LOCKSTEP_LANES) body(Floats{}, i);
  for (; i < count; ++i) body(float{}, i);
}

// One dim of a transform: `along(in, out)` over the columns of in[kIn][kOther], then over the rows of what that gives.
template <class Lanes, int kIn, int kOut, class Along>
static inline void transform(const Lanes (&in)[kIn][kIn], Lanes (&out)[kOut][kOut], Along along) {
  Lanes half[kOut][kIn];
#pragma GCC unroll 4
  for (int j = 0; j < kIn; ++j) {
    Lanes column[kIn], result[kOut];
#pragma GCC unroll 4
    for (int i = 0; i < kIn; ++i) column[i] = in[i][j];
    along(column, result);
#pragma GCC unroll 4
    for (int i = 0; i < kOut; ++i) half[i][j] = result[i];
  }
#pragma GCC unroll 4
  for (int i = 0; i < kOut; ++i) along(half[i], out[i]);
}

// B'
template <class Lanes>
static inline void spread_pixels(const Lanes (&d)[4], Lanes (&t)[4]) {
  t[0] = d[0] - d[2];
  t[1] = d[1] + d[2];
  t[2] = d[2] - d[1];
  t[3] = d[1] - d[3];
}

// A'
template <class Lanes>
static inline void gather_pixels(const Lanes (&t)[4], Lanes (&y)[2]) {
  y[0] = t[0] + t[1] + t[2];
  y[1] = t[1] - t[2] - t[3];
}

// A
template <class Lanes>
static inline void spread_gradient(const Lanes (&y)[2], Lanes (&t)[4]) {
  t[0] = y[0];
  t[1] = y[0] + y[1];
  t[2] = y[0] - y[1];
  t[3] = -y[1];
}

// G
template <class Lanes>
static inline void spread_window(const Lanes (&g)[3], Lanes (&t)[4]) {
  const Lanes ends = g[0] + g[2];
  t[0] = g[0];
  t[1] = (ends + g[1]) * 0.5f;
  t[2] = (ends - g[1]) * 0.5f;
  t[3] = g[2];
}

// G'
template <class Lanes>
static inline void gather_window(const Lanes (&t)[4], Lanes (&g)[3]) {
  g[0] = t[0] + (t[1] + t[2]) * 0.5f;
  g[1] = (t[1] - t[2]) * 0.5f;
  g[2] = (t[1] + t[2]) * 0.5f + t[3];
}

template <class Lanes, int kSide>
static inline void load_pixels(const float* const* pixels, int64_t i, Lanes (&values)[kSide][kSide]) {
  for (int p = 0; p < kSide * kSide; ++p) values[p / kSide][p % kSide] = load<Lanes>(pixels[p] + i);
}

template <class Lanes>
static inline void load_tile(const float* tile, int64_t row, int64_t i, Lanes (&values)[4][4]) {
  for (int p = 0; p < 16; ++p) values[p / 4][p % 4] = load<Lanes>(tile + p * row + i);
}

template <class Lanes>
static inline void store_tile(const Lanes (&values)[4][4], float* tile, int64_t row, int64_t i) {
  for (int p = 0; p < 16; ++p) store(tile + p * row + i, values[p / 4][p % 4]);
}

static void from_pixels(const float* const* pixels, int64_t count, float* tile, int64_t row) {
  for_channels(count, [=]<class Lanes>(Lanes, int64_t i) {
    Lanes d[4][4], t[4][4];
    load_pixels(pixels, i, d);
    transform(d, t, spread_pixels<Lanes>);
    store_tile(t, tile, row, i);
  });
}

static bool to_pixels(const float* tile, int64_t row, int64_t count, const float* shift, float* const* pixels) {
  Finite finite;
  for_channels(count, [&]<class Lanes>(Lanes, int64_t i) {
    Lanes t[4][4], y[2][2];
    load_tile(tile, row, i, t);
    transform(t, y, gather_pixels<Lanes>);
    const Lanes added = load<Lanes>(shift + i);
    for (int p = 0; p < 4; ++p) {
      const Lanes value = y[p / 2][p % 2] + added;
      finite.add(value);
      store(pixels[p] + i, value);
    }
  });
  return finite.holds();
}

static void from_gradient(const float* const* pixels, int64_t count, float* tile, int64_t row) {
  for_channels(count, [=]<class Lanes>(Lanes, int64_t i) {
    Lanes y[2][2], t[4][4];
    load_pixels(pixels, i, y);
    transform(y, t, spread_gradient<Lanes>);
    store_tile(t, tile, row, i);
  });
}

static void from_window(const float* window, int64_t tap, int64_t count, float* tile, int64_t row) {
  for_channels(count, [=]<class Lanes>(Lanes, int64_t i) {
    Lanes g[3][3], t[4][4];
    for (int p = 0; p < 9; ++p) g[p / 3][p % 3] = load<Lanes>(window + p * tap + i);
    transform(g, t, spread_window<Lanes>);
    store_tile(t, tile, row, i);
  });
}

static WindowFindings to_window(const float* tile, int64_t row, int64_t count, float rounding, float* window, int64_t tap) {
  Finite finite;
  Remainders remainders;
  for_channels(count, [&]<class Lanes>(Lanes, int64_t i) {
    Lanes t[4][4], g[3][3];
    load_tile(tile, row, i, t);
    Lanes largest{};
    for (int p = 0; p < 16; ++p) {
      const Lanes size = absolute(t[p / 4][p % 4]);
      largest = largest < size ? size : largest;
    }
    transform(t, g, gather_window<Lanes>);
    for (int p = 0; p < 9; ++p) {
      finite.add(g[p / 3][p % 3]);
      remainders.add(g[p / 3][p % 3], largest * rounding);
      store(window + p * tap + i, g[p / 3][p % 3]);
    }
  });
  return {finite.holds(), remainders.are_there()};
}

static constexpr WinogradLoops kLoops = {&from_pixels, &to_pixels, &from_gradient, &from_window, &to_window};
