// One reserved range of addresses; `owns` is a comparison. Small blocks come from slabs by size class, large ones from
// a best-fit list with splitting and coalescing, so that a steady state reuses the same pages whatever the sizes are.
// In front of that list free blocks rest by their size, uncoalesced, as long as nobody asks for what is not there.
#include "dynamic/vm/allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <bit>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

#include "dynamic/vm/memory_log.h"

namespace lockstep::dynamic {

namespace {

constexpr size_t kRange = size_t{1} << 40;  // addresses only, no memory
constexpr size_t kAlignment = 64;
constexpr size_t kSmallLimit = 32 << 10;
constexpr size_t kSlab = 256 << 10;
constexpr size_t kLargeGrain = 4096;

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

}  // namespace

struct Pool::State {
  std::mutex mutex;
  char* begin = nullptr;
  char* top = nullptr;  // of the part handed out so far
  std::array<std::vector<void*>, kClasses> small_free;
  std::vector<uint8_t> slab_class;  // by slab number: 1 + the class; 0: no slab
  std::unordered_map<size_t, std::vector<char*>> resting;  // large blocks by size
  size_t resting_count = 0;
  std::map<char*, size_t> free_by_address;
  std::set<std::pair<size_t, char*>> free_by_size;
  std::unordered_map<void*, size_t> large_used;
  PoolStatistics statistics;

  char* extend(size_t bytes) {
    if (!begin || top + bytes > begin + kRange) return nullptr;
    char* block = top;
    top += bytes;
    statistics.reserved_bytes += bytes;
    return block;
  }
  void add_free(char* block, size_t bytes) {
    free_by_address.emplace(block, bytes);
    free_by_size.emplace(bytes, block);
  }
  void remove_free(std::map<char*, size_t>::iterator it) {
    free_by_size.erase({it->second, it->first});
    free_by_address.erase(it);
  }
  size_t slab_number(const void* data) const { return (static_cast<const char*>(data) - begin) / kSlab; }
  void* allocate_small(size_t index) {
    auto& free = small_free[index];
    if (free.empty()) {
      char* slab = take_large(kSlab, kSlab);
      if (!slab) return nullptr;
      const size_t number = slab_number(slab), bytes = class_size(index);
      if (number >= slab_class.size()) slab_class.resize(number + 1);
      slab_class[number] = static_cast<uint8_t>(1 + index);
      for (size_t at = kSlab / bytes; at > 0; --at) free.push_back(slab + (at - 1) * bytes);
    }
    void* block = free.back();
    free.pop_back();
    return block;
  }
  char* allocate_large(size_t bytes) {
    auto& same = resting[bytes];
    if (same.empty()) return take_large(bytes, kLargeGrain);
    char* block = same.back();
    same.pop_back();
    --resting_count;
    return block;
  }
  void rest_large(char* block, size_t bytes) {
    resting[bytes].push_back(block);
    ++resting_count;
  }
  void coalesce_resting() {
    for (auto& [bytes, blocks] : resting)
      for (char* block : blocks) give_large(block, bytes);
    resting.clear();
    resting_count = 0;
  }
  char* take_large(size_t bytes, size_t alignment) {
    if (char* block = take_free(bytes, alignment)) return block;
    if (resting_count > 0) {
      coalesce_resting();
      if (char* block = take_free(bytes, alignment)) return block;
    }
    char* start = reinterpret_cast<char*>(round_up(reinterpret_cast<uintptr_t>(top), alignment));
    if (start > top)
      if (char* gap = extend(start - top)) add_free(gap, start - gap);
    return extend(bytes);
  }
  char* take_free(size_t bytes, size_t alignment) {
    for (auto it = free_by_size.lower_bound({bytes, nullptr}); it != free_by_size.end(); ++it) {
      auto [size, block] = *it;
      char* aligned = reinterpret_cast<char*>(round_up(reinterpret_cast<uintptr_t>(block), alignment));
      if (aligned + bytes > block + size) continue;
      remove_free(free_by_address.find(block));
      if (aligned > block) add_free(block, aligned - block);
      if (char* end = aligned + bytes; end < block + size) add_free(end, block + size - end);
      return aligned;
    }
    return nullptr;
  }
  void give_large(char* block, size_t bytes) {
    auto after = free_by_address.lower_bound(block);
    if (after != free_by_address.end() && block + bytes == after->first) {
      bytes += after->second;
      remove_free(after);
    }
    auto before = free_by_address.lower_bound(block);
    if (before != free_by_address.begin()) {
      --before;
      if (before->first + before->second == block) {
        block = before->first;
        bytes += before->second;
        remove_free(before);
      }
    }
    add_free(block, bytes);
  }
};

Pool::Pool() : state_(new State) {
  void* range = mmap(nullptr, kRange, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) return;
  state_->begin = reinterpret_cast<char*>(round_up(reinterpret_cast<uintptr_t>(range), kSlab));
  state_->top = state_->begin;
}

Pool& Pool::instance() {
  static auto* pool = new Pool;  // outlives static destruction: tensors may still be held
  return *pool;
}

void* Pool::allocate(size_t bytes) {
  std::lock_guard lock(state_->mutex);
  const bool small = bytes <= kSmallLimit;
  const size_t index = small ? class_of(bytes) : 0;
  const size_t size = small ? class_size(index) : round_up(bytes, kLargeGrain);
  void* block = small ? state_->allocate_small(index) : state_->allocate_large(size);
  if (!block) return nullptr;
  if (!small) state_->large_used.emplace(block, size);
  auto& statistics = state_->statistics;
  statistics.used_bytes += size;
  statistics.peak_used_bytes = std::max(statistics.peak_used_bytes, statistics.used_bytes);
  return block;
}

void Pool::deallocate(void* data) {
  std::lock_guard lock(state_->mutex);
  const size_t number = state_->slab_number(data);
  if (number < state_->slab_class.size() && state_->slab_class[number] > 0) {
    const size_t index = state_->slab_class[number] - 1;
    state_->statistics.used_bytes -= class_size(index);
    state_->small_free[index].push_back(data);
    return;
  }
  const auto large = state_->large_used.find(data);
  state_->statistics.used_bytes -= large->second;
  state_->rest_large(static_cast<char*>(data), large->second);
  state_->large_used.erase(large);
}

bool Pool::owns(const void* data) const {
  const auto* address = static_cast<const char*>(data);
  return state_->begin && address >= state_->begin && address < state_->begin + kRange;
}

PoolStatistics Pool::statistics() {
  std::lock_guard lock(state_->mutex);
  return state_->statistics;
}

void Pool::reset_peak() {
  std::lock_guard lock(state_->mutex);
  state_->statistics.peak_used_bytes = state_->statistics.used_bytes;
}

void Pool::release_free_pages() {
  std::lock_guard lock(state_->mutex);
  state_->coalesce_resting();
  for (const auto& [block, bytes] : state_->free_by_address) {
    char* begin = reinterpret_cast<char*>(round_up(reinterpret_cast<uintptr_t>(block), kLargeGrain));
    if (begin < block + bytes) madvise(begin, block + bytes - begin, MADV_DONTNEED);
  }
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

PoolScope::PoolScope() : before_(t_in_pool) { t_in_pool = true; }
PoolScope::~PoolScope() { t_in_pool = before_; }

void enable_pool(bool on) { pool_enabled.store(on); }

void install_pool() {
  static auto* allocator = new PoolAllocator;
  c10::SetCPUAllocator(allocator, /*priority=*/100);
}

}  // namespace lockstep::dynamic
