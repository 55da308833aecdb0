#include "coexec/way_memory.h"

#include <ATen/Parallel.h>

#include "coexec/function.h"
#include "dynamic/jit/disk_cache.h"
#include "dynamic/threads/cores.h"

namespace lockstep::coexec {

namespace {

constexpr int64_t kWays = 33;  // of problems; those of kernels have other numbers

int64_t rough_elements(const graph::Signature& signature) {
  int64_t elements = 0;
  for (const auto* layouts : {&signature.inputs, &signature.outputs})
    for (const auto& layout : *layouts)
      if (layout.is_defined()) elements += layout.numel();
  return dynamic::rough_size(elements);
}

}  // namespace

dynamic::Problem way_problem(const Function& function) {
  graph::SignatureWords words;
  for (const auto& node : function.graph.nodes()) {
    if (!node->op) continue;
    words.push_back(static_cast<int64_t>(dynamic::jit::hash_bytes(node->op->name, 0)));
    words.push_back(node->signature ? rough_elements(*node->signature) : 0);
  }
  const auto ops = static_cast<int64_t>(graph::hash_words(words));
  return {kWays, ops, function.is_strict, function.fuses, function.waits_for_errors, at::get_num_threads(),
          dynamic::has_one_core(), function.adapts_workers, function.rounds_products, function.passes.bits()};
}

std::optional<Way> remembered_way(const dynamic::Problem& problem) {
  const int way = dynamic::choice_for(problem).settled_way();
  if (way < 0 || way >= kWayCount) return std::nullopt;
  return static_cast<Way>(way);
}

void remember_way(const dynamic::Problem& problem, Way way) {
  dynamic::choice_for(problem).settle(static_cast<int>(way));
  dynamic::remember_choice(problem, static_cast<int>(way));
}

}  // namespace lockstep::coexec
