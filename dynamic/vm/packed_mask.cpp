#include "dynamic/vm/packed_mask.h"

#include <ATen/Context.h>
#include <ATen/Dispatch.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "dynamic/jit/kernel.h"
#include "dynamic/kernels/random.h"
#include "dynamic/threads/shared_loop.h"
#include "dynamic/vm/executor.h"

namespace lockstep::dynamic {

namespace {

using c10::ScalarType;
using graph::Layout;

constexpr int64_t kFewest = 4096;      // elements: smaller ones stay in the cache as they are
constexpr int64_t kGrainBytes = 4096;  // of bits, a thread

bool is_known_type(ScalarType type) {
  return type == ScalarType::Float || type == ScalarType::Double || type == ScalarType::BFloat16;
}

// The whole of a storage, each element once.
bool fills(const Layout& layout, int64_t offset, int64_t storage_bytes) {
  return offset == 0 && is_known_type(layout.dtype) && !layout.conj && !layout.neg && layout.is_without_overlap() &&
         layout.numel() * static_cast<int64_t>(c10::elementSize(layout.dtype)) == storage_bytes;
}

// Memory that nobody has looked at.
struct Blank final : HiddenForm {
  explicit Blank(c10::DataPtr m) : memory(std::move(m)) {}
  c10::DataPtr restored(const c10::StorageImpl&, bool) override { return std::move(memory); }
  c10::DataPtr memory;
};

// Bytes [begin, end) of bits, four elements at a time.
template <typename Number>
void unpack(const uint8_t* bits, int64_t begin, int64_t end, int64_t count, Number value, Number* out) {
  Number fours[16][4];
  for (int four = 0; four < 16; ++four)
    for (int i = 0; i < 4; ++i) fours[four][i] = four >> i & 1 ? value : Number(0);
  const int64_t whole_end = std::min(end, count / 8);
  for (int64_t byte = begin; byte < whole_end; ++byte) {
    std::memcpy(out + 8 * byte, fours[bits[byte] & 15], sizeof fours[0]);
    std::memcpy(out + 8 * byte + 4, fours[bits[byte] >> 4], sizeof fours[0]);
  }
  for (int64_t i = 8 * whole_end; i < std::min(8 * end, count); ++i) out[i] = bits[i / 8] >> i % 8 & 1 ? value : Number(0);
}

void unpack(const PackedMask& mask, int64_t storage_bytes, void* out, bool in_parallel) {
  const auto* bits = static_cast<const uint8_t*>(mask.bits.get());
  const int64_t count = storage_bytes / static_cast<int64_t>(c10::elementSize(mask.type));
  const int64_t byte_count = at::ceil_div<int64_t>(count, 8);
  AT_DISPATCH_FLOATING_TYPES_AND(ScalarType::BFloat16, mask.type, "unpack", [&] {
    const auto part = [&](int64_t begin, int64_t end) {
      unpack(bits, begin, end, count, static_cast<scalar_t>(mask.value), static_cast<scalar_t*>(out));
    };
    in_parallel ? shared_loop(0, byte_count, kGrainBytes, part) : part(0, byte_count);
  });
}

bool may_draw(const Event& event) {
  if (!event.may_pack() || !draws_mask(event.op())) return false;
  const auto& operand = event.operands[0];
  return operand.storage && hidden_as<Blank>(*operand.storage) &&
         fills(event.signature->inputs[0], operand.offset, static_cast<int64_t>(operand.storage->nbytes()));
}

// bernoulli_.float(Tensor(a!) self, float p, *, Generator? generator)
bool try_draw(const Event& event) {
  const auto type = event.signature->inputs[0].dtype;
  const auto generator = event.args[2].toOptional<at::Generator>();
  const int64_t count = event.signature->inputs[0].numel();
  auto bits = c10::GetCPUAllocator()->allocate(count / 8 + jit::kPackedMargin);
  if (!generate_bernoulli_mask(type, generator, event.args[1].toDouble(), count, static_cast<uint8_t*>(bits.get())))
    return false;
  packed_mask_statistics.drawn.fetch_add(1, std::memory_order_relaxed);
  hide(*event.operands[0].storage, std::make_unique<PackedMask>(std::move(bits), type));
  return true;
}

// The op itself says what becomes of a zero and of the value.
bool try_change_value(Event& event) {
  auto& mask = *packed_mask(*event.operands[0].storage);
  auto pair = create_empty_storage(2 * static_cast<int64_t>(c10::elementSize(mask.type)));
  pair->set_data_ptr_noswap(c10::GetCPUAllocator()->allocate(pair->nbytes()));
  Layout layout;
  layout.dtype = mask.type;
  layout.sizes = {2};
  layout.strides = {1};
  const auto values = tensor_over(pair, layout, 0);
  AT_DISPATCH_FLOATING_TYPES_AND(ScalarType::BFloat16, mask.type, "change_value", [&] {
    auto* at = values.mutable_data_ptr<scalar_t>();
    at[0] = 0;
    at[1] = static_cast<scalar_t>(mask.value);
  });
  event.operands[0].direct = values;
  auto arguments = build_arguments(event);
  event.operands[0].direct.reset();
  event.op().handle.callBoxed(&arguments);
  return AT_DISPATCH_FLOATING_TYPES_AND(ScalarType::BFloat16, mask.type, "change_value", [&] {
    const auto* at = values.const_data_ptr<scalar_t>();
    if (at[0] != 0 || std::signbit(static_cast<double>(at[0]))) return false;
    mask.value = static_cast<double>(at[1]);
    return true;
  });
}

}  // namespace

PackedMaskStatistics packed_mask_statistics;

c10::DataPtr PackedMask::restored(const c10::StorageImpl& storage, bool in_parallel) {
  packed_mask_statistics.unpacked.fetch_add(1, std::memory_order_relaxed);
  auto memory = c10::GetCPUAllocator()->allocate(storage.nbytes());
  unpack(*this, static_cast<int64_t>(storage.nbytes()), memory.get(), in_parallel);
  return memory;
}

bool draws_mask(const graph::OpInfo& op) {
  static const auto* bernoulli = graph::find_op_info("aten::bernoulli_.float");
  return &op == bernoulli;
}

bool may_hold_mask(const Layout& layout) {
  return fills(layout, layout.offset, layout.storage_bytes) && layout.numel() >= kFewest;
}

void leave_blank(c10::StorageImpl& storage, c10::DataPtr memory) { hide(storage, std::make_unique<Blank>(std::move(memory))); }

bool may_change_value(const Event& event) {
  const auto& op = event.op();
  if (!event.may_pack() || !op.is_pointwise || op.draws || event.operands.empty() || !event.signature->outputs.empty())
    return false;
  const auto& first = event.operands[0];
  if (!op.args[0].is_written || !first.storage) return false;
  const auto* mask = packed_mask(*first.storage);
  return mask && mask->type == event.signature->inputs[0].dtype &&
         fills(event.signature->inputs[0], first.offset, static_cast<int64_t>(first.storage->nbytes())) &&
         std::all_of(event.operands.begin() + 1, event.operands.end(), [](const Operand& other) {
           return other.direct.defined() && other.direct.dim() == 0;
         });
}

bool may_run_packed(const Event& event) { return may_draw(event) || may_change_value(event); }

bool try_run_packed(Event& event) { return may_draw(event) ? try_draw(event) : try_change_value(event); }

at::Tensor unpacked_copy(const c10::StorageImpl& storage, const Layout& layout, int64_t offset) {
  auto copy = create_empty_storage(static_cast<int64_t>(storage.nbytes()));
  copy->set_data_ptr_noswap(packed_mask(storage)->restored(storage, /*in_parallel=*/true));
  return tensor_over(std::move(copy), layout, offset);
}

}  // namespace lockstep::dynamic
