// One thing that Python asked of the graph: a node, its operands by handle, its feeds, and where the results go.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/SmallVector.h>

#include <exception>

#include "dynamic/passes/passes.h"
#include "dynamic/vm/cache_line.h"
#include "graph/trace_graph.h"

namespace lockstep::dynamic {

using StorageRef = c10::intrusive_ptr<c10::StorageImpl>;

// A tensor argument: the runner's storage and where in it; the geometry stands in the signature. Scalars that the
// argument parser wrapped into tensors belong to nobody and travel as they are.
struct Operand {
  StorageRef storage;
  int64_t offset = 0;
  int same_as = -1;  // an earlier operand that is the very same tensor: some kernels ask
  at::Tensor direct;
};

// What a waiting leader gets back.
struct Capture {
  torch::jit::Stack results;
  std::exception_ptr error;
  std::vector<c10::Warning> warnings;  // for the thread that asked
};

// The bits of MXCSR that flush denormals (FTZ and DAZ).
constexpr unsigned kFloatModeBits = 0x8040;

// Which kernels run on one thread: their number shows in the last bits.
enum class Workers : uint8_t {
  kAsEager,  // as PyTorch wants it
  kAwake,    // those that are done before workers have heard of them
  kAsleep,   // those that are done before workers have woken up
};

// The leading thread fills it, the runner empties it: most in one piece, in lines of its own.
struct alignas(kCacheLine) Event {
  graph::Node* node = nullptr;
  const graph::Signature* signature = nullptr;
  // Constants and feeds in their places; for tensor lists their length; for tensors None or something else.
  c10::SmallVector<c10::IValue, 6> args;
  c10::SmallVector<Operand, 4> operands;    // in the order of signature->inputs
  c10::SmallVector<StorageRef, 2> outputs;  // twins of signature->outputs, one for each storage group
  bool is_strict = true;             // PyTorch's own kernels only
  bool may_be_fused = false;
  PassSet passes;                    // what may be done with it, where it is not strict
  bool is_deterministic = false;     // which kernel runs it may not depend on measurements or on what is compiled yet
  bool rounds_products = false;      // factors of products may be bfloat16
  Workers workers = Workers::kAsEager;
  bool grad_mode = false;            // whether gradients were wanted where it was asked
  unsigned float_mode = 0;           // whether denormals are flushed where it was asked
  std::optional<c10::ScalarType> autocast;  // what ops that its kernel asks for are cast to, if they are
  Capture* capture = nullptr;        // set: the results go back as they come
  const graph::OpInfo* part = nullptr;  // what is left to do, where the node's op was begun (fusion/splitter.h)
  bool is_done = false;  // by an event before it (fusion/accumulator.h)

  const graph::OpInfo& op() const { return part ? *part : *node->op; }
  // Whether its results may be kept in another order than promised (hidden_layout.h).
  bool may_hide() const { return may_be_fused && !is_strict && !capture && passes.has(Pass::k_map_order); }
  // Whether masks may be kept as bits (packed_mask.h).
  bool may_pack() const { return may_be_fused && !is_strict && !capture && passes.has(Pass::k_pack_masks); }
  // After it ran: values that nobody else holds go.
  void release_values() {
    operands.clear();
    outputs.clear();
  }
  void clear() {
    args.clear();
    release_values();
    part = nullptr;
    is_done = false;
    capture = nullptr;
  }
};

// It will be filled next.
inline void prefetch_to_write(const Event& event) {
  const char* begin = reinterpret_cast<const char*>(&event);
  for (size_t at = 0; at < sizeof event; at += kCacheLine) prefetch_to_write(begin + at);
}

}  // namespace lockstep::dynamic
