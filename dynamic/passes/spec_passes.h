// Passes over the body of a kernel: each from a spec to one that gives the same bits. Run in the order of the table.
#pragma once

#include "dynamic/jit/kernel_spec.h"
#include "dynamic/passes/passes.h"

namespace lockstep::dynamic {

// Ops on constants are computed; what has no effect (x * 1, a conversion to the same type) goes.
void fold_constants(jit::KernelSpec& spec);
// Equal instructions on equal values become one.
void merge_repeats(jit::KernelSpec& spec);
// Instructions go that no store depends on. Buffers and scalars keep their numbers.
void drop_unused(jit::KernelSpec& spec);

struct SpecPass {
  Pass pass;
  void (*run)(jit::KernelSpec& spec);
};
inline constexpr SpecPass kSpecPasses[] = {
    {Pass::k_fold_constants, &fold_constants},
    {Pass::k_merge_repeats, &merge_repeats},
    {Pass::k_drop_unused, &drop_unused},
};

inline void run_spec_passes(jit::KernelSpec& spec, PassSet passes) {
  for (const auto& [pass, run] : kSpecPasses)
    if (passes.has(pass)) run(spec);
}

}  // namespace lockstep::dynamic
