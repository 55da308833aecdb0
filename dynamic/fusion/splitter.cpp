#include "dynamic/fusion/splitter.h"

#include "dynamic/fusion/op_body.h"
#include "dynamic/kernels/batch_norm.h"
#include "dynamic/shapes/shape_memo.h"
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

bool is_batch_norm(const graph::OpInfo& op) {
  static const graph::OpInfo* batch_norm = graph::find_op_info("aten::native_batch_norm");
  return &op == batch_norm;
}

const graph::OpInfo& scale_channels_op() {
  static const graph::OpInfo* op = graph::find_op_info("lockstep::_scale_channels");
  return *op;
}

// All of its storage, and in the order of its dims for everybody who sees it.
bool is_whole(const Layout& layout) {
  return layout.dtype == c10::ScalarType::Float && !layout.conj && !layout.neg && layout.offset == 0 &&
         layout.is_contiguous() && layout.storage_bytes == layout.numel() * int64_t{sizeof(float)};
}

// One value a channel.
bool is_by_channel(const Layout& layout, int64_t channels) {
  return is_whole(layout) && layout.sizes.size() == 1 && layout.sizes[0] == channels;
}

bool has_usual_results(const graph::Signature& signature) {
  const auto &inputs = signature.inputs, &outputs = signature.outputs;
  if (inputs.empty() || outputs.size() != 3 || inputs[0].sizes.size() < 2 || !inputs[0].is_contiguous() ||
      !is_whole(outputs[0]) || outputs[0].sizes != inputs[0].sizes || outputs[0].numel() == 0)
    return false;
  const int64_t channels = outputs[0].sizes[1];
  return is_by_channel(outputs[1], channels) && is_by_channel(outputs[2], channels) &&
         outputs[0].storage_group != outputs[1].storage_group && outputs[0].storage_group != outputs[2].storage_group &&
         outputs[1].storage_group != outputs[2].storage_group;
}

struct Readers {
  int count = 0;
  bool overwrite = false;
};

// Of a whole storage, laid out like this, among the operands of an op on single values.
Readers find_readers(const Event& event, const c10::StorageImpl* storage, const Layout& layout) {
  Readers readers;
  if (!event.may_be_fused || event.capture || !event.signature || !has_pointwise_body(event.op())) return readers;
  for (size_t i = 0; i < event.operands.size(); ++i)
    readers.count += event.operands[i].storage.get() == storage && event.operands[i].offset == 0 &&
                     event.signature->inputs[i].same_geometry(layout);
  const auto& slots = event.op().args;
  readers.overwrite = readers.count > 0 && slots[0].is_written && event.operands[0].storage.get() == storage;
  return readers;
}

// A channel of planes is in the cache when its values are scaled: only a result that is never written pays there.
bool pays(const Event& event, const StorageRef& map, const Layout& layout, const Event& next) {
  const auto readers = find_readers(next, map.get(), layout);
  if (readers.count == 0) return false;
  const bool is_left_out = readers.overwrite || c10::raw::intrusive_ptr::use_count(map.get()) ==
                                                    static_cast<size_t>(1 + readers.count);  // and the event's own
  return is_left_out || is_hidden(*event.operands[0].storage) || layout.numel() == layout.sizes[0] * layout.sizes[1];
}

StorageRef storage_of(const at::Tensor& tensor) {
  return StorageRef::unsafe_reclaim_from_nonowning(tensor.storage().unsafeGetStorageImpl());
}

void move_memory(const at::Tensor& from, c10::StorageImpl& to) {
  to.set_data_ptr_noswap(std::move(from.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks()));
}

}  // namespace

const graph::Signature& Splitter::rest_of(const graph::Signature& whole) {
  auto& rest = rests_[&whole];
  if (rest) return *rest;
  rest = std::make_unique<graph::Signature>();
  const auto &input = whole.inputs[0], &output = whole.outputs[0];
  Layout by_channel;  // (channels, 1, 1, ...): as the dims of the map say
  by_channel.dtype = output.dtype;
  by_channel.sizes.assign(output.sizes.size() - 1, 1);
  by_channel.strides.assign(output.sizes.size() - 1, 1);
  by_channel.sizes[0] = output.sizes[1];
  by_channel.storage_bytes = whole.outputs[1].storage_bytes;
  rest->op = &scale_channels_op();
  rest->inputs = {input, by_channel, by_channel, by_channel};
  rest->outputs = {output};
  rest->outputs[0].storage_group = 0;
  return *rest;
}

bool Splitter::may_split(const Event& event) {
  return event.may_be_fused && is_batch_norm(event.op()) && !event.is_strict && !event.capture && event.signature &&
         event.passes.has(Pass::k_split) && event.passes.has(Pass::k_choose_kernels) &&
         !skip_kernels.load(std::memory_order_relaxed);
}

bool Splitter::try_split(Event& event, const Event& next) {
  if (!may_split(event)) return false;
  if (const uint64_t epoch = ShapeMemo::instance().epoch(); epoch != epoch_) {
    rests_.clear();
    epoch_ = epoch;
  }
  const auto& outputs = event.signature->outputs;
  if (!has_usual_results(*event.signature) || !event.operands[0].storage) return false;
  if (!pays(event, event.outputs[outputs[0].storage_group], outputs[0], next)) return false;

  const auto arguments = build_arguments(event, takes_hidden(event, /*is_pointwise=*/false));
  if (!can_measure_batch_norm(arguments)) return false;
  const auto parts = [&] {
    const OneThreadScope alone(runs_alone(event));
    const ExcludedScope kernel(&event.node->counts.kernel_ticks);
    SpanScope span(SpanKind::kKernel, event.node);
    span.set_own(true);
    const AllocationScope allocations(event.node);
    return measure_batch_norm(arguments);
  }();
  const StorageRef map = event.outputs[outputs[0].storage_group], mean = event.outputs[outputs[1].storage_group];
  move_memory(parts.mean, *mean);
  move_memory(parts.inverse, *event.outputs[outputs[2].storage_group]);
  Operand input = std::move(event.operands[0]);
  input.same_as = -1;
  event.operands = {std::move(input), {mean}, {storage_of(parts.factor)}, {storage_of(parts.shift)}};
  event.outputs = {map};
  event.signature = &rest_of(*event.signature);
  event.part = event.signature->op;
  event.args.clear();
  event.args.resize(event.operands.size());
  return true;
}

}  // namespace lockstep::dynamic
