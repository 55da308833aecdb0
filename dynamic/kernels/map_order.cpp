#include "dynamic/kernels/map_order.h"

#include <ATen/ceil_div.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>

#include "dynamic/kernels/float_tensor.h"
#include "dynamic/kernels/transpose.h"
#include "dynamic/threads/shared_loop.h"

namespace lockstep::dynamic {

namespace {

constexpr int64_t kBand = 256;       // of the longer side
constexpr int64_t kGrain = 1 << 14;  // values a thread

template <typename Value>
void turn(const void* from, void* to, int64_t count, int64_t rows, int64_t columns, bool in_parallel) {
  const bool is_long = rows > columns;
  const int64_t bands = at::ceil_div(std::max(rows, columns), kBand);
  const auto turn_bands = [=](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      const int64_t first = part % bands * kBand, size = std::min(kBand, std::max(rows, columns) - first);
      const auto* matrix = static_cast<const Value*>(from) + part / bands * rows * columns;
      auto* out = static_cast<Value*>(to) + part / bands * rows * columns;
      if (is_long) {
        transpose(matrix + first * columns, columns, out + first, rows, size, columns);
      } else {
        transpose(matrix + first, columns, out + first * rows, rows, rows, size);
      }
    }
  };
  if (in_parallel) {
    shared_loop(0, count * bands, std::max<int64_t>(1, kGrain * bands / std::max<int64_t>(1, rows * columns)), turn_bands);
  } else {
    turn_bands(0, count * bands);
  }
}

}  // namespace

void turn_matrices(const void* from, void* to, int64_t item_bytes, int64_t count, int64_t rows, int64_t columns,
                   bool in_parallel) {
  switch (item_bytes) {
    case 1: return turn<uint8_t>(from, to, count, rows, columns, in_parallel);
    case 2: return turn<uint16_t>(from, to, count, rows, columns, in_parallel);
    case 4: return turn<uint32_t>(from, to, count, rows, columns, in_parallel);
    case 8: return turn<uint64_t>(from, to, count, rows, columns, in_parallel);
    default: return turn<std::array<uint64_t, 2>>(from, to, count, rows, columns, in_parallel);
  }
}

at::Tensor create_innermost_map(int64_t n, int64_t channels, int64_t h, int64_t w, const at::Tensor& like) {
  return at::empty({n, channels, h, w}, like.options().memory_format(at::MemoryFormat::ChannelsLast));
}

// PyTorch's own copy between the two orders moves some 2 GB a second.
at::Tensor map_in_order(const at::Tensor& map, at::MemoryFormat order) {
  if (map.is_contiguous(order)) return map;
  const bool to_innermost = order == at::MemoryFormat::ChannelsLast;
  const auto other = to_innermost ? at::MemoryFormat::Contiguous : at::MemoryFormat::ChannelsLast;
  if (!is_float_tensor(map) || map.dim() != 4 || !map.is_contiguous(other)) return map.contiguous(order);
  auto turned = at::empty(map.sizes(), map.options().memory_format(order));
  const int64_t channels = map.size(1), pixels = map.size(2) * map.size(3);
  turn_matrices(map.const_data_ptr<float>(), turned.mutable_data_ptr<float>(), sizeof(float), map.size(0),
                to_innermost ? channels : pixels, to_innermost ? pixels : channels, /*in_parallel=*/true);
  return turned;
}

}  // namespace lockstep::dynamic
