// The transforms under Winograd's convolutions F(2x2, 3x3), compiled once for each instruction set and chosen at run time.
// Each works on `count` channels that lie one behind the other; a transformed tile is 16 rows of them, `row` apart.
#pragma once

#include <cstdint>

namespace lockstep::dynamic {

struct WindowFindings {
  bool is_finite;       // all of them
  bool has_remainders;  // some that are not zero are less than `rounding` of what they are differences of
};

struct WinogradLoops {
  // 4x4 pixels of a map to a tile.
  void (*from_pixels)(const float* const* pixels, int64_t count, float* tile, int64_t row);
  // A tile to 2x2 pixels of a map, plus `shift`. Returns whether all of them are finite.
  bool (*to_pixels)(const float* tile, int64_t row, int64_t count, const float* shift, float* const* pixels);
  // 2x2 pixels of the gradient of a map to a tile: to_pixels turned round.
  void (*from_gradient)(const float* const* pixels, int64_t count, float* tile, int64_t row);
  // A window of 3x3, its taps `tap` apart, to a tile.
  void (*from_window)(const float* window, int64_t tap, int64_t count, float* tile, int64_t row);
  // A tile to the gradient of a window: from_window turned round.
  WindowFindings (*to_window)(const float* tile, int64_t row, int64_t count, float rounding, float* window, int64_t tap);
};

const WinogradLoops& winograd_loops();

}  // namespace lockstep::dynamic
