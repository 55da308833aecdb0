#include "dynamic/kernels/kernel_table.h"

#include <unordered_map>

#include "dynamic/kernels/batch_norm.h"
#include "dynamic/kernels/convolution.h"
#include "dynamic/kernels/product.h"

namespace lockstep::dynamic {

namespace {

constexpr OwnKernelRow kMeasured[] = {
    {"aten::mm", "", &try_mm},
    {"aten::addmm", "", &try_addmm},
    {"aten::bmm", "", &try_bmm},
    {"aten::convolution", "", nullptr, &try_convolution},
    {"aten::convolution_backward", "", nullptr, &try_convolution_backward},
    {"aten::native_batch_norm", "", nullptr, &try_batch_norm},
    {"aten::native_batch_norm_backward", "", nullptr, &try_batch_norm_backward},
};

// PyTorch's own kernels for these keep the order of their maps.
constexpr std::pair<const char*, const char*> kKeepOrder[] = {
    {"aten::max_pool2d_with_indices", ""},
    {"aten::max_pool2d_with_indices_backward", ""},
    {"aten::avg_pool2d", ""},
    {"aten::avg_pool2d_backward", ""},
    {"aten::_adaptive_avg_pool2d", ""},
    {"aten::_adaptive_avg_pool2d_backward", ""},
    {"aten::upsample_nearest2d", ""},
    {"aten::upsample_nearest2d_backward", ""},
    {"aten::cat", ""},
    {"aten::mean", "dim"},
    {"aten::sum", "dim_IntList"},
};

struct KernelFacts {
  const OwnKernelRow* row = nullptr;
  MapOrder order = MapOrder::kPlanes;
};

// Infos live for ever, so that an address is a name.
const KernelFacts& find_facts(const graph::OpInfo& op) {
  thread_local std::unordered_map<const graph::OpInfo*, KernelFacts> known;
  const auto [place, is_new] = known.try_emplace(&op);
  if (!is_new) return place->second;
  const auto is_named = [&](const char* name, const char* overload) {
    return op.handle.operator_name() == c10::OperatorName(name, overload);
  };
  auto& facts = place->second;
  for (const auto rows : {random_kernels(), measured_kernels()})
    for (const auto& row : rows)
      if (is_named(row.name, row.overload)) facts.row = &row;
  if (facts.row && facts.row->map_kernel) facts.order = MapOrder::kAny;
  for (const auto& [name, overload] : kKeepOrder)
    if (is_named(name, overload)) facts.order = MapOrder::kAllAlike;
  return facts;
}

}  // namespace

std::span<const OwnKernelRow> measured_kernels() { return kMeasured; }

const OwnKernelRow* find_own_kernel(const graph::OpInfo& op) { return find_facts(op).row; }

MapOrder map_order_of(const graph::OpInfo& op) { return find_facts(op).order; }

}  // namespace lockstep::dynamic
