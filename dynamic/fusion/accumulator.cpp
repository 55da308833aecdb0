#include "dynamic/fusion/accumulator.h"

#include <algorithm>

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

bool is_product(const graph::OpInfo& op) {
  static const graph::OpInfo* mm = graph::find_op_info("aten::mm");
  return &op == mm;
}

bool is_sum_in_place(const graph::OpInfo& op) {
  static const graph::OpInfo* add = graph::find_op_info("aten::add_.Tensor");
  return &op == add;
}

// Rows of floats, one behind the other.
bool is_whole(const Layout& layout, at::IntArrayRef sizes) {
  return layout.dtype == c10::ScalarType::Float && layout.sizes == sizes && !layout.conj && !layout.neg &&
         layout.is_contiguous();
}

bool touches(const Event& event, const c10::StorageImpl* storage) {
  const auto is_same = [storage](const Operand& operand) { return operand.storage.get() == storage; };
  return std::any_of(event.operands.begin(), event.operands.end(), is_same) ||
         std::any_of(event.outputs.begin(), event.outputs.end(), [storage](const auto& made) { return made.get() == storage; });
}

// total += product, where both lie in memory alike.
bool adds_whole(const Event& sum, const c10::StorageImpl* product, const Layout& made) {
  if (!sum.may_be_fused || sum.is_strict || sum.capture || !sum.signature || !is_sum_in_place(sum.op())) return false;
  const auto &total = sum.signature->inputs[0], &added = sum.signature->inputs[1];
  const auto &into = sum.operands[0], &from = sum.operands[1];
  return from.storage.get() == product && from.offset == 0 && into.storage && into.storage.get() != product &&
         is_whole(added, made.sizes) && is_whole(total, made.sizes) && sum.args[2].toScalar().equal(1);
}

// The time counts as the product's: what is added costs little beside it.
void note_spans(const Event& product, const Event& sum, uint64_t begin, uint64_t end) {
  if (!timeline_is_on.load(std::memory_order_relaxed)) return;
  add_span({SpanKind::kGroup, begin, end, product.node, product.node->op, /*thread=*/0, /*spec=*/nullptr, /*is_own=*/true});
  add_span({SpanKind::kMember, begin, end, product.node, product.node->op});
  add_span({SpanKind::kMember, end, end, sum.node, sum.node->op});
}

}  // namespace

bool may_accumulate(const Event& product) {
  return product.may_be_fused && !product.is_strict && !product.is_deterministic && !product.capture && product.signature &&
         is_product(product.op()) && product.passes.has(Pass::k_accumulate) && product.passes.has(Pass::k_choose_kernels) &&
         !skip_kernels.load(std::memory_order_relaxed);
}

Event* find_sum(const Event& product, at::ArrayRef<Event*> after) {
  const auto& made = product.signature->outputs[0];
  const auto* storage = product.outputs[0].get();
  if (!is_whole(made, made.sizes) || made.offset != 0) return nullptr;
  if (made.numel() * product.signature->inputs[0].sizes[1] < kSmallestProduct) return nullptr;
  for (size_t i = 0; i < after.size(); ++i) {
    auto& event = *after[i];
    if (!touches(event, storage)) continue;
    // Nobody else holds it, so that nobody will ask for it.
    if (!adds_whole(event, storage, made) || product.outputs[0].use_count() != 2 || event.float_mode != product.float_mode)
      return nullptr;
    const auto* total = event.operands[0].storage.get();
    const auto touches_total = [total](const Event* other) { return touches(*other, total); };
    return std::none_of(after.begin(), after.begin() + i, touches_total) && !touches(product, total) ? &event : nullptr;
  }
  return nullptr;
}

bool try_accumulate(Event& product, Event& sum) {
  const auto& total = sum.operands[0];
  if (is_hidden(*total.storage)) return false;
  const auto arguments = build_arguments(product);
  const OneThreadScope alone(runs_alone(product));
  const RoundedProductsScope rounded(product.rounds_products);
  const ExcludedScope timed(&product.node->counts.kernel_ticks);
  const AllocationScope allocations(product.node);
  if (!try_add_mm(tensor_over(total.storage, sum.signature->inputs[0], total.offset), arguments[0].toTensor(),
                  arguments[1].toTensor()))
    return false;
  note_spans(product, sum, timed.begin(), timed.begin() + timed.elapsed());
  sum.release_values();
  sum.is_done = true;
  product.release_values();
  return true;
}

}  // namespace lockstep::dynamic
