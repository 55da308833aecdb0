#include "dynamic/vm/executor.h"

#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>

#include "dynamic/kernels/by_float32.h"
#include "dynamic/kernels/kernel_choice.h"
#include "dynamic/kernels/kernel_table.h"
#include "dynamic/kernels/product.h"
#include "dynamic/threads/thread_team.h"
#include "dynamic/vm/hidden_layout.h"
#include "dynamic/vm/kernel_work.h"
#include "dynamic/vm/memory_log.h"
#include "dynamic/vm/packed_mask.h"
#include "dynamic/vm/recycled.h"
#include "dynamic/vm/skeleton_clock.h"
#include "dynamic/vm/timeline.h"

namespace lockstep::dynamic {

using graph::ArgKind;
using graph::Layout;

at::Tensor tensor_over(StorageRef storage, const Layout& layout, int64_t offset) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(std::move(storage)), c10::DispatchKeySet(c10::DispatchKey::CPU),
      c10::scalarTypeToTypeMeta(layout.dtype));
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(layout.sizes, layout.strides, offset);
  if (layout.conj) impl->_set_conj(true);
  if (layout.neg) impl->_set_neg(true);
  return tensor;
}

namespace {

struct EmptyStorage final : Recycled<EmptyStorage>, c10::StorageImpl {
  using c10::StorageImpl::StorageImpl;
};

}  // namespace

StorageRef create_empty_storage(int64_t bytes) {
  return c10::make_intrusive<EmptyStorage>(c10::StorageImpl::use_byte_size_t(), bytes,
                                           c10::DataPtr(nullptr, c10::Device(c10::DeviceType::CPU)),
                                           c10::GetCPUAllocator(), /*resizable=*/true);
}

namespace {

at::Tensor operand_tensor(const Operand& operand, const Layout& layout, bool takes_hidden) {
  if (!layout.is_defined()) return {};
  if (operand.direct.defined()) return operand.direct;
  if (is_hidden(*operand.storage)) {
    if (takes_hidden) return hidden_tensor(*operand.storage, layout);
    restore(*operand.storage);
  }
  return tensor_over(operand.storage, layout, operand.offset);
}

}  // namespace

torch::jit::Stack build_arguments(const Event& event, bool takes_hidden) {
  const auto& op = event.op();
  torch::jit::Stack stack;
  stack.reserve(op.args.size() + 2);
  size_t next = 0;
  const bool some_come_again = std::any_of(event.operands.begin(), event.operands.end(),
                                           [](const Operand& operand) { return operand.same_as >= 0; });
  std::vector<at::Tensor> built;  // only where some come again
  auto take = [&] {
    const size_t i = next++;
    const auto& operand = event.operands[i];
    auto tensor = operand.same_as >= 0 ? built.at(operand.same_as)
                                       : operand_tensor(operand, event.signature->inputs[i], takes_hidden);
    if (some_come_again) built.push_back(tensor);
    return tensor;
  };
  for (size_t a = 0; a < op.args.size(); ++a) {
    const auto& arg = event.args[a];
    switch (op.args[a].kind) {
      case ArgKind::kTensor: {
        auto tensor = take();
        if (arg.isNone() && !tensor.defined()) {
          stack.emplace_back();
        } else {
          stack.emplace_back(std::move(tensor));
        }
        break;
      }
      case ArgKind::kTensorList: {
        if (arg.isNone()) {
          stack.emplace_back();
          break;
        }
        c10::List<at::Tensor> list;
        for (int64_t n = arg.toInt(); n > 0; --n) list.push_back(take());
        stack.emplace_back(std::move(list));
        break;
      }
      case ArgKind::kOptionalTensorList: {
        c10::List<std::optional<at::Tensor>> list;
        for (int64_t n = arg.toInt(); n > 0; --n) {
          auto tensor = take();
          list.push_back(tensor.defined() ? std::optional<at::Tensor>(std::move(tensor)) : std::nullopt);
        }
        stack.emplace_back(std::move(list));
        break;
      }
      default:
        stack.push_back(arg);
    }
  }
  return stack;
}

std::vector<at::Tensor> fresh_results(const graph::OpInfo& op, const torch::jit::Stack& results,
                                      std::vector<int>* list_sizes) {
  std::vector<at::Tensor> fresh;
  for (size_t r = 0; r < op.returns.size() && r < results.size(); ++r) {
    const auto& slot = op.returns[r];
    if (slot.alias_arg >= 0 || !slot.is_tensor) continue;
    if (slot.is_list) {
      const auto list = results[r].toListRef();
      if (list_sizes) list_sizes->push_back(static_cast<int>(list.size()));
      for (const auto& item : list) fresh.push_back(item.isTensor() ? item.toTensor() : at::Tensor());
    } else {
      fresh.push_back(results[r].isTensor() ? results[r].toTensor() : at::Tensor());
    }
  }
  return fresh;
}

namespace {

// The strides of dims of size 1 lead nowhere.
bool has_strides(const at::Tensor& result, at::IntArrayRef strides) {
  for (int64_t dim = 0; dim < result.dim(); ++dim)
    if (result.stride(dim) != strides[dim] && result.size(dim) != 1) return false;
  return true;
}

bool keeps_promise(const at::Tensor& result, const Layout& promised) {
  return result.scalar_type() == promised.dtype && result.sizes() == promised.sizes &&
         has_strides(result, promised.strides) && result.storage_offset() == promised.offset &&
         result.is_conj() == promised.conj && result.is_neg() == promised.neg &&
         static_cast<int64_t>(result.storage().nbytes()) == promised.storage_bytes;
}

[[noreturn]] void refuse(const at::Tensor& result, const Layout& promised) {
  TORCH_CHECK(false, "lockstep: a kernel returned another layout (", graph::layout_of(result).str(),
              ") than for equal inputs before (", promised.str(), "); please report this");
}

// Another layout than promised, or memory that somebody shares: the values are copied to where they were promised.
void copy_into(const StorageRef& twin, const at::Tensor& result, const Layout& promised) {
  if (result.scalar_type() != promised.dtype || result.sizes() != promised.sizes) refuse(result, promised);
  if (!twin->data() && twin->nbytes() > 0)
    twin->set_data_ptr_noswap(c10::GetCPUAllocator()->allocate(twin->nbytes()));
  tensor_over(twin, promised, promised.offset).copy_(result);
}

}  // namespace

at::Tensor as_promised(const at::Tensor& result, const Layout& promised) {
  if (!result.defined() || !result.has_storage() || result.is_conj() || result.is_neg() ||
      result.scalar_type() != promised.dtype || result.sizes() != promised.sizes)
    return result;
  auto storage = StorageRef::reclaim_copy(result.storage().unsafeGetStorageImpl());
  if (!keeps_promise(result, promised)) {
    storage = create_empty_storage(promised.storage_bytes);
    copy_into(storage, result, promised);
  }
  return tensor_over(std::move(storage), promised, promised.offset);
}

namespace {

// The promised map with its channels innermost.
bool is_innermost(const at::Tensor& result, const Layout& promised) {
  return result.dim() == 4 && !result.is_contiguous() &&
         result.is_contiguous(at::MemoryFormat::ChannelsLast) &&
         is_whole_map(promised, promised.offset, promised.storage_bytes) && result.scalar_type() == promised.dtype &&
         result.sizes() == promised.sizes && result.storage_offset() == 0 && !result.is_conj() &&
         !result.is_neg() && static_cast<int64_t>(result.storage().nbytes()) == promised.storage_bytes;
}

void deliver(Event& event, std::vector<at::Tensor>& results) {
  const auto& promised = event.signature->outputs;
  TORCH_CHECK(results.size() == promised.size(), "lockstep: a kernel returned ", results.size(),
              " tensors where it returned ", promised.size(), " before; please report this");
  std::vector<bool> taken(event.outputs.size(), false);
  for (size_t i = 0; i < promised.size(); ++i) {
    if (promised[i].is_defined() != results[i].defined()) refuse(results[i], promised[i]);
    if (!promised[i].is_defined()) continue;
    const auto group = promised[i].storage_group;
    const auto& twin = event.outputs[group];
    if (taken[group]) continue;  // several results over one storage: the first has brought the data
    taken[group] = true;
    auto* from = results[i].storage().unsafeGetStorageImpl();
    bool exclusive = !from->has_materializer();
    if (exclusive) {
      int64_t holders = 0;
      for (const auto& other : results)
        holders += other.defined() && other.storage().unsafeGetStorageImpl() == from;
      exclusive = from->data_ptr().get_deleter() != nullptr &&
                  static_cast<int64_t>(results[i].storage().use_count()) == holders;
    }
    if (exclusive && event.may_hide() && is_innermost(results[i], promised[i])) {
      hide_map(*twin, std::move(from->_mutable_data_ptr_no_checks()), promised[i].sizes);
    } else if (exclusive && keeps_promise(results[i], promised[i])) {
      twin->set_data_ptr_noswap(std::move(from->_mutable_data_ptr_no_checks()));
    } else if (exclusive && from->nbytes() == 0 && keeps_promise(results[i], promised[i])) {
      continue;
    } else {
      copy_into(twin, results[i], promised[i]);
    }
  }
}

// Contiguous for all but the runner: what comes and goes in another order is so for the user, too. The first operand, a
// map or the gradient of one, most kernels look at themselves.
bool has_contiguous_maps(const Event& event, const OwnKernelRow& own) {
  const auto is_contiguous = [](const Layout& layout) {
    return !layout.is_defined() || layout.sizes.size() != 4 || layout.is_contiguous();
  };
  const auto &inputs = event.signature->inputs, &outputs = event.signature->outputs;
  if (inputs.empty()) return false;
  return std::all_of(inputs.begin() + (own.wants_first_contiguous ? 0 : 1), inputs.end(), is_contiguous) &&
         std::all_of(outputs.begin(), outputs.end(), is_contiguous);
}

}  // namespace

bool takes_hidden(const Event& event, bool is_pointwise) {
  const auto& operands = event.operands;
  if (!event.may_hide() || std::none_of(operands.begin(), operands.end(), [](const Operand& operand) {
        return operand.storage && is_hidden(*operand.storage);
      }))
    return false;
  const auto order = is_pointwise ? MapOrder::kAllAlike : map_order_of(event.op());
  if (order == MapOrder::kAny && !event.passes.has(Pass::k_choose_kernels)) return false;
  if (order == MapOrder::kPlanes || (order == MapOrder::kAny && !has_contiguous_maps(event, *find_own_kernel(event.op()))))
    return false;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (!operands[i].storage) continue;
    const auto& layout = event.signature->inputs[i];
    if (is_hidden(*operands[i].storage)) {
      if (!is_hidden_map(*operands[i].storage, layout, operands[i].offset)) return false;
    } else if (order == MapOrder::kAllAlike && is_map(layout)) {
      return false;
    }
  }
  return true;
}

namespace {

// Whether it was a kernel of ours.
bool run_kernel(const Event& event, torch::jit::Stack& stack, bool has_hidden) {
  const auto& op = event.op();
  const auto* own = event.is_strict ? nullptr : find_own_kernel(op);
  const bool may_measure = !event.is_strict && event.passes.has(Pass::k_choose_kernels);
  if (own && !may_measure && is_measured(op)) own = nullptr;
  const FixedChoiceScope fixed(event.is_deterministic);
  const RoundedProductsScope rounded(event.rounds_products);
  const bool in_any_order = own && own->map_kernel && event.may_hide() && has_contiguous_maps(event, *own);
  if (own && own->run(stack, in_any_order)) return true;
  // What our kernels take in any order, PyTorch's may not: those of norms crash, or read a strided weight as a dense one.
  if (own && own->map_kernel && has_hidden) stack = build_arguments(event, /*takes_hidden=*/false);
  if (may_measure && multiplies(op) && try_by_float32(op, own, stack)) return true;
  op.handle.callBoxed(&stack);
  return false;
}

}  // namespace

std::atomic<bool> skip_kernels{false};

namespace {

bool writes_operand(const graph::OpInfo& op, size_t operand) {
  size_t next = 0;
  for (const auto& slot : op.args)
    if (slot.kind == ArgKind::kTensor && next++ == operand) return slot.is_written;
  return false;
}

// A mask that an op reads by single values stays packed for others.
void unpack_for(Event& event) {
  for (size_t i = 0; i < event.operands.size(); ++i) {
    auto& operand = event.operands[i];
    if (operand.storage && packed_mask(*operand.storage) && !writes_operand(event.op(), i))
      operand.direct = unpacked_copy(*operand.storage, event.signature->inputs[i], operand.offset);
  }
}

}  // namespace

void execute(Event& event, bool is_pointwise) {
  if (may_run_packed(event) && !skip_kernels.load(std::memory_order_relaxed)) {
    const OneThreadScope alone(runs_alone(event));
    const ExcludedScope kernel(&event.node->counts.kernel_ticks);
    SpanScope span(SpanKind::kKernel, event.node);
    const AllocationScope allocations(event.node);
    span.set_own(true);
    if (try_run_packed(event)) return;
  }
  if (is_pointwise) unpack_for(event);
  const bool has_hidden = takes_hidden(event, is_pointwise);
  auto stack = build_arguments(event, has_hidden);
  if (skip_kernels.load(std::memory_order_relaxed) && !event.capture) {
    for (const auto& twin : event.outputs)
      if (twin->nbytes() > 0) twin->set_data_ptr_noswap(c10::GetCPUAllocator()->allocate(twin->nbytes()));
    return;
  }
  {
    const OneThreadScope alone(runs_alone(event));
    const ExcludedScope kernel(&event.node->counts.kernel_ticks);
    SpanScope span(SpanKind::kKernel, event.node);
    const AllocationScope allocations(event.node);
    span.set_own(run_kernel(event, stack, has_hidden));
  }
  if (event.capture) {
    event.capture->results = std::move(stack);
    return;
  }
  if (event.signature->outputs.empty()) return;
  auto results = fresh_results(event.op(), stack);
  stack.clear();
  deliver(event, results);
}

}  // namespace lockstep::dynamic
