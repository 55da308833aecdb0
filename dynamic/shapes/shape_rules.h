// Ops that have no shape function of their own (structured_shapes.h): one rule each for what comes out, dense and new.
#pragma once

#include "graph/trace_graph.h"

namespace lockstep::dynamic {

// Adds the results of `learned`, whose op, words and inputs are known. `known`: of the same op in the same place, with the
// same types, that ran. False where no rule is certain, or these arguments would make the op raise.
bool infer_by_rule(graph::Signature& learned, const graph::Signature& known, at::ArrayRef<c10::IValue> args,
                   const std::vector<bool>& varies);

// Ops on each element whose result has the strides of dims of one element, too: they are inferred by rule alone.
bool keeps_all_strides(const graph::OpInfo& op);

// Of a side of a tensor; beyond, where sizes may not be counted any more, PyTorch speaks.
inline constexpr int64_t kMostPadding = int64_t{1} << 31;

bool has_standard_strides(const graph::Layout& layout);
// One more result: the known one with other sizes, dense. Without strides it must have had its dims in order, and has.
bool add_dense_result(graph::Signature& learned, const graph::Layout& known, at::IntArrayRef sizes,
                      at::IntArrayRef strides = {});

}  // namespace lockstep::dynamic
