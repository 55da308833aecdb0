#include "dynamic/shapes/shape_memo.h"

#include <atomic>
#include <mutex>
#include <unordered_map>

#include "dynamic/threads/fork_guard.h"

namespace lockstep::dynamic {

struct ShapeMemo::State {
  mutable std::mutex mutex;
  std::unordered_multimap<uint64_t, std::unique_ptr<graph::Signature>> by_hash;
  std::atomic<uint64_t> epoch{1};

  const graph::Signature* find_locked(const graph::OpInfo& op, const graph::SignatureWords& words, uint64_t hash) const;
};

ShapeMemo::ShapeMemo() : state_(new State) { hold_across_fork(ForkRank::kShapes, state_->mutex); }

ShapeMemo& ShapeMemo::instance() {
  static auto* memo = new ShapeMemo;
  return *memo;
}

const graph::Signature* ShapeMemo::State::find_locked(const graph::OpInfo& op, const graph::SignatureWords& words,
                                                      uint64_t hash) const {
  auto [begin, end] = by_hash.equal_range(hash);
  for (auto it = begin; it != end; ++it)
    if (it->second->op == &op && it->second->words == words) return it->second.get();
  return nullptr;
}

const graph::Signature* ShapeMemo::find(const graph::OpInfo& op, const graph::SignatureWords& words,
                                        uint64_t hash) {
  std::lock_guard lock(state_->mutex);
  return state_->find_locked(op, words, hash);
}

const graph::Signature* ShapeMemo::insert(std::unique_ptr<graph::Signature> signature) {
  std::lock_guard lock(state_->mutex);
  const auto hash = signature->hash;
  if (const auto* known = state_->find_locked(*signature->op, signature->words, hash)) return known;
  return state_->by_hash.emplace(hash, std::move(signature))->second.get();
}

uint64_t ShapeMemo::epoch() const { return state_->epoch.load(std::memory_order_relaxed); }

size_t ShapeMemo::count() const {
  std::lock_guard lock(state_->mutex);
  return state_->by_hash.size();
}

void ShapeMemo::forget_if_large(size_t max_count) {
  std::lock_guard lock(state_->mutex);
  if (state_->by_hash.size() <= max_count) return;
  state_->by_hash.clear();
  state_->epoch.fetch_add(1);
}

}  // namespace lockstep::dynamic
