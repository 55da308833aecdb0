// A compiled kernel, and how it is called.
#pragma once

#include <bit>
#include <cstdint>
#include <memory>
#include <span>

#include "dynamic/jit/call_words.h"
#include "dynamic/jit/object_code.h"

namespace lockstep::dynamic::jit {

// Either member, by the type of the scalar: floating types are given as double.
union ScalarValue {
  double real;
  int64_t whole;
};

// The buffer of a call whose spec says packed: where bit 0 is. Memory goes on for kPackedMargin bytes beyond the last bit.
inline constexpr int64_t kPackedMargin = 8;
inline void* address_of_bit(const void* memory, int64_t bit) {
  return std::bit_cast<void*>(std::bit_cast<uintptr_t>(memory) * 8 + static_cast<uintptr_t>(bit));
}

// What a call brings. Sizes and strides are those that the spec has as symbolic: sizes in the order of dims, strides
// in the order of buffers, then dims.
struct KernelCall {
  std::span<void* const> buffers;
  std::span<const int64_t> sizes = {};
  std::span<const int64_t> strides = {};
  std::span<const ScalarValue> scalars = {};
};

class Kernel {
 public:
  Kernel(KernelSpec spec, LoopPlan plan, std::unique_ptr<LinkedObject> object);

  ~Kernel();
  // Runs on the calling thread and ATen's workers. Any number of threads may be in it. The results do not depend on
  // the number of threads.
  void run(const KernelCall& call) const;

  // For calls that come again: everything that follows from sizes and strides, once; then buffers and scalars alone.
  struct Prepared;
  std::shared_ptr<const Prepared> prepare_calls(const KernelCall& call) const;
  void run(const Prepared& prepared, std::span<void* const> buffers, std::span<const ScalarValue> scalars) const;

  // False if the object lacks a function: it is not a kernel of this spec.
  bool is_complete() const;
  const KernelSpec& spec() const { return spec_; }

 private:
  Prepared prepare(const KernelCall& call) const;  // everything that follows from sizes and strides
  void bind(Prepared& prepared, std::span<void* const> buffers, std::span<const ScalarValue> scalars) const;
  size_t scratch_bytes(const Prepared& prepared) const;  // of a thread that runs items
  void run_items(const Prepared& prepared) const;
  void run_items_with_totals(const Prepared& prepared) const;
  void run_split(Prepared& prepared) const;

  KernelSpec spec_;
  LoopPlan plan_;
  CallLayout layout_;
  ScratchLayout scratch_;
  std::unique_ptr<LinkedObject> object_;
  KernelFunction run_ = nullptr;
  std::vector<KernelFunction> passes_;
  std::vector<KernelFunction> finishes_;
  std::unique_ptr<const Prepared> static_call_;  // where all sizes and strides are the spec's
};

}  // namespace lockstep::dynamic::jit
