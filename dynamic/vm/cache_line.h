// Two threads that write to one cache line wait for each other, even where they mean different objects.
#pragma once

#include <cstddef>

namespace lockstep::dynamic {

constexpr size_t kCacheLine = 64;

// The line will be written soon: it is fetched from the other core's cache meanwhile.
inline void prefetch_to_write(const void* line) { asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line))); }

}  // namespace lockstep::dynamic
