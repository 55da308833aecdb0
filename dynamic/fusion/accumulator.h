// What is added to a total as soon as it is made, as gradients are. Of products, what is added is in registers or in the
// cache then; of selections and slices of a larger tensor, all that is zero need not be made, nor be added. The bits are the
// same either way, since which events wait together is chance.
#pragma once

#include <c10/util/ArrayRef.h>

#include <array>
#include <optional>

#include "dynamic/vm/event.h"

namespace lockstep::dynamic {

constexpr size_t kLookAhead = 6;  // events after what is added

// The totals of the last sums that hold no -0.0, so that to add zeros to them changes nothing; as long as denormals are not
// flushed, for then it does.
class TotalsWithoutMinusZero {
 public:
  // `accesses`: how often memory may have been written by others until now. What was noted before that is forgotten.
  void renew(uint64_t accesses);
  void note(const StorageRef& total);
  bool has(const StorageRef& total) const;
  // Forgets the totals that the event touches.
  void forget_touched(const Event& event);

 private:
  using WeakRef = c10::weak_intrusive_ptr<c10::StorageImpl>;  // so that no other one has its address
  std::array<std::optional<WeakRef>, 8> totals_;
  size_t next_ = 0;
  bool is_empty_ = true;
  uint64_t accesses_ = 0;
};

// Whether the event makes something that may be added to a total at once.
bool may_accumulate(const Event& made);
// Of the events `after` it, in their order, the one that adds it to a total, if that may happen now, before those between,
// and nobody else will ever see what is added; else null.
Event* find_sum(const Event& made, at::ArrayRef<Event*> after);
// Does both, and marks the sum as done; else nothing has been computed. Throws what a kernel throws.
bool try_accumulate(Event& made, Event& sum, TotalsWithoutMinusZero& totals);

}  // namespace lockstep::dynamic
