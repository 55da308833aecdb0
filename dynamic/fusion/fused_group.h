// A group of pointwise ops that is to run as one kernel, collected event by event in the order of asking. Who may join
// is decided on the events themselves: which storages they share, and who still holds what they make.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dynamic/fusion/op_body.h"
#include "dynamic/vm/event.h"

namespace lockstep::dynamic {

// What the signature of an op says about fusing it; made once for each signature.
struct FusionFacts {
  const OpRow* row = nullptr;             // null: cannot be fused
  const graph::Layout* target = nullptr;  // what it makes first or writes: the space that it iterates over
  int written = -1;                       // the operand that it writes, or -1
  int folded = -1;                        // the dim that it folds, or -1; later results have size 1 there
  jit::Total total = jit::Total::kNone;   // what its results hold, from the row's first total on
  int64_t id = 0;                         // unique in the process; one for numbers of all classes
  std::vector<graph::Layout> layouts = {};  // of the operands in the space, where some are by row; else as the signature says
  std::vector<graph::Layout> results = {};  // the same of the results

  const graph::Layout& layout_of(const Event& event, size_t operand) const {
    return layouts.empty() ? event.signature->inputs[operand] : layouts[operand];
  }
  const graph::Layout& result_layout(const graph::Signature& signature, size_t result) const {
    return results.empty() ? signature.outputs[result] : results[result];
  }
};

// The facts of all signatures that were met, for the groups of one thread.
class FusionMemo {
 public:
  const FusionFacts& facts_of(const Event& event);
  // Forgets facts whose signatures are gone; to be called between groups.
  void renew();

 private:
  int64_t id_of(const graph::Signature& signature);

  std::unordered_map<const graph::Signature*, FusionFacts> facts_;
  std::map<std::pair<const graph::OpInfo*, graph::SignatureWords>, int64_t> ids_;
  uint64_t epoch_ = 0;
};

// How a layout is walked along a dim of the space that it is broadcast to: elements, 0 where it is broadcast.
int64_t stride_over(const graph::Layout& layout, const graph::Layout& space, size_t dim);

// Part of a storage that the group reads or writes, always in one layout where it is written.
struct BufferUse {
  c10::StorageImpl* storage = nullptr;
  int64_t offset = 0;                     // elements
  const graph::Layout* layout = nullptr;
  bool is_produced = false;               // made by an event of the group
  bool is_written = false;
  uint32_t held = 0;                      // references of the group's events
  jit::Total total = jit::Total::kNone;   // smaller than the space: of all rows
  bool is_by_row = false;                 // smaller than the space: follows from what a row was folded to

  // Whether at each point of the space it is the same element.
  bool is_same_part(const Operand& operand, const graph::Layout& its_layout, const graph::Layout& space) const;
};

using GroupKey = graph::SignatureWords;

class FusedGroup {
 public:
  static constexpr size_t kMaxEvents = 32, kMaxBuffers = 48;
  static_assert(kMaxBuffers <= 64, "a bit for each");

  explicit FusedGroup(std::shared_ptr<FusionMemo> memo = std::make_shared<FusionMemo>()) : memo_(std::move(memo)) {}

  // Whether the event joins. Its address stays until the group is cleared.
  bool try_add(Event& event);
  // Whether an event that does not join may run before the group: neither touches what the other writes.
  bool is_independent(const Event& event) const;
  bool is_empty() const { return events_.empty(); }
  const std::vector<Event*>& events() const { return events_; }
  const std::vector<BufferUse>& buffers() const { return buffers_; }
  // Buffer of an operand, -1 for a number or nothing; buffer of a result, none where an operand is written.
  int buffer_of(int event, int operand) const { return wiring_[first_wire_[event] + operand]; }
  int result_of(int event, int result = 0) const { return first_result_[event] + result; }
  const graph::Node* producer_of(int buffer) const;  // null: none of the group's
  // The dim that some of its events fold, innermost in memory; -1: all are pointwise.
  int folded() const { return folded_; }
  const FusionFacts& facts(int event) const { return *facts_[event]; }

  // Maps stay as they lie where all of the group are hidden; else they are restored. Masks stay packed. To be called
  // before key().
  void settle_forms();
  bool is_innermost() const { return is_innermost_; }
  bool is_packed(int buffer) const { return packed_ >> buffer & 1; }
  // What kernel this is: ops, layouts, wiring, static scalars, and which results somebody still wants.
  GroupKey key();
  bool is_wanted(int buffer) const { return wanted_[buffer]; }  // after key()
  void clear();

 private:
  bool goes_on_by_row(const Event& event, const FusionFacts& facts) const;
  int find_or_add_buffer(const Operand& operand, const graph::Layout& layout);
  const graph::Layout& space_with(const FusionFacts& facts) const { return *(facts_.empty() ? facts : *facts_[0]).target; }
  bool overlaps_another_layout(const Event& event, const FusionFacts& facts) const;
  bool begins_another_round(const Event& event) const;
  enum class Order : uint8_t { kAsSaid, kInnermost, kRestored };
  Order order_alone(const Event& event, const FusionFacts& facts) const;
  bool can_be_innermost(const BufferUse& buffer, const FusionFacts& facts) const;
  bool folds_as_the_others(const FusionFacts& facts) const;
  bool can_be_added_up(const FusionFacts& facts) const;
  bool reads_total(const Event& event) const;

  std::shared_ptr<FusionMemo> memo_;
  std::vector<Event*> events_;
  std::vector<const FusionFacts*> facts_;
  std::vector<BufferUse> buffers_;
  std::vector<int> first_wire_, wiring_, first_result_;
  int folded_ = -1;
  bool has_totals_ = false;
  std::vector<bool> wanted_;
  uint64_t packed_ = 0;        // buffers that are masks of bits
  bool is_innermost_ = false;  // its maps have their channels innermost; known with the first event
};

}  // namespace lockstep::dynamic
