// The way that when="auto" or WorkerHabit chose for a function, remembered for functions like it: in this process, and on
// disk for later ones. They begin with it, instead of measuring first.
#pragma once

#include <optional>

#include "coexec/policy.h"
#include "dynamic/kernels/kernel_choice.h"

namespace lockstep::coexec {

struct Function;

// What decides how fast the ways are, as far as it is known before they are measured: the ops met so far, their tensors'
// sizes roughly, the options, the number of threads.
dynamic::Problem way_problem(const Function& function);
std::optional<Way> remembered_way(const dynamic::Problem& problem);
void remember_way(const dynamic::Problem& problem, Way way);

}  // namespace lockstep::coexec
