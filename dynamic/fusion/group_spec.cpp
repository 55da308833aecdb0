#include "dynamic/fusion/group_spec.h"

#include <algorithm>

#include "dynamic/kernels/map_order.h"
#include "dynamic/kernels/past_cache.h"
#include "dynamic/passes/spec_passes.h"

namespace lockstep::dynamic {

namespace {

using graph::Layout;
using jit::Access;

std::vector<int64_t> strides_over(const Layout& layout, const Layout& space) {
  std::vector<int64_t> strides;
  for (size_t dim = 0; dim < space.sizes.size(); ++dim) strides.push_back(stride_over(layout, space, dim));
  return strides;
}

struct Nest {
  std::vector<int64_t> sizes;
  std::vector<std::vector<int64_t>> strides;  // by buffer
};

// Outermost first as the target lies in memory; neighbours that every buffer walks as one are one. A dim that is folded
// stays by itself: what a sum comes to depends on nothing but its own size.
Nest create_nest(const FusedGroup& group) {
  Layout space = *group.facts(0).target;
  if (group.is_innermost()) space.strides = innermost_strides(space.sizes);
  std::vector<std::vector<int64_t>> all;
  for (const auto& buffer : group.buffers())
    all.push_back(strides_over(group.is_innermost() && is_map(*buffer.layout) ? space : *buffer.layout, space));
  std::vector<int> order;
  for (size_t dim = 0; dim < space.sizes.size(); ++dim)
    if (space.sizes[dim] != 1) order.push_back(static_cast<int>(dim));
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return space.strides[a] > space.strides[b]; });
  Nest nest;
  nest.strides.resize(all.size());
  for (const int dim : order) {
    bool joins = !nest.sizes.empty() && dim != group.folded();
    for (size_t b = 0; joins && b < all.size(); ++b)
      joins = nest.strides[b].back() == all[b][dim] * space.sizes[dim];
    if (joins) {
      nest.sizes.back() *= space.sizes[dim];
    } else {
      nest.sizes.push_back(space.sizes[dim]);
    }
    for (size_t b = 0; b < all.size(); ++b) {
      if (joins) nest.strides[b].pop_back();
      nest.strides[b].push_back(all[b][dim]);
    }
  }
  if (nest.sizes.empty()) {
    nest.sizes.push_back(1);
    for (auto& strides : nest.strides) strides.push_back(0);
  }
  return nest;
}

// What a spec says of a stride; everything else comes with the call.
int64_t spec_stride(int64_t stride, bool is_innermost) {
  return stride == 0 || (is_innermost && stride == 1) ? stride : jit::kSymbolic;
}

class SpecBuilder {
 public:
  explicit SpecBuilder(const FusedGroup& group)
      : group_(group), passes_(group.events()[0]->passes), nest_(create_nest(group)) {
    if (group.events()[0]->float_mode != 0) passes_ = passes_.without(Pass::k_fold_constants);  // x * 1 flushes, then
    result_.sizes = nest_.sizes;
    result_.spec.sizes.assign(nest_.sizes.size(), jit::kSymbolic);
    if (group.facts(0).target->numel() == 1) result_.spec.sizes.assign(1, 1);
    spec_buffers_.assign(group.buffers().size(), -1);
    current_.assign(group.buffers().size(), -1);
  }

  GroupSpec build() {
    for (int e = 0; e < static_cast<int>(group_.events().size()); ++e) {
      OpBody body(
          *group_.events()[e], e, group_.facts(e).written, *group_.facts(e).target, group_.facts(e).folded, result_.spec,
          [&](int operand) { return read(group_.buffer_of(e, operand)); },
          [&](int operand_or_result, bool is_result, jit::ValueId value) {
            current_[is_result ? group_.result_of(e, operand_or_result) : group_.buffer_of(e, operand_or_result)] = value;
          },
          [&](ScalarUse use) { return use_scalar(use); });
      group_.facts(e).row->lower(body);
    }
    for (int b = 0; b < static_cast<int>(current_.size()); ++b)
      if (group_.is_wanted(b)) result_.spec.store(spec_buffer(b, Access::kOut), current_[b]);
    run_spec_passes(result_.spec, passes_);
    return std::move(result_);
  }

 private:
  int spec_buffer(int buffer, Access access) {
    int& known = spec_buffers_[buffer];
    if (known >= 0) {
      auto& before = result_.spec.buffers[known];
      if (access != before.access) before.access = Access::kInOut;
      return known;
    }
    const auto& strides = nest_.strides[buffer];
    std::vector<int64_t> said;
    for (size_t dim = 0; dim < strides.size(); ++dim) said.push_back(spec_stride(strides[dim], dim + 1 == strides.size()));
    const auto& use = group_.buffers()[buffer];
    const auto type = *jit_type(use.layout->dtype);
    const bool streams = passes_.has(Pass::k_past_cache) && access == Access::kOut &&
                         is_past_cache(use.layout->numel() * jit::bytes_of(type));
    if (group_.is_packed(buffer)) {
      known = result_.spec.add_packed(std::move(said));
    } else {
      known = use.total == jit::Total::kNone ? result_.spec.add_buffer(type, access, std::move(said), streams)
                                             : result_.spec.add_total(type, use.total, std::move(said));
    }
    result_.buffers.push_back(buffer);
    result_.strides.push_back(strides);
    return known;
  }

  jit::ValueId read(int buffer) {
    if (current_[buffer] < 0) {
      current_[buffer] = result_.spec.load(spec_buffer(buffer, Access::kIn));
      if (group_.is_packed(buffer)) current_[buffer] = unpacked(buffer, current_[buffer]);
    }
    return current_[buffer];
  }

  jit::ValueId unpacked(int mask, jit::ValueId bit) {
    ScalarUse use;
    use.type = *jit_type(group_.buffers()[mask].layout->dtype);
    use.mask = mask;
    return result_.spec.where(bit, use_scalar(use), result_.spec.constant(use.type, 0));
  }

  jit::ValueId use_scalar(ScalarUse use) {
    result_.scalars.push_back(use);
    return result_.spec.scalar(result_.spec.add_scalar(use.type));
  }

  const FusedGroup& group_;
  PassSet passes_;
  Nest nest_;
  GroupSpec result_;
  std::vector<int> spec_buffers_;
  std::vector<jit::ValueId> current_;
};

}  // namespace

std::vector<int64_t> GroupSpec::call_sizes() const {
  std::vector<int64_t> open;
  for (size_t dim = 0; dim < sizes.size(); ++dim)
    if (spec.sizes[dim] == jit::kSymbolic) open.push_back(sizes[dim]);
  return open;
}

std::vector<int64_t> GroupSpec::call_strides() const {
  std::vector<int64_t> open;
  for (size_t b = 0; b < strides.size(); ++b)
    for (size_t dim = 0; dim < strides[b].size(); ++dim)
      if (spec.buffers[b].strides[dim] == jit::kSymbolic) open.push_back(strides[b][dim]);
  return open;
}

GroupSpec create_spec(const FusedGroup& group) { return SpecBuilder(group).build(); }

}  // namespace lockstep::dynamic
