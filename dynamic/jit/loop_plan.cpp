#include "dynamic/jit/loop_plan.h"

#include <algorithm>

namespace lockstep::dynamic::jit {
namespace {

bool is_expensive(Op op) {
  switch (op) {
    case Op::k_exp:
    case Op::k_exp_nonpositive:
    case Op::k_normal_cdf:
    case Op::k_expm1:
    case Op::k_log:
    case Op::k_log1p:
    case Op::k_log2:
    case Op::k_tanh:
    case Op::k_erf:
    case Op::k_sigmoid:
    case Op::k_sin:
    case Op::k_cos:
    case Op::k_pow:
    case Op::k_atan2:
    case Op::k_fmod:
    case Op::k_remainder: return true;
    default: return false;
  }
}

bool is_indexed(const KernelSpec& spec, int dim) {
  return std::any_of(spec.body.begin(), spec.body.end(),
                     [&](const Instruction& i) { return i.op == Op::k_index && i.immediate == dim; });
}

// True if all buffers walk over the two neighbours as over one dim.
bool can_collapse(const KernelSpec& spec, int outer, int inner) {
  if (is_indexed(spec, outer) || is_indexed(spec, inner)) return false;
  for (const Buffer& buffer : spec.buffers) {
    int64_t outside = buffer.strides[outer];
    int64_t inside = buffer.strides[inner];
    if (outside == 0 && inside == 0) continue;
    if (outside == kSymbolic || inside == kSymbolic || spec.sizes[inner] == kSymbolic) return false;
    if (outside != inside * spec.sizes[inner]) return false;
  }
  return true;
}

int64_t product(int64_t a, int64_t b) { return a == kSymbolic || b == kSymbolic ? kSymbolic : a * b; }

// The dim along which most buffers are contiguous; results count twice, and the innermost wins a draw.
size_t choose_vector_dim(const KernelSpec& spec, const std::vector<LoopDim>& dims) {
  size_t best = dims.size() - 1;
  int best_score = -1;
  for (size_t i = dims.size(); i-- > 0;) {
    int score = 0;
    for (const Buffer& buffer : spec.buffers) {
      score += (buffer.strides[dims[i].sources.back()] == 1) * (buffer.access == Access::kIn ? 1 : 2);
    }
    if (score > best_score) best = i, best_score = score;
  }
  return best;
}

void split_dims(const KernelSpec& spec, LoopPlan& plan) {
  std::vector<LoopDim> kept;
  int last = -1;  // the spec's innermost dim that is not 1
  for (int dim = 0; dim < static_cast<int>(spec.sizes.size()); ++dim) {
    bool is_reduced = plan.reduced_mask >> dim & 1;
    if (spec.sizes[dim] == 1) continue;
    if (is_reduced) {
      plan.reduced.push_back({{dim}, spec.sizes[dim]});
    } else if (!kept.empty() && kept.back().sources.back() == last && !(plan.has_totals && dim == spec.innermost()) &&
               can_collapse(spec, last, dim)) {
      kept.back().sources.push_back(dim);
      kept.back().size = product(kept.back().size, spec.sizes[dim]);
    } else {
      kept.push_back({{dim}, spec.sizes[dim]});
    }
    last = dim;
  }
  if (plan.reduced_mask == 0 && plan.has_totals) {
    plan.kind = NestKind::kRow;
    if (!kept.empty()) {
      plan.vector = kept.back();
      kept.pop_back();
    }
  } else if (plan.reduced_mask == 0) {
    plan.kind = NestKind::kPointwise;
    if (!kept.empty()) {
      size_t at = choose_vector_dim(spec, kept);
      plan.vector = kept[at];
      kept.erase(kept.begin() + at);
    }
  } else if (last >= 0 && !(plan.reduced_mask >> last & 1)) {
    plan.kind = NestKind::kColumn;
    plan.vector = kept.back();
    kept.pop_back();
  } else {
    plan.kind = NestKind::kRow;
    if (!plan.reduced.empty()) {
      plan.vector = plan.reduced.back();
      plan.reduced.pop_back();
    }
  }
  plan.kept = std::move(kept);
}

void place_in_passes(const KernelSpec& spec, LoopPlan& plan) {
  for (const ValueFacts& fact : plan.facts) plan.level_count = std::max(plan.level_count, fact.level);
  plan.passes.resize(plan.level_count);
  for (ValueId i = 0; i < static_cast<ValueId>(spec.body.size()); ++i) {
    const Instruction& instruction = spec.body[i];
    if (instruction.op == Op::k_reduce) plan.passes[plan.facts[i].level - 1].reductions.push_back(i);
    if (instruction.op != Op::k_store) continue;
    if (is_reduced_store(spec, instruction)) {
      plan.reduced_stores.push_back(i);
      continue;
    }
    // What is written in place is written last: an earlier pass would spoil what later ones read.
    const Buffer& buffer = spec.buffers[instruction.immediate];
    int pass = buffer.access == Access::kOut ? plan.facts[i].level : plan.level_count;
    if (pass >= static_cast<int>(plan.passes.size())) plan.passes.resize(pass + 1);
    if (buffer.total != Total::kNone) {
      plan.passes[pass].totals.push_back(i);
      continue;
    }
    plan.passes[pass].stores.push_back(i);
    plan.passes[pass].streams |= buffer.streaming && plan.stride(spec, instruction.immediate, plan.vector) == 1;
  }
}

void find_slots(const KernelSpec& spec, LoopPlan& plan) {
  plan.slots.assign(spec.body.size(), -1);
  for (ValueId i = 0; i < static_cast<ValueId>(spec.body.size()); ++i) {
    const Instruction& user = spec.body[i];
    bool user_is_finished = plan.is_uniform(i) && user.op != Op::k_reduce && user.op != Op::k_store;
    if (user.op == Op::k_store) user_is_finished = is_reduced_store(spec, user);
    for (int k = 0; k < row_of(user.op).arity; ++k) {
      ValueId operand = user.operands[k];
      if (plan.facts[operand].level == 0 || !plan.is_uniform(operand) || plan.slots[operand] >= 0) continue;
      int level = user.op == Op::k_store ? plan.level_count : plan.facts[i].level;
      if (!user_is_finished || level != plan.facts[operand].level) plan.slots[operand] = plan.slot_count++;
    }
  }
}

// Walks back from what each pass makes. Of expensive values that vary along the row, the first pass that needs one computes
// it; a stash keeps it for later ones.
void find_stashes(const KernelSpec& spec, LoopPlan& plan) {
  plan.stashes.assign(spec.body.size(), -1);
  plan.stash_passes.assign(spec.body.size(), -1);
  if (plan.kind != NestKind::kRow) return;
  std::vector<int> first_pass(spec.body.size(), -1);
  std::vector<int> expensive_counts(plan.passes.size());
  for (int pass = 0; pass < static_cast<int>(plan.passes.size()); ++pass) {
    std::vector<char> is_needed(spec.body.size());
    for (ValueId root : plan.passes[pass].reductions) is_needed[spec.body[root].operands[0]] = 1;
    for (ValueId root : plan.passes[pass].stores) is_needed[spec.body[root].operands[0]] = 1;
    for (ValueId root : plan.passes[pass].totals) is_needed[spec.body[root].operands[0]] = 1;
    for (ValueId i = static_cast<ValueId>(spec.body.size()) - 1; i >= 0; --i) {
      if (!is_needed[i] || spec.body[i].op == Op::k_reduce || plan.slots[i] >= 0) continue;
      if (is_expensive(spec.body[i].op) && plan.varies(i, plan.vector)) {
        if (first_pass[i] < 0) {
          first_pass[i] = pass;
          ++expensive_counts[pass];
        } else {
          if (plan.stashes[i] < 0) plan.stashes[i] = plan.stash_count++;
          plan.stash_passes[i] = first_pass[i];
          continue;  // later passes read it instead of its operands
        }
      }
      for (int k = 0; k < row_of(spec.body[i].op).arity; ++k) is_needed[spec.body[i].operands[k]] = 1;
    }
  }
  for (int pass = 1; pass < static_cast<int>(plan.passes.size()); ++pass)
    if (pass == 1 || expensive_counts[pass] >= expensive_counts[plan.prefetch_pass]) plan.prefetch_pass = pass;
}

}  // namespace

std::vector<const LoopDim*> LoopPlan::dims() const {
  std::vector<const LoopDim*> all;
  for (const LoopDim& dim : kept) all.push_back(&dim);
  for (const LoopDim& dim : reduced) all.push_back(&dim);
  all.push_back(&vector);
  return all;
}

int64_t LoopPlan::stride(const KernelSpec& spec, int buffer, const LoopDim& dim) const {
  return dim.sources.empty() ? 0 : spec.buffers[buffer].strides[dim.sources.back()];
}

bool LoopPlan::varies(ValueId value, const LoopDim& dim) const {
  for (int source : dim.sources) {
    if (facts[value].varies >> source & 1) return true;
  }
  return false;
}

LoopPlan make_plan(const KernelSpec& spec) {
  LoopPlan plan;
  plan.reduced_mask = spec.reduced_mask();
  plan.has_totals = spec.has_totals();
  plan.facts = find_facts(spec);
  split_dims(spec, plan);
  place_in_passes(spec, plan);
  find_slots(spec, plan);
  find_stashes(spec, plan);
  return plan;
}

}  // namespace lockstep::dynamic::jit
