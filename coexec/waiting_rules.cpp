// What the leading thread computes itself, what it waits for, and what it need not wait for.
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <tuple>
#include <utility>

#include "coexec/session.h"
#include "coexec/value_check.h"
#include "dynamic/fusion/op_body.h"
#include "dynamic/kernels/kernel_table.h"
#include "dynamic/shapes/shape_inference.h"
#include "dynamic/threads/thread_team.h"
#include "dynamic/vm/allocator.h"
#include "graph/overlap.h"

namespace lockstep::coexec {

using graph::ArgKind;
using graph::OpInfo;
using graph::Signature;

namespace {

constexpr int64_t kUnsharedElements = 1 << 15;  // up to here PyTorch's kernels share no loop (at::internal::GRAIN_SIZE)
constexpr int64_t kHostElements = 4096;  // integers and truth values, of inputs at rest: computed at once, they may decide
constexpr int64_t kHostWritten = 256;    // of a tensor that is written: counters
constexpr size_t kCopiedBytes = 1 << 20;  // of memory that others may change: some 50 us

}  // namespace

// Tensors inside of lists of lists, dicts and tuples: no operands of the graph, but their data has to be there.
void Session::collect_nested(const OpInfo& op, at::ArrayRef<c10::IValue> args) {
  for (size_t a = 0; a < args.size(); ++a) {
    if (op.args[a].kind != ArgKind::kNestedTensors) continue;
    c10::IValue::HashAliasedIValues values;
    args[a].getSubValues(values);
    for (const auto& value : values) {
      if (!value.isTensor() || !value.toTensor().defined() || !value.toTensor().has_storage()) continue;
      auto* storage = value.toTensor().storage().unsafeGetStorageImpl();
      nested_.push_back(c10::intrusive_ptr<c10::StorageImpl>::unsafe_reclaim_from_nonowning(storage));
    }
  }
}

// The storages of this op's operands have their data and nobody pending uses them.
void Session::settle_operands() {
  for (auto& view : operands_) {
    if (!view.link) continue;
    if (view.is_written) {
      wait_for_readers(*view.link);
    } else {
      wait_for(*view.link);
    }
  }
  for (const auto& storage : nested_)
    if (Link* link = link_of(storage.get())) wait_for_readers(*link);
  nested_.clear();
}

// Its kernel shares no loop with other threads.
bool Session::runs_on_one_thread() const {
  return std::all_of(operands_.begin(), operands_.end(), [](const OperandView& view) {
    return !view.tensor || view.tensor->numel() <= kUnsharedElements;
  });
}

void Session::note_factor(const c10::IValue& alpha) {
  const bool is_one = alpha.isInt() ? std::abs(alpha.toInt()) == 1 : alpha.isDouble() && std::abs(alpha.toDouble()) == 1;
  scales_ = !is_one;
}

// PyTorch's vectors round a + alpha * b once, and the values that are left over after them twice.
bool Session::rounds_as_eager(const OpInfo& op, const Signature& signature) const {
  return !(scales_ && op.is_pointwise) && dynamic::rounds_as_eager(op, signature);
}

// Scalars and sizes that depend only on values at rest: computed where they are needed, at once.
bool Session::can_run_on_host(const OpInfo& op, const Signature& signature) {
  if (op.draws) return false;
  bool may_decide = !signature.outputs.empty();
  for (const auto& output : signature.outputs) {
    const bool counts = c10::isIntegralType(output.dtype, /*includeBool=*/true);
    if (output.numel() > (counts ? kHostElements : 1)) return false;
    may_decide &= counts;
  }
  const int64_t most = op.writes ? kHostWritten : kHostElements;
  // whether it is at rest is a matter of time
  if (function_->fuses && !rounds_as_eager(op, signature)) return false;
  if (!function_->is_strict && dynamic::may_round_otherwise(op)) return false;
  for (const auto& view : operands_) {
    if (!view.storage) continue;
    const auto elements = view.tensor->numel();
    if (elements > most) return false;
    // what is made of the runner's values is the runner's to compute, also where it has come that far already
    if (elements > 1 && !may_decide && is_of_this_call(view)) return false;
  }
  return take_operands_at_rest();
}

// What would be waited for behind all that was asked, though nothing that it touches is pending.
bool Session::can_run_at_once(const OpInfo& op, const Signature& signature) {
  const bool has_one_kernel =
      function_->is_strict || (rounds_as_eager(op, signature) && !dynamic::may_round_otherwise(op));
  return has_one_kernel && !op.draws && runs_on_one_thread() && take_operands_at_rest();
}

// On this thread alone, where that changes no bits: some kernels share even the least, and workers that this thread does
// not have while the graph runner has some cost more than all of it.
void Session::run_small(const OpInfo& op, torch::jit::Stack* stack, const Signature& signature) {
  const bool counts = std::all_of(signature.outputs.begin(), signature.outputs.end(), [](const graph::Layout& output) {
    return !output.is_defined() || c10::isIntegralType(output.dtype, /*includeBool=*/true);
  });
  const dynamic::OneThreadScope alone(op.is_pointwise || op.moves_values || (counts && !signature.outputs.empty()));
  run_natively(op, stack);
}

// Its value is not there yet, or, where it is written, somebody pending still reads it. It may be another thread's.
bool Session::is_pending(const OperandView& view) {
  if (!view.link || !view.link->session) return false;
  return !view.link->session->runner_.channel().is_done(view.is_written ? view.link->read : view.link->written);
}

// False where one of them is pending.
bool Session::take_operands_at_rest() {
  for (const auto& view : operands_)
    if (is_pending(view) || (view.link && view.link->is_perhaps_hidden())) return false;
  for (auto& view : operands_)
    if (view.link) publish(view.link);
  return true;
}

bool Session::has_dynamic_shape(const OpInfo& op) const {
  if (!op.bool_index_is_dynamic) return op.dynamic_shape;
  for (size_t i = 1; i < operands_.size(); ++i)  // the first one is indexed
    if (const auto* index = operands_[i].tensor)
      if (index->scalar_type() == at::kBool || index->scalar_type() == at::kByte) return true;
  return false;
}

namespace {

// Truth values alone say where: all positions are in range. A single number is put without asking how often.
bool puts_by_masks(at::ArrayRef<c10::IValue> args) {
  const auto indices = args[1].toListRef();
  const auto is_tensor = [](const c10::IValue& item) { return item.isTensor() && item.toTensor().defined(); };
  return std::any_of(indices.begin(), indices.end(), is_tensor) &&
         std::all_of(indices.begin(), indices.end(), [&](const c10::IValue& item) {
           return !is_tensor(item) || item.toTensor().scalar_type() == at::kBool;
         }) &&
         !dynamic::puts_number_by_mask(args);
}

}  // namespace

// Indexing by truth values: where these are known, so is how much they choose, and neither what they choose from nor what
// is put there is waited for. Their positions stand for them from then on, which is how the kernel itself begins.
bool Session::resolve_masks(const OpInfo& op, torch::jit::Stack* stack) {
  if (recorder_ || !(op.bool_index_is_dynamic || op.puts_by_index)) return false;
  const bool others_are_pending = std::any_of(operands_.begin(), operands_.end(), [this](const OperandView& view) {
    return is_pending(view) && (&view == &operands_.front() || view.tensor->scalar_type() != at::kBool);
  });
  const auto args = torch::jit::last(*stack, op.args.size());
  if (!others_are_pending || (op.puts_by_index && !puts_by_masks(args))) return false;
  const auto& self = args[0].toTensor();
  const auto is_mask = [](const c10::IValue& item) { return item.isTensor() && item.toTensor().scalar_type() == at::kBool; };
  int64_t dim = 0;
  for (const auto& item : args[1].toListRef()) {
    if (!is_mask(item)) {
      if (item.isTensor() && item.toTensor().scalar_type() == at::kByte) return false;
      ++dim;
      continue;
    }
    const auto& mask = item.toTensor();
    const bool fits = mask.dim() > 0 && dim + mask.dim() <= self.dim() && mask.sizes() == self.sizes().slice(dim, mask.dim());
    if (!fits || mask.numel() > kUnsharedElements) return false;
    dim += mask.dim();
  }
  for (const auto& view : operands_)
    if (view.link && view.tensor->scalar_type() == at::kBool && view.tensor != &self) wait_for(*view.link);
  c10::List<std::optional<at::Tensor>> positions;
  {
    const NativeScope native(*this);
    for (const auto& item : args[1].toListRef()) {
      if (!is_mask(item)) {
        positions.push_back(item.toOptional<at::Tensor>());
        continue;
      }
      for (auto& position : item.toTensor().nonzero().unbind(1)) positions.push_back(std::move(position));
    }
  }
  stack->end()[1 - static_cast<int64_t>(op.args.size())] = std::move(positions);
  collect_operands(op, torch::jit::last(*stack, op.args.size()));
  return true;
}

// Little that is only read, and has its values.
bool Session::can_copy(const OperandView& view) {
  const bool is_others = view.link && view.link->session != this;
  return !view.is_written && view.storage->nbytes() <= kCopiedBytes && !is_others && !is_pending(view);
}

namespace {

graph::Part part_of(const at::Tensor& tensor) { return {tensor.sizes(), tensor.strides(), tensor.storage_offset()}; }

// Views of one storage without common elements: nothing for a kernel to complain of.
bool are_apart(const at::Tensor& one, const at::Tensor& other) {
  return one.scalar_type() == other.scalar_type() && graph::are_apart(part_of(one), part_of(other));
}

// Storages that were put in, by hashing.
class StorageSet {
 public:
  explicit StorageSet(size_t most) : places_(std::bit_ceil(2 * most), nullptr) {}
  bool has(const c10::StorageImpl* storage) const { return places_[place_of(storage)]; }
  // Returns whether it was there.
  bool put(const c10::StorageImpl* storage) {
    auto& place = places_[place_of(storage)];
    return std::exchange(place, storage);
  }

 private:
  size_t place_of(const c10::StorageImpl* storage) const {
    const size_t mask = places_.size() - 1;
    size_t place = reinterpret_cast<uintptr_t>(storage) * 0x9e3779b97f4a7c15 >> 32 & mask;
    while (places_[place] && places_[place] != storage) place = (place + 1) & mask;
    return place;
  }

  c10::SmallVector<const c10::StorageImpl*, 64> places_;
};

// Part of a storage, from the first element to behind the last.
struct Extent {
  const OperandView* view;
  int64_t begin, end;  // bytes
};

Extent extent_of(const OperandView& view) {
  const auto& tensor = *view.tensor;
  const auto item = static_cast<int64_t>(tensor.itemsize());
  int64_t end = tensor.numel() == 0 ? 0 : 1;
  for (int64_t dim = 0; dim < tensor.dim() && end > 0; ++dim) end += (tensor.size(dim) - 1) * tensor.stride(dim);
  return {&view, tensor.storage_offset() * item, (tensor.storage_offset() + end) * item};
}

// Whether elements of what is written are also another operand's. Operations on lists have thousands of operands, and
// what they write has storages of its own as a rule.
bool overlap_where_written(const std::vector<OperandView>& operands) {
  StorageSet written(operands.size()), shared(operands.size());
  bool is_any_shared = false;
  for (const auto& view : operands)
    if (view.storage && view.is_written && written.put(view.storage)) is_any_shared = true, shared.put(view.storage);
  for (const auto& view : operands)
    if (view.storage && !view.is_written && written.has(view.storage)) is_any_shared = true, shared.put(view.storage);
  if (!is_any_shared) return false;
  std::vector<Extent> extents;
  for (const auto& view : operands)
    if (view.storage && shared.has(view.storage)) extents.push_back(extent_of(view));
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return std::tie(a.view->storage, a.begin) < std::tie(b.view->storage, b.begin);
  });
  for (auto one = extents.begin(); one != extents.end(); ++one) {
    const auto meets = [one](const Extent& other) {
      return other.view->storage == one->view->storage && other.begin < one->end;
    };
    for (auto other = one + 1; other != extents.end() && meets(*other); ++other) {
      const bool is_written = one->view->is_written || other->view->is_written;
      if (is_written && !are_apart(*one->view->tensor, *other->view->tensor)) return true;
    }
  }
  return false;
}

}  // namespace

// A door: what somebody outside may look at or change meanwhile, and kernels that check overlap by address. What is
// only read does not count where the event gets a copy of how it is now; what is waited for needs none.
bool Session::meets_outside() {
  if (!must_meet_outside()) return false;
  for (auto& view : operands_) view.is_copied = false;
  return true;
}

bool Session::must_meet_outside() {
  const OperandView* written = nullptr;
  bool has_more_written = false;
  for (auto& view : operands_) {
    if (!view.storage) continue;
    const bool is_shared = view.link ? view.link->is_exposed() : !owns_plain_memory(view.storage);
    if (is_shared && !view.tensor->unsafeGetTensorImpl()->is_wrapped_number()) {
      view.is_copied = can_copy(view);
      if (!view.is_copied) return true;
    }
    if (!view.is_written) continue;
    has_more_written = written != nullptr;
    written = &view;
  }
  if (has_more_written) return overlap_where_written(operands_);
  return written && std::any_of(operands_.begin(), operands_.end(), [written](const OperandView& view) {
           return &view != written && view.storage == written->storage && !are_apart(*view.tensor, *written->tensor);
         });
}

bool Session::may_fail_by_value(const OpInfo& op) const {
  if (op.value_check == graph::ValueCheck::kNone || !function_->waits_for_errors) return false;
  if (op.value_check == graph::ValueCheck::kNumber) {
    const auto *target = operands_.front().tensor, *number = operands_.back().tensor;
    return target && number && may_not_hold(*target, *number);
  }
  if (op.value_check != graph::ValueCheck::kIntegerOnly) return true;
  return std::none_of(operands_.begin(), operands_.end(), [&op](const OperandView& view) {
    if (!view.tensor || (view.is_written && op.returns_out)) return false;  // out= is not computed with
    return view.tensor->is_floating_point() || view.tensor->is_complex();
  });
}

// So much that the system may refuse it, beside what was asked for before and may not be there yet: the program hears of
// that where it asks, and may do with less. Of an op that is not refused it is to be asked.
bool Session::may_lack_memory(const Signature& signature) {
  size_t large = 0;
  for (const auto& output : signature.outputs)
    if (output.is_defined() && static_cast<size_t>(output.storage_bytes) >= dynamic::kAskedOfSystem)
      large += static_cast<size_t>(output.storage_bytes);
  if (large == 0) return false;
  const auto& channel = runner_.channel();
  if (!channel.is_done(large_asked_)) large += large_pending_;
  if (!dynamic::system_has(large)) return true;
  large_pending_ = large;
  large_asked_ = channel.asked() + 1;
  return false;
}

// What decides about an error is waited for here, to be looked at.
bool Session::must_wait(const OpInfo& op, at::ArrayRef<c10::IValue> args, bool is_resolved) {
  if (meets_outside()) return true;
  if (!may_fail_by_value(op) || (is_resolved && op.puts_by_index)) return false;
  for (const auto& view : operands_)
    if (view.link && is_deciding(op, *view.tensor)) wait_for(*view.link);
  return !values_in_range(op, args);
}

}  // namespace lockstep::coexec
