// What the verifier and the loop plan know of each value: along which dims it varies, in which pass it exists.
#pragma once

#include <cstdint>
#include <vector>

#include "dynamic/jit/kernel_spec.h"

namespace lockstep::dynamic::jit {

struct ValueFacts {
  int64_t varies = 0;  // mask of dims
  uint64_t loads = 0;  // mask of buffers that it is made of without a reduction between
  int level = 0;       // reductions passed on the way here: 0 exists in the first pass
};

std::vector<ValueFacts> find_facts(const KernelSpec& spec);

// True if the output is broadcast along the reduced dims: it is written once for each kept point.
bool is_reduced_store(const KernelSpec& spec, const Instruction& store);

}  // namespace lockstep::dynamic::jit
