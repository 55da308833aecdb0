#include "dynamic/fusion/accumulator.h"

#include <algorithm>

#include "dynamic/kernels/embedding_sum.h"
#include "dynamic/kernels/padding.h"
#include "dynamic/kernels/product.h"
#include "dynamic/threads/thread_team.h"
#include "dynamic/vm/executor.h"
#include "dynamic/vm/hidden_layout.h"
#include "dynamic/vm/kernel_work.h"
#include "dynamic/vm/memory_log.h"
#include "dynamic/vm/skeleton_clock.h"
#include "dynamic/vm/timeline.h"

namespace lockstep::dynamic {

namespace {

using graph::Layout;

enum class Made { kNothingKnown, kProduct, kSelection, kSlice, kEmbedding };

Made what_is_made(const graph::OpInfo& op) {
  static const std::pair<const graph::OpInfo*, Made> known[] = {
      {graph::find_op_info("aten::mm"), Made::kProduct},
      {graph::find_op_info("aten::select_backward"), Made::kSelection},
      {graph::find_op_info("aten::slice_backward"), Made::kSlice},
      {graph::find_op_info("aten::embedding_dense_backward"), Made::kEmbedding},
  };
  for (const auto& [info, made] : known)
    if (&op == info) return made;
  return Made::kNothingKnown;
}

bool is_sum_in_place(const graph::OpInfo& op) {
  static const graph::OpInfo* add = graph::find_op_info("aten::add_.Tensor");
  return &op == add;
}

// Rows of values, one behind the other, as `made` has them.
bool is_whole(const Layout& layout, const Layout& made) {
  return layout.dtype == made.dtype && layout.sizes == made.sizes && !layout.conj && !layout.neg && layout.is_contiguous();
}

bool touches(const Event& event, const c10::StorageImpl* storage) {
  const auto is_same = [storage](const Operand& operand) { return operand.storage.get() == storage; };
  return std::any_of(event.operands.begin(), event.operands.end(), is_same) ||
         std::any_of(event.outputs.begin(), event.outputs.end(), [storage](const auto& made) { return made.get() == storage; });
}

// total += what was made, where both lie in memory alike.
bool adds_whole(const Event& sum, const c10::StorageImpl* added_storage, const Layout& made) {
  if (!sum.may_be_fused || sum.is_strict || sum.capture || !sum.signature || !is_sum_in_place(sum.op())) return false;
  const auto &total = sum.signature->inputs[0], &added = sum.signature->inputs[1];
  const auto &into = sum.operands[0], &from = sum.operands[1];
  return from.storage.get() == added_storage && from.offset == 0 && into.storage && into.storage.get() != added_storage &&
         is_whole(added, made) && is_whole(total, made) && sum.args[2].toScalar().equal(1);
}

// The time counts as that of what is made: adding it costs little.
void note_spans(const Event& made, const Event& sum, uint64_t begin, uint64_t end) {
  if (!timeline_is_on.load(std::memory_order_relaxed)) return;
  add_span({SpanKind::kGroup, begin, end, made.node, made.node->op, /*thread=*/0, /*spec=*/nullptr, /*is_own=*/true});
  add_span({SpanKind::kMember, begin, end, made.node, made.node->op});
  add_span({SpanKind::kMember, end, end, sum.node, sum.node->op});
}

// Smaller ones are made, and added, in no time.
constexpr int64_t kSmallestTotal = 1 << 10;
bool is_large_enough(const Event& made, const Layout& layout) {
  if (what_is_made(made.op()) != Made::kProduct) return layout.numel() >= kSmallestTotal;
  return layout.numel() * made.signature->inputs[0].sizes[1] >= kSmallestProduct;
}

bool is_of_known_type(const Event& made, const Layout& layout) {
  return layout.dtype == c10::ScalarType::Float ||
         (layout.dtype == c10::ScalarType::Double && what_is_made(made.op()) != Made::kProduct);
}

PartSum add_made(Made made, const torch::jit::Stack& arguments, const at::Tensor& total, bool has_no_minus_zero) {
  switch (made) {
    case Made::kSelection: return try_add_part(PartKind::kSelection, arguments, total, has_no_minus_zero);
    case Made::kSlice: return try_add_part(PartKind::kSlice, arguments, total, has_no_minus_zero);
    case Made::kEmbedding: return try_add_embedding_gradient(arguments, total, has_no_minus_zero);
    default: return {.is_done = try_add_mm(total, arguments[0].toTensor(), arguments[1].toTensor())};
  }
}

}  // namespace

void TotalsWithoutMinusZero::renew(uint64_t accesses) {
  if (accesses == accesses_) return;
  accesses_ = accesses;
  if (is_empty_) return;
  for (auto& total : totals_) total.reset();
  is_empty_ = true;
}

void TotalsWithoutMinusZero::note(const StorageRef& total) {
  if (has(total)) return;
  totals_[next_].emplace(total);
  next_ = (next_ + 1) % totals_.size();
  is_empty_ = false;
}

bool TotalsWithoutMinusZero::has(const StorageRef& total) const {
  return !is_empty_ && std::any_of(totals_.begin(), totals_.end(), [&](const auto& known) {
    return known && known->_unsafe_get_target() == total.get();
  });
}

void TotalsWithoutMinusZero::forget_touched(const Event& event) {
  if (is_empty_) return;
  is_empty_ = true;
  for (auto& total : totals_) {
    if (total && (total->expired() || touches(event, total->_unsafe_get_target()))) total.reset();
    is_empty_ &= !total;
  }
}

bool may_accumulate(const Event& made) {
  if (!made.may_be_fused || made.is_strict || made.capture || !made.signature) return false;
  if (!made.passes.has(Pass::k_accumulate) || skip_kernels.load(std::memory_order_relaxed)) return false;
  const auto what = what_is_made(made.op());
  if (what != Made::kProduct) return what != Made::kNothingKnown;
  return !made.is_deterministic && made.passes.has(Pass::k_choose_kernels);
}

Event* find_sum(const Event& made, at::ArrayRef<Event*> after) {
  const auto& layout = made.signature->outputs[0];
  const auto* storage = made.outputs[0].get();
  if (!is_of_known_type(made, layout) || !is_whole(layout, layout) || layout.offset != 0) return nullptr;
  if (!is_large_enough(made, layout)) return nullptr;
  for (size_t i = 0; i < after.size(); ++i) {
    auto& event = *after[i];
    if (!touches(event, storage)) continue;
    // Nobody else holds it, so that nobody will ask for it.
    if (!adds_whole(event, storage, layout) || made.outputs[0].use_count() != 2 || event.float_mode != made.float_mode)
      return nullptr;
    const auto* total = event.operands[0].storage.get();
    // With errors="late", what comes between may fail, and the sum would not happen.
    const auto is_in_the_way = [total](const Event* other) {
      return touches(*other, total) || other->op().value_check != graph::ValueCheck::kNone;
    };
    return std::none_of(after.begin(), after.begin() + i, is_in_the_way) && !touches(made, total) ? &event : nullptr;
  }
  return nullptr;
}

bool try_accumulate(Event& made, Event& sum, TotalsWithoutMinusZero& totals) {
  const auto total = sum.operands[0];
  if (is_hidden(*total.storage)) return false;
  const auto arguments = build_arguments(made);
  const auto into = tensor_over(total.storage, sum.signature->inputs[0], total.offset);
  const OneThreadScope alone(runs_alone(made));
  const RoundedProductsScope rounded(made.rounds_products);
  const ExcludedScope timed(&made.node->counts.kernel_ticks);
  const AllocationScope allocations(made.node);
  const bool flushes = made.float_mode != 0;
  const bool has_no_minus_zero = !flushes && totals.has(total.storage);
  const auto done = add_made(what_is_made(made.op()), arguments, into, has_no_minus_zero);
  if (!done.is_done) return false;
  if (!done.has_no_minus_zero || flushes) totals.forget_touched(sum);
  const bool is_all_of_it = into.storage_offset() == 0 && into.nbytes() == total.storage->nbytes();
  if (done.has_no_minus_zero && is_all_of_it && !flushes) totals.note(total.storage);
  note_spans(made, sum, timed.begin(), timed.begin() + timed.elapsed());
  sum.release_values();
  sum.is_done = true;
  made.release_values();
  return true;
}

}  // namespace lockstep::dynamic
