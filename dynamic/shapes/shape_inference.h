// What an op makes of sizes that it was not met with before, from what it made of others: a rule for elementwise ops, the
// half of PyTorch's structured kernels that says what comes out (structured_shapes.h), and rules for some others
// (shape_rules.h). So the leading thread needs not wait for the op itself to answer.
#pragma once

#include "graph/trace_graph.h"

namespace lockstep::dynamic {

// Fills what `learned` says of the results; its op, words and inputs are known. `known`: of the same op in the same place,
// that ran; `varies`: the arguments that have not always been the same there. False where nothing certain can be said; then the op has to run. Never warns, draws or touches data.
bool infer_results(graph::Signature& learned, const graph::Signature& known, at::ArrayRef<c10::IValue> args,
                   const std::vector<bool>& varies);

// Of index_put(self, indices, values): truth values alone choose places, and one number is put there. It fits, however many
// places they choose.
bool puts_number_by_mask(at::ArrayRef<c10::IValue> args);

}  // namespace lockstep::dynamic
