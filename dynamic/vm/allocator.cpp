// One reserved range of addresses in two parts; `owns` is a comparison. Small blocks come from slabs by size class, others
// from a best-fit list with splitting and coalescing: a steady state reuses the same pages whatever the sizes are. Where new
// addresses are needed, free blocks give up as many pages.
#include "dynamic/vm/allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dynamic/threads/fork_guard.h"
#include "dynamic/vm/memory_log.h"

namespace lockstep::dynamic {

namespace {

constexpr size_t kRange = size_t{1} << 40, kSlabRange = size_t{1} << 38;  // addresses only, no memory
constexpr size_t kAlignment = 64;
constexpr size_t kSmallLimit = 32 << 10;
constexpr size_t kSlab = 256 << 10;
constexpr size_t kGrain = 4096;
constexpr size_t kLarge = 1 << 20, kMuchSmaller = 16;
constexpr size_t kKnownSizes = 256;
constexpr size_t kWorthwhile = 64 << 10;  // pages given up at once; smaller blocks do not matter
constexpr size_t kShareAhead = 8, kBytesAhead = 64 << 20;  // part of what was in use at rest, and more, that may be ahead

thread_local bool t_is_at_rest = false, t_is_far_ahead = false;

size_t round_up(size_t bytes, size_t grain) { return (bytes + grain - 1) / grain * grain; }

// 64, 128, ..., 1024, then four classes a doubling
constexpr size_t kEvenLimit = 1024;
constexpr size_t kEvenClasses = kEvenLimit / kAlignment;
constexpr size_t kClasses = kEvenClasses + 4 * 5;

size_t class_of(size_t bytes) {
  if (bytes <= kEvenLimit) return bytes ? (bytes - 1) / kAlignment : 0;
  const int doubling = std::bit_width((bytes - 1) / kEvenLimit) - 1;  // bytes lie in (1024 << d, 2048 << d]
  const size_t base = kEvenLimit << doubling;
  return kEvenClasses + 4 * doubling + (bytes - base - 1) / (base / 4);
}

size_t class_size(size_t index) {
  if (index < kEvenClasses) return (index + 1) * kAlignment;
  const size_t base = kEvenLimit << ((index - kEvenClasses) / 4);
  return base + (1 + (index - kEvenClasses) % 4) * (base / 4);
}

// Addresses from which blocks are cut; best fit, free neighbours become one at once.
struct Area {
  struct Free {
    size_t bytes;
    bool has_pages;  // perhaps
  };
  char *top = nullptr, *end = nullptr;  // of the part handed out so far, of all
  std::map<char*, Free> free_by_address;
  std::set<std::pair<size_t, char*>> free_by_size;
  std::set<size_t> large_sizes;  // that were asked for

  void add_free(char* block, size_t bytes, bool has_pages) {
    free_by_address.emplace(block, Free{bytes, has_pages});
    free_by_size.emplace(bytes, block);
  }
  void remove_free(std::map<char*, Free>::iterator it) {
    free_by_size.erase({it->second.bytes, it->first});
    free_by_address.erase(it);
  }
  // A hole that a large block left, and the next one like it will fill, is not broken for something small.
  bool is_kept(size_t hole, size_t bytes) const {
    return hole >= kLarge && bytes < hole / kMuchSmaller && large_sizes.contains(hole);
  }
  char* take_free(size_t bytes) {
    auto it = free_by_size.lower_bound({bytes, nullptr});
    while (it != free_by_size.end() && is_kept(it->first, bytes)) it = free_by_size.lower_bound({it->first + 1, nullptr});
    if (it == free_by_size.end()) return nullptr;
    auto [size, block] = *it;
    const auto free = free_by_address.find(block);
    const bool has_pages = free->second.has_pages;
    remove_free(free);
    if (bytes < size) add_free(block + bytes, size - bytes, has_pages);
    return block;
  }
  // The block that is free at the end, if it is not large enough.
  std::map<char*, Free>::iterator find_begun(size_t bytes) {
    if (free_by_address.empty()) return free_by_address.end();
    const auto last = std::prev(free_by_address.end());
    const bool is_begun = last->first + last->second.bytes == top && last->second.bytes < bytes;
    return is_begun ? last : free_by_address.end();
  }
  // With new addresses; `grown` is how many.
  char* extend(size_t bytes, size_t* grown) {
    const auto begun = find_begun(bytes);
    const bool is_begun = begun != free_by_address.end();
    *grown = bytes - (is_begun ? begun->second.bytes : 0);
    if (*grown > static_cast<size_t>(end - top)) return nullptr;
    if (is_begun) remove_free(begun);
    top += *grown;
    return top - bytes;
  }
  void note_size(size_t bytes) {
    if (bytes < kLarge) return;
    if (large_sizes.size() >= kKnownSizes) large_sizes.clear();
    large_sizes.insert(bytes);
  }
  void give_back(char* block, size_t bytes) {
    auto after = free_by_address.lower_bound(block);
    if (after != free_by_address.end() && block + bytes == after->first) {
      bytes += after->second.bytes;
      remove_free(after);
    }
    auto before = free_by_address.lower_bound(block);
    if (before != free_by_address.begin()) {
      --before;
      if (before->first + before->second.bytes == block) {
        block = before->first;
        bytes += before->second.bytes;
        remove_free(before);
      }
    }
    add_free(block, bytes, /*has_pages=*/true);
  }
  // Of free blocks, the largest first.
  void give_up_pages(size_t bytes) {
    for (auto it = free_by_size.rbegin(); bytes >= kWorthwhile && it != free_by_size.rend(); ++it) {
      auto& free = free_by_address.at(it->second);
      if (free.bytes < kWorthwhile) break;
      if (!free.has_pages) continue;
      madvise(it->second, free.bytes, MADV_DONTNEED);
      free.has_pages = false;
      bytes -= std::min(bytes, free.bytes);
    }
  }
};

}  // namespace

// The pool's range is promised without asking the system, so that what is far too much would seem to be there, until
// somebody touches it and the process is killed.
bool system_has(size_t bytes) {
  if (bytes < kAskedOfSystem) return true;
  void* probe = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (probe == MAP_FAILED) return false;
  munmap(probe, bytes);
  return true;
}

struct Pool::State {
  std::mutex mutex;
  char* begin = nullptr;
  Area blocks;
  char *slabs = nullptr, *slabs_top = nullptr, *slabs_end = nullptr;
  std::array<std::vector<void*>, kClasses> small_free;
  std::vector<uint8_t> slab_class;  // by slab number
  struct Used {
    size_t bytes, asked;
  };
  std::unordered_map<void*, Used> used;  // all but small ones
  PoolStatistics statistics;
  size_t span_peak = 0;
  size_t peak_at_rest = 0;  // while nothing was asked for that had not been done

  size_t slab_number(const void* data) const { return (static_cast<const char*>(data) - slabs) / kSlab; }
  char* extend_slabs() {
    if (slabs_top == slabs_end) return nullptr;
    statistics.reserved_bytes += kSlab;
    return std::exchange(slabs_top, slabs_top + kSlab);
  }
  void* allocate_small(size_t index) {
    auto& free = small_free[index];
    if (free.empty()) {
      char* slab = extend_slabs();
      if (!slab) return nullptr;
      const size_t bytes = class_size(index);
      slab_class.push_back(static_cast<uint8_t>(index));
      for (size_t at = kSlab / bytes; at > 0; --at) free.push_back(slab + (at - 1) * bytes);
    }
    void* block = free.back();
    free.pop_back();
    return block;
  }
  void* allocate_other(size_t asked) {
    const size_t bytes = round_up(asked, kGrain);
    blocks.note_size(bytes);
    char* block = blocks.take_free(bytes);
    if (size_t grown = 0; !block && system_has(bytes) && (block = blocks.extend(bytes, &grown))) {
      blocks.give_up_pages(grown);
      statistics.reserved_bytes += grown;
    }
    if (block) used.emplace(block, Used{bytes, asked});
    return block;
  }
};

Pool::Pool() : state_(new State) {
  hold_across_fork(ForkRank::kPool, state_->mutex);
  void* range = mmap(nullptr, kRange, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) return;
  char* begin = reinterpret_cast<char*>(round_up(reinterpret_cast<uintptr_t>(range), kSlab));
  state_->begin = begin;
  state_->blocks.top = begin;
  state_->blocks.end = state_->slabs = state_->slabs_top = begin + kRange - kSlabRange - kSlab;
  state_->slabs_end = state_->slabs + kSlabRange;
}

Pool& Pool::instance() {
  static auto* pool = new Pool;  // outlives static destruction: tensors may still be held
  return *pool;
}

void* Pool::allocate(size_t bytes) {
  std::lock_guard lock(state_->mutex);
  const bool small = bytes <= kSmallLimit;
  const size_t index = small ? class_of(bytes) : 0;
  void* block = small ? state_->allocate_small(index) : state_->allocate_other(bytes);
  if (!block) return nullptr;
  auto& statistics = state_->statistics;
  statistics.used_bytes += small ? class_size(index) : bytes;
  statistics.peak_used_bytes = std::max(statistics.peak_used_bytes, statistics.used_bytes);
  auto& usual = state_->peak_at_rest;
  if (t_is_at_rest) usual = std::max(usual, statistics.used_bytes);
  t_is_far_ahead |= bytes >= kWorthwhile && statistics.used_bytes > usual + usual / kShareAhead + kBytesAhead;
  state_->span_peak = std::max(state_->span_peak, statistics.used_bytes);
  return block;
}

void Pool::deallocate(void* data) {
  std::lock_guard lock(state_->mutex);
  if (data >= state_->slabs) {
    const size_t index = state_->slab_class[state_->slab_number(data)];
    state_->statistics.used_bytes -= class_size(index);
    state_->small_free[index].push_back(data);
    return;
  }
  const auto block = state_->used.find(data);
  const auto [bytes, asked] = block->second;
  state_->statistics.used_bytes -= asked;
  state_->blocks.give_back(static_cast<char*>(data), bytes);
  state_->used.erase(block);
}

bool Pool::owns(const void* data) const {
  const auto* address = static_cast<const char*>(data);
  return state_->begin && address >= state_->begin && address < state_->slabs_end;
}

PoolStatistics Pool::statistics() {
  std::lock_guard lock(state_->mutex);
  return state_->statistics;
}

void Pool::reset_peak() {
  std::lock_guard lock(state_->mutex);
  state_->statistics.peak_used_bytes = state_->statistics.used_bytes;
}

size_t Pool::begin_span() {
  std::lock_guard lock(state_->mutex);
  return state_->span_peak = state_->statistics.used_bytes;
}

size_t Pool::span_peak() {
  std::lock_guard lock(state_->mutex);
  return std::max(state_->span_peak, state_->statistics.used_bytes);
}

void Pool::note_rest() {
  std::lock_guard lock(state_->mutex);
  state_->peak_at_rest = std::max(state_->peak_at_rest, state_->statistics.used_bytes);
}

void Pool::release_free_pages() {
  std::lock_guard lock(state_->mutex);
  state_->blocks.give_up_pages(SIZE_MAX);
}

namespace {

thread_local bool t_in_pool = false;
std::atomic<bool> pool_enabled{true};

void give_back(void* data) {
  if (!data) return;
  if (memory_log::was_on.load(std::memory_order_relaxed)) memory_log::note_freed(data);
  if (Pool::instance().owns(data)) return Pool::instance().deallocate(data);
  c10::GetDefaultCPUAllocator()->raw_deallocate(data);
}

class PoolAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const bool is_counted = bytes > 0 && memory_log::is_on.load(std::memory_order_relaxed);
    void* data = nullptr;
    if (t_in_pool && bytes > 0 && pool_enabled.load(std::memory_order_relaxed)) data = Pool::instance().allocate(bytes);
    if (!data && !is_counted) return c10::GetDefaultCPUAllocator()->allocate(bytes);
    if (!data) data = c10::GetDefaultCPUAllocator()->raw_allocate(bytes);
    if (is_counted) memory_log::note_allocated(data, bytes);
    return {data, data, &give_back, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

}  // namespace

PoolScope::PoolScope(PoolUse use) : was_in_pool_(t_in_pool), was_at_rest_(t_is_at_rest) {
  t_in_pool = true;
  t_is_at_rest = use == PoolUse::kAtRest;
  t_is_far_ahead = false;
}
PoolScope::~PoolScope() {
  t_in_pool = was_in_pool_;
  t_is_at_rest = was_at_rest_;
}
bool PoolScope::is_far_ahead() const { return t_is_far_ahead; }

void enable_pool(bool on) { pool_enabled.store(on); }

void install_pool() {
  static auto* allocator = new PoolAllocator;
  c10::SetCPUAllocator(allocator, /*priority=*/100);
}

}  // namespace lockstep::dynamic
