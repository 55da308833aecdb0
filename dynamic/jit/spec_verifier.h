// Says why a spec is not one that the compiler takes: nothing behind the verifier checks again.
#pragma once

#include <optional>
#include <string>

#include "dynamic/jit/kernel_spec.h"

namespace lockstep::dynamic::jit {

// Empty if the spec is right; else where, what with the value, what is wanted.
std::optional<std::string> verify_spec(const KernelSpec& spec);

}  // namespace lockstep::dynamic::jit
