// What the graph runner did in a call of a text program, as text: a line a kernel, in the order in which they ran.
//
//   mul.Tensor abs -> %1              one kernel for both; of their results it stored this one
//   exp -> %2, 1 past the cache       ... whose stores go past the caches
//   mm (own) -> %3                    a kernel of ours where PyTorch has one, too
//   gt.Scalar (at once)               ran where Python asked for it
//   maps: 2 hidden, 1 restored        kept with their channels innermost, and brought back (dynamic/vm/hidden_layout.h)
//   masks: 1 packed, 0 unpacked        drawn as bits, and brought back (dynamic/vm/packed_mask.h)
#pragma once

#include <string>

#include "coexec/function.h"
#include "tests/support/text_program.h"

namespace lockstep::support {

// Runs one call in place on `values`, where events wait until their values are needed. `like`: what each name is, of a run
// that has dropped nothing.
std::string report_call(coexec::Function& function, const TextProgram& program, TextProgram::Values& values,
                        const TextProgram::Values& like);

}  // namespace lockstep::support
