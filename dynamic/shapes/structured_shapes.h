// Structured kernels (native_functions.yaml): one function says what comes out, for the CPU and for meta tensors. Asked
// here below the dispatcher, where nobody can have put Python in its place.
#pragma once

#include <c10/util/SmallVector.h>

#include <optional>

#include "graph/trace_graph.h"

namespace lockstep::dynamic {

using ResultLayouts = c10::SmallVector<graph::Layout, 2>;

// What this op makes of arguments without values, each result with memory of its own. Nothing where the op is not
// structured, or refuses these arguments, or warns of them.
std::optional<ResultLayouts> structured_results(const graph::OpInfo& op, at::ArrayRef<c10::IValue> args);

// Whether a shape function says what comes out.
bool is_structured(const graph::OpInfo& op);

// What self[indices] is of; indices are numbers, not truth values. Nothing where they do not fit.
std::optional<graph::Layout> indexed_layout(const graph::OpInfo& op, at::ArrayRef<c10::IValue> self_and_indices);

// What a pointwise kernel makes of up to three tensors, which are repeated to a common size; the type says nothing.
std::optional<graph::Layout> pointwise_layout(const graph::OpInfo& op, at::ArrayRef<graph::Layout> inputs);

}  // namespace lockstep::dynamic
