// The passes of the graph runner, in the order in which they work. Each can be switched off by its name (the knob
// `without`); none of them changes what is computed beyond what numerics="default" allows.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace lockstep::dynamic {

// From single events to kernels, on the way of the events:
#define LOCKSTEP_PASSES(X)                                                                                               \
  X(split, "batch norms are done in two parts, of which the second joins the ops after it")                              \
  X(map_order, "feature maps stay with their channels innermost from convolution to convolution")                        \
  X(pack_masks, "the masks of dropout are drawn as bits, which the ops that read them unpack for themselves")              \
  X(accumulate, "matrix products and gradients of slices that only a total takes, soon after, are added to it as made") \
  X(fuse, "ops on single values become one kernel")                                                                      \
  X(fuse_rows, "softmax, layer norm, losses and their gradients join them, written down in single steps")                \
  X(fuse_totals, "sums and means of all rows are added up by the kernel that makes the rows")                            \
  X(reorder, "ops that have nothing to do with the kernel that is being collected run before it")                        \
  X(drop_results, "results that nobody holds any more are not written")                                                  \
  X(fold_constants, "what is known beforehand is computed once, and steps that change nothing go")                       \
  X(merge_repeats, "what is computed twice in a kernel is computed once")                                                \
  X(drop_unused, "what nobody needs is not computed")                                                                    \
  X(past_cache, "results much larger than the caches are written past them")                                             \
  X(choose_kernels, "own kernels where they are faster: matrix products, convolutions, attention, normalisations, reductions")

enum class Pass : uint8_t {
#define LOCKSTEP_PASS(name, meaning) k_##name,
  LOCKSTEP_PASSES(LOCKSTEP_PASS)
#undef LOCKSTEP_PASS
      kCount
};

struct PassRow {
  const char* name;
  const char* meaning;
};
inline constexpr PassRow kPassRows[] = {
#define LOCKSTEP_PASS(name, meaning) {#name, meaning},
    LOCKSTEP_PASSES(LOCKSTEP_PASS)
#undef LOCKSTEP_PASS
};

// Those that are switched on.
class PassSet {
 public:
  constexpr bool has(Pass pass) const { return (bits_ >> static_cast<int>(pass) & 1) != 0; }
  constexpr PassSet without(Pass pass) const { return PassSet(static_cast<uint16_t>(bits_ & ~(1 << static_cast<int>(pass)))); }
  constexpr uint16_t bits() const { return bits_; }
  bool operator==(const PassSet&) const = default;
  constexpr PassSet() = default;

 private:
  constexpr explicit PassSet(uint16_t bits) : bits_(bits) {}
  uint16_t bits_ = (1 << static_cast<int>(Pass::kCount)) - 1;
};

inline std::optional<Pass> find_pass(std::string_view name) {
  for (int pass = 0; pass < static_cast<int>(Pass::kCount); ++pass)
    if (name == kPassRows[pass].name) return static_cast<Pass>(pass);
  return std::nullopt;
}

}  // namespace lockstep::dynamic
