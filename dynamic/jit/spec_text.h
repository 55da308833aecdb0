// The text form of a spec: what tests and dumps show, what the caches are keyed by. Printing and parsing are inverse.
//
//   dims [?, 768]
//   b0 = in f32 [?, 1]
//   b1 = out stream f32 [768, 1]
//   b2 = out sum f32 [0, 1]
//   s0 = f32
//   %0 = load b0 : f32
//   %1 = scalar s0 : f32
//   %2 = constant 0x1.8p+1 : f32
//   %3 = mul %0 %2 : f32
//   %4 = reduce sum [1] %3 : f32
//   store b1 %4
//   store b2 %3
#pragma once

#include <optional>
#include <string>

#include "dynamic/jit/kernel_spec.h"

namespace lockstep::dynamic::jit {

std::string print_spec(const KernelSpec& spec);

// Without a value where the text is not one; `reason` then says line and cause. The result is not verified yet.
std::optional<KernelSpec> parse_spec(const std::string& text, std::string* reason);

}  // namespace lockstep::dynamic::jit
