// Products that are added to a total as soon as they are made, as gradients are: what is added is in registers or in the
// cache then. The bits are the same either way, since which events wait together is chance.
#pragma once

#include <c10/util/ArrayRef.h>

#include "dynamic/vm/event.h"

namespace lockstep::dynamic {

constexpr size_t kLookAhead = 6;  // events after a product

// Whether the event makes a product that may be added to a total at once.
bool may_accumulate(const Event& product);
// Of the events `after` it, in their order, the one that adds it to a total, if that may happen now, before those between,
// and nobody else will ever see the product; else null.
Event* find_sum(const Event& product, at::ArrayRef<Event*> after);
// Does both, and marks the sum as done; else nothing has been computed. Throws what a kernel throws.
bool try_accumulate(Event& product, Event& sum);

}  // namespace lockstep::dynamic
