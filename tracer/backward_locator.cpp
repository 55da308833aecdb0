// Why this works: an autograd node takes the next sequence number of its thread when it is made, which is just before
// its op passes the hook; the number it took is peek() - 1, if peek() moved since the last op. AccumulateGrad has no
// number (it is always the largest); regenerated views take extra ones, whose entries then stay unknown: such a node is
// named by its kind and its ordinal alone, which is coarser and still right.
#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/node.h>

#include "tracer/hash.h"
#include "tracer/location.h"

namespace lockstep::tracer {

namespace {

std::string running_name() {
  auto node = torch::autograd::get_current_node();
  return node ? node->name() : std::string();
}

}  // namespace

void BackwardLocator::reset() {
  entries_.assign(kRemembered, Entry{});
  last_peek_ = at::sequence_number::peek();
  running_ = nullptr;
}

void BackwardLocator::note_forward(const graph::Node* node, uint32_t function) {
  const uint64_t peek = at::sequence_number::peek();
  if (peek != last_peek_) {
    entries_[(peek - 1) % kRemembered] = {peek - 1, node->id, function};
    last_peek_ = peek;
  }
}

BackwardLocator::Reading BackwardLocator::read(bool in_engine, uint32_t function) {
  Reading reading;
  if (!in_engine) return reading;
  auto node = torch::autograd::get_current_node();
  if (!node) return reading;
  reading.in_backward = true;
  reading.name = &running_name;
  const uint64_t sequence = node->sequence_nr();
  if (running_ != node.get() || running_sequence_ != sequence) {
    running_ = node.get();
    running_sequence_ = sequence;
    ordinal_ = 0;
  }
  const auto& entry = entries_[sequence % kRemembered];
  if (entry.sequence == sequence && entry.function == function) reading.forward_node = entry.node;
  // the node's dynamic type: a vtable's address is stable within the process
  uint64_t kind = *reinterpret_cast<const uint64_t*>(node.get());
  reading.key = mix(mix(mix(0xb5297a4d, kind), static_cast<uint64_t>(reading.forward_node)), ordinal_++);
  return reading;
}

}  // namespace lockstep::tracer
