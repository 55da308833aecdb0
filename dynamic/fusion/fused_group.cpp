#include "dynamic/fusion/fused_group.h"

#include <algorithm>
#include <atomic>
#include <bit>

#include "dynamic/fusion/bfloat16.h"
#include "dynamic/shapes/shape_memo.h"
#include "dynamic/vm/hidden_layout.h"
#include "dynamic/vm/packed_mask.h"

namespace lockstep::dynamic {

namespace {

using graph::Layout;

std::atomic<int64_t> next_id{1};

bool broadcasts_to(const Layout& from, const Layout& to) {
  if (from.sizes.size() > to.sizes.size()) return false;
  const size_t skipped = to.sizes.size() - from.sizes.size();
  for (size_t dim = 0; dim < from.sizes.size(); ++dim)
    if (from.sizes[dim] != 1 && from.sizes[dim] != to.sizes[dim + skipped]) return false;
  return true;
}

// The op computes in the type of its result; a wider operand would make it compute in that one.
bool computes_in_result_type(const Layout& input, const Layout& target) {
  if (input.dtype == target.dtype || target.dtype == c10::ScalarType::Bool) return true;
  const bool is_scalar = input.wrapped_number || (input.sizes.empty() && !target.sizes.empty());
  if (c10::isFloatingType(target.dtype))
    return is_scalar || !c10::isFloatingType(input.dtype) || c10::elementSize(input.dtype) < c10::elementSize(target.dtype);
  return is_scalar && !c10::isFloatingType(input.dtype);
}

bool is_plain(const Layout& layout) { return jit_type(layout.dtype) && !layout.conj && !layout.neg; }

constexpr size_t kMaxRank = 8;

bool is_innermost_dim(const Layout& layout, int dim) { return layout.strides[dim] == 1 && layout.sizes[dim] > 1; }

// Totals have one value, or one for each place in a row. What they come to depends on the order of the rows.
constexpr int64_t kLongestRowOfTotals = 16384;
bool has_totals_of_rows(const graph::Signature& signature, const OpRow& row, const Layout& space, int folded) {
  if (!space.is_contiguous() || space.sizes[folded] > kLongestRowOfTotals) return false;
  for (size_t i = row.first_total; i < signature.outputs.size(); ++i) {
    const auto& output = signature.outputs[i];
    if (!output.is_defined() || !is_plain(output) || output.dtype != space.dtype || !output.is_contiguous() ||
        output.storage_group != static_cast<int>(i) || !broadcasts_to(output, space))
      return false;
    for (size_t dim = 0; dim + 1 < output.sizes.size(); ++dim)
      if (output.sizes[dim] != 1) return false;
  }
  return true;
}

// The first result fills the space, if it is not by row, too; further ones have one value a row, before there are totals.
bool has_results_by_row(const graph::Signature& signature, const FusionFacts& facts, const OpRow& row) {
  const size_t end = facts.total == jit::Total::kNone ? signature.outputs.size() : row.first_total;
  for (size_t i = row.gives_rows ? 0 : 1; i < end; ++i) {
    const auto& output = facts.result_layout(signature, i);
    auto sizes = facts.target->sizes;
    sizes[facts.folded] = 1;
    if (!output.is_defined() || output.sizes != sizes || !is_plain(output) || !output.is_without_overlap() ||
        output.storage_group != static_cast<int>(i))
      return false;
  }
  return true;
}

// Each fills the space, in memory of its own.
bool has_results_alike(const graph::Signature& signature) {
  for (size_t i = 1; i < signature.outputs.size(); ++i) {
    const auto& output = signature.outputs[i];
    if (!output.is_defined() || output.sizes != signature.outputs[0].sizes || !is_plain(output) ||
        !output.is_without_overlap() || output.storage_group != static_cast<int>(i))
      return false;
  }
  return true;
}

// One value for each row, in the space: the same along it.
void add_row_dim(Layout& layout) {
  layout.sizes.push_back(1);
  layout.strides.push_back(1);
}

std::vector<Layout> layouts_by_row(const std::vector<Layout>& inputs, const std::vector<int>& by_row) {
  if (by_row.empty()) return {};
  auto layouts = inputs;
  for (const int operand : by_row) {
    auto& layout = layouts[operand];
    if (layout.is_defined() && layout.sizes.size() == 1) add_row_dim(layout);
  }
  return layouts;
}

// Where the dim that was folded is not kept, it is there in the space.
std::vector<Layout> results_by_row(const graph::Signature& signature) {
  auto layouts = signature.outputs;
  for (auto& layout : layouts)
    if (layout.sizes.size() < signature.inputs[0].sizes.size()) add_row_dim(layout);
  return layouts;
}

FusionFacts find_facts(const Event& event) {
  const auto& signature = *event.signature;
  FusionFacts facts;
  if (signature.aliases_input || signature.resizes || signature.special || signature.warns ||
      !signature.list_sizes.empty())
    return facts;
  const auto& op = event.op();
  const auto* row = find_op_row(event);
  if (!row) return facts;
  int operand = 0;
  for (const auto& slot : op.args) {
    if (slot.kind == graph::ArgKind::kTensorList || slot.kind == graph::ArgKind::kOptionalTensorList) return facts;
    if (slot.kind != graph::ArgKind::kTensor) continue;
    if (slot.is_written) facts.written = operand;
    ++operand;
  }
  if ((facts.written >= 0) == !signature.outputs.empty()) return facts;
  facts.total = total_of(*row, event);
  if (has_bfloat16(signature) && (facts.total != jit::Total::kNone || !bfloat16_rule(op).is_once)) return facts;
  const bool has_totals_alone = facts.total != jit::Total::kNone && row->first_total == 0;
  const auto& read = facts.written >= 0 ? signature.inputs[facts.written] : signature.inputs[0];
  facts.target = facts.written >= 0 || has_totals_alone || row->gives_rows ? &read : &signature.outputs[0];
  const bool copies = op.base == "aten::copy_" || op.base == "aten::_to_copy";
  if (!is_plain(*facts.target) || facts.target->sizes.size() > kMaxRank || facts.target->numel() == 0 ||
      !facts.target->is_without_overlap())
    return facts;
  facts.layouts = layouts_by_row(signature.inputs, row->by_row);
  if (row->gives_rows) facts.results = results_by_row(signature);
  for (size_t i = 0; i < signature.inputs.size(); ++i) {
    const auto& input = facts.layout_of(event, i);
    if (!input.is_defined()) continue;
    if (!is_plain(input) || !broadcasts_to(input, *facts.target)) return facts;
    if (!copies && !computes_in_result_type(input, *facts.target)) return facts;
  }
  if (row->accepts && !row->accepts(event)) return facts;
  if (row->folds && (row->reduction < 0 || facts.total != jit::Total::kNone)) {
    facts.folded = row->folds(event);
    if (facts.folded < 0 || facts.target->sizes.empty() || !is_innermost_dim(*facts.target, facts.folded) ||
        facts.target->sizes[facts.folded] < kShortestRow || !has_results_by_row(signature, facts, *row) ||
        (facts.total != jit::Total::kNone && !has_totals_of_rows(signature, *row, *facts.target, facts.folded)))
      return facts;
  } else if (!has_results_alike(signature)) {
    return facts;
  }
  facts.row = row;
  return facts;
}

// A tensor that travels as it is, and is more than a number.
bool has_loose_tensor(const Event& event) {
  return std::any_of(event.operands.begin(), event.operands.end(), [](const Operand& operand) {
    return operand.direct.defined() && operand.direct.dim() > 0;
  });
}

}  // namespace

const FusionFacts& FusionMemo::facts_of(const Event& event) {
  const auto [place, is_new] = facts_.try_emplace(event.signature);
  if (is_new) {
    place->second = find_facts(event);
    place->second.id = id_of(*event.signature);
  }
  return place->second;
}

// One for signatures that are alike but for the classes of their numbers, which go to a kernel as they come. One of its
// own for what is left of an op that was split, which has no words.
int64_t FusionMemo::id_of(const graph::Signature& signature) {
  if (signature.words.empty()) return next_id.fetch_add(1, std::memory_order_relaxed);
  auto words = signature.words;
  words[0] = graph::mode_of(words);
  const auto [place, is_new] = ids_.try_emplace({signature.op, std::move(words)});
  if (is_new) place->second = next_id.fetch_add(1, std::memory_order_relaxed);
  return place->second;
}

// Other groups of this thread are empty then, too: signatures go where nothing is pending.
void FusionMemo::renew() {
  const uint64_t epoch = ShapeMemo::instance().epoch();
  if (epoch == epoch_) return;
  facts_.clear();
  ids_.clear();
  epoch_ = epoch;
}

int64_t stride_over(const Layout& layout, const Layout& space, size_t dim) {
  const size_t skipped = space.sizes.size() - layout.sizes.size();
  return dim < skipped || layout.sizes[dim - skipped] == 1 ? 0 : layout.strides[dim - skipped];
}

bool BufferUse::is_same_part(const Operand& operand, const Layout& its_layout, const Layout& space) const {
  if (storage != operand.storage.get() || offset != operand.offset) return false;
  if (layout->same_geometry(its_layout)) return true;
  if (total != jit::Total::kNone || layout->dtype != its_layout.dtype) return false;
  for (size_t dim = 0; dim < space.sizes.size(); ++dim)
    if (stride_over(*layout, space, dim) != stride_over(its_layout, space, dim)) return false;
  return true;
}

// A storage that one of them writes is met in one layout only.
bool FusedGroup::overlaps_another_layout(const Event& event, const FusionFacts& facts) const {
  const auto& space = space_with(facts);
  for (size_t i = 0; i < event.operands.size(); ++i) {
    const auto& operand = event.operands[i];
    if (!operand.storage) continue;
    const bool is_written = static_cast<int>(i) == facts.written;
    for (const auto& buffer : buffers_)
      if (buffer.storage == operand.storage.get() && (is_written || buffer.is_written) &&
          !buffer.is_same_part(operand, facts.layout_of(event, i), space))
        return true;
    if (!is_written) continue;
    const BufferUse target{operand.storage.get(), operand.offset, &facts.layout_of(event, i)};
    for (size_t j = 0; j < event.operands.size(); ++j)
      if (event.operands[j].storage == operand.storage &&
          !target.is_same_part(event.operands[j], facts.layout_of(event, j), space))
        return true;
  }
  return false;
}

// All that fold fold the same dim, which is innermost in the group's space.
bool FusedGroup::folds_as_the_others(const FusionFacts& facts) const {
  if (facts.folded < 0) return true;
  if (facts.target->sizes.size() != facts_[0]->target->sizes.size()) return false;
  return folded_ < 0 ? is_innermost_dim(*facts_[0]->target, facts.folded) : folded_ == facts.folded;
}

// The order of the rows is the same whatever else is in the group.
bool FusedGroup::can_be_added_up(const FusionFacts& facts) const {
  const bool has_totals = has_totals_ || facts.total != jit::Total::kNone;
  return !has_totals || events_.empty() || facts_[0]->target->is_contiguous();
}

// A total is not there before all rows are done.
bool FusedGroup::reads_total(const Event& event) const {
  return has_totals_ && std::any_of(event.operands.begin(), event.operands.end(), [&](const Operand& operand) {
    return std::any_of(buffers_.begin(), buffers_.end(), [&](const BufferUse& buffer) {
      return buffer.total != jit::Total::kNone && buffer.storage == operand.storage.get();
    });
  });
}

// The next round of a loop (over parameters, mostly), which has nothing to do with the one before it.
bool FusedGroup::begins_another_round(const Event& event) const {
  for (const auto& operand : event.operands)
    for (const auto& buffer : buffers_)
      if (operand.storage && buffer.storage == operand.storage.get()) return false;
  return std::any_of(events_.begin(), events_.end(), [&](const Event* other) { return other->node == event.node; });
}

// Reads one value for each row that an event of the group made, and makes such ones or writes them.
bool FusedGroup::goes_on_by_row(const Event& event, const FusionFacts& facts) const {
  if (folded_ < 0 || facts.folded >= 0) return false;
  auto sizes = facts_[0]->target->sizes;
  sizes[folded_] = 1;
  if (facts.target->sizes != sizes) return false;
  const auto is_by_row = [this](const Operand& operand) {
    return operand.storage && std::any_of(buffers_.begin(), buffers_.end(), [&](const BufferUse& buffer) {
      return buffer.is_by_row && buffer.storage == operand.storage.get();
    });
  };
  if (facts.written >= 0 && !is_by_row(event.operands[facts.written])) return false;
  return std::any_of(event.operands.begin(), event.operands.end(), is_by_row);
}

int FusedGroup::find_or_add_buffer(const Operand& operand, const Layout& layout) {
  for (size_t b = 0; b < buffers_.size(); ++b)
    if (buffers_[b].is_same_part(operand, layout, *facts_[0]->target)) return static_cast<int>(b);
  buffers_.push_back({operand.storage.get(), operand.offset, &layout});
  return static_cast<int>(buffers_.size()) - 1;
}

namespace {

bool may_join(const Event& event, const FusionFacts& facts) {
  return (facts.folded < 0 || event.passes.has(Pass::k_fuse_rows)) &&
         (facts.total == jit::Total::kNone || event.passes.has(Pass::k_fuse_totals));
}

}  // namespace

bool FusedGroup::try_add(Event& event) {
  if (events_.empty()) memo_->renew();
  if (event.capture || !event.may_be_fused || !event.signature) return false;
  const auto& facts = memo_->facts_of(event);
  if (!facts.row || !may_join(event, facts)) return false;
  if (facts.row->takes_numbers && !facts.row->takes_numbers(event)) return false;
  if (facts.written >= 0 && may_change_value(event)) return false;  // costs nothing by itself
  bool is_by_row = false;
  if (!events_.empty()) {
    if (!event.passes.has(Pass::k_fuse) || event.passes != events_[0]->passes) return false;
    const size_t brought = event.operands.size() + event.outputs.size();
    if (events_.size() >= kMaxEvents || buffers_.size() + brought > kMaxBuffers) return false;
    if (event.float_mode != events_[0]->float_mode || !folds_as_the_others(facts) || begins_another_round(event)) return false;
    if (facts.target->sizes != facts_[0]->target->sizes) {
      is_by_row = goes_on_by_row(event, facts);
      if (!is_by_row) return false;
    }
  }
  if (has_loose_tensor(event) || overlaps_another_layout(event, facts) || !can_be_added_up(facts) || reads_total(event))
    return false;
  const Order order = order_alone(event, facts);
  if (!events_.empty() && is_innermost_ != (order == Order::kInnermost)) return false;
  if (order == Order::kRestored)
    for (const auto& operand : event.operands)
      if (operand.storage) restore(*operand.storage);
  is_innermost_ = order == Order::kInnermost;
  events_.push_back(&event);
  facts_.push_back(&facts);
  first_wire_.push_back(static_cast<int>(wiring_.size()));
  for (size_t i = 0; i < event.operands.size(); ++i) {
    int buffer = -1;
    if (event.operands[i].storage) {
      buffer = find_or_add_buffer(event.operands[i], facts.layout_of(event, i));
      buffers_[buffer].held++;
      buffers_[buffer].is_written |= static_cast<int>(i) == facts.written;
    }
    wiring_.push_back(buffer);
  }
  first_result_.push_back(static_cast<int>(buffers_.size()));
  const auto& outputs = event.signature->outputs;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto total = i >= facts.row->first_total ? facts.total : jit::Total::kNone;
    const bool is_of_row = facts.folded >= 0 && total == jit::Total::kNone && (i > 0 || facts.row->gives_rows);
    buffers_.push_back({event.outputs[outputs[i].storage_group].get(), outputs[i].offset,
                        &facts.result_layout(*event.signature, i), /*is_produced=*/true, /*is_written=*/true, /*held=*/1,
                        total, is_by_row || is_of_row});
  }
  has_totals_ |= facts.total != jit::Total::kNone;
  if (facts.folded >= 0) folded_ = facts.folded;
  return true;
}

bool FusedGroup::is_independent(const Event& event) const {
  if (event.op().reads_layouts_alone) return true;
  for (size_t i = 0; i < event.operands.size(); ++i)
    for (const auto& buffer : buffers_)  // who reads a hidden map may restore it
      if (buffer.storage == event.operands[i].storage.get() && (buffer.is_written || is_innermost_)) return false;
  if (!event.op().writes) return true;
  int operand = 0;
  for (size_t a = 0; a < event.op().args.size(); ++a) {
    const auto& slot = event.op().args[a];
    if (slot.kind == graph::ArgKind::kTensorList || slot.kind == graph::ArgKind::kOptionalTensorList) return false;
    if (slot.kind != graph::ArgKind::kTensor) continue;
    if (slot.is_written)
      for (const auto& buffer : buffers_)
        if (buffer.storage == event.operands[operand].storage.get()) return false;
    ++operand;
  }
  return true;
}

// A map as large as the space that is hidden or not made yet, or what is no map and is read with its own strides.
bool FusedGroup::can_be_innermost(const BufferUse& buffer, const FusionFacts& facts) const {
  const auto& layout = *buffer.layout;
  const bool fills_space = layout.sizes == facts.target->sizes;
  if (is_hidden(*buffer.storage)) return fills_space && is_hidden_map(*buffer.storage, layout, buffer.offset);
  if (!buffer.is_produced) return !is_map(layout) && !buffer.is_written;
  return fills_space && is_whole_map(layout, buffer.offset, static_cast<int64_t>(buffer.storage->nbytes()));
}

// What order the event's maps would have if it ran alone after the group. Which events wait together is chance, the
// order of a map shows in the bits of a convolution: so the group decides for none of them.
FusedGroup::Order FusedGroup::order_alone(const Event& event, const FusionFacts& facts) const {
  const auto is_hidden_operand = [](const Operand& operand) { return operand.storage && is_hidden_map(*operand.storage); };
  bool some_are_hidden = std::any_of(event.operands.begin(), event.operands.end(), is_hidden_operand);
  if (!some_are_hidden && !is_innermost_) return Order::kAsSaid;
  bool all_can_be = facts.folded < 0 && event.may_hide();
  for (size_t i = 0; i < event.operands.size(); ++i) {
    auto* storage = event.operands[i].storage.get();
    if (!storage) continue;
    BufferUse use{storage, event.operands[i].offset, &facts.layout_of(event, i)};
    use.is_produced = is_innermost_ && std::any_of(buffers_.begin(), buffers_.end(), [storage](const BufferUse& buffer) {
      return buffer.is_produced && buffer.storage == storage;
    });  // in a group as the layouts say it is a plain map like others
    use.is_written = static_cast<int>(i) == facts.written;
    some_are_hidden |= use.is_produced;
    all_can_be = all_can_be && can_be_innermost(use, facts);
  }
  if (!some_are_hidden) return Order::kAsSaid;
  for (const auto& output : event.signature->outputs) {
    BufferUse use{event.outputs[output.storage_group].get(), output.offset, &output};
    use.is_produced = true;
    all_can_be = all_can_be && can_be_innermost(use, facts);
  }
  return all_can_be ? Order::kInnermost : Order::kRestored;
}

// Between joining and running, another thread may have had some restored.
void FusedGroup::settle_forms() {
  is_innermost_ = is_innermost_ && std::all_of(buffers_.begin(), buffers_.end(), [this](const BufferUse& buffer) {
                    return can_be_innermost(buffer, *facts_[0]);
                  });
  packed_ = 0;
  if (is_innermost_) return;
  for (const auto& buffer : buffers_) {
    const auto* mask = packed_mask(*buffer.storage);
    if (!mask || buffer.is_written || mask->type != buffer.layout->dtype) restore(*buffer.storage);
  }
  for (size_t b = 0; b < buffers_.size(); ++b)
    if (packed_mask(*buffers_[b].storage)) packed_ |= uint64_t{1} << b;
}

// A result that only the group's own events hold is wanted by nobody: the user's half is gone, and whoever asked for it
// later would have had to hold it.
GroupKey FusedGroup::key() {
  GroupKey key;
  key.reserve(events_.size() * 5 + 5);
  key.push_back(is_innermost_ | events_[0]->passes.bits() << 1 | int64_t{events_[0]->float_mode} << 32);
  key.push_back(std::bit_cast<int64_t>(packed_));
  for (size_t e = 0; e < events_.size(); ++e) {
    key.push_back(facts_[e]->id);
    const size_t end = e + 1 < events_.size() ? first_wire_[e + 1] : wiring_.size();
    for (size_t wire = first_wire_[e]; wire < end; ++wire) key.push_back(wiring_[wire] + 1);
    for (const int argument : facts_[e]->row->statics)
      key.push_back(std::bit_cast<int64_t>(events_[e]->args[argument].toScalar().toDouble()));
    for (const int argument : facts_[e]->row->scalars) key.push_back(events_[e]->args[argument].isNone());
  }
  const bool keeps_results = !events_[0]->passes.has(Pass::k_drop_results);
  wanted_.assign(buffers_.size(), false);
  for (size_t b = 0; b < buffers_.size(); ++b) {
    const auto& buffer = buffers_[b];
    wanted_[b] = buffer.is_produced ? keeps_results || c10::raw::intrusive_ptr::use_count(buffer.storage) > buffer.held
                                    : buffer.is_written;
    if (buffer.is_produced) key.push_back(wanted_[b]);
  }
  return key;
}

const graph::Node* FusedGroup::producer_of(int buffer) const {
  for (size_t event = events_.size(); event-- > 0;)
    if (first_result_[event] <= buffer) return buffers_[buffer].is_produced ? events_[event]->node : nullptr;
  return nullptr;
}

void FusedGroup::clear() {
  events_.clear();
  facts_.clear();
  buffers_.clear();
  first_wire_.clear();
  wiring_.clear();
  first_result_.clear();
  folded_ = -1;
  has_totals_ = false;
  is_innermost_ = false;
}

}  // namespace lockstep::dynamic
