#include "dynamic/jit/kernel.h"

#include <ATen/ceil_div.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>

#include "dynamic/jit/call_shape.h"
#include "dynamic/threads/shared_loop.h"

namespace lockstep::dynamic::jit {
namespace {

constexpr int64_t kGrainElements = 32768;  // what one thread should have at least

// Memory of one thread that stays; only ever grows.
class Scratch {
 public:
  ~Scratch() { std::free(data_); }
  char* take(size_t bytes) {
    if (bytes > size_) {
      std::free(data_);
      size_ = 0;
      const size_t wanted = (bytes + 4095) & ~size_t{4095};
      data_ = static_cast<char*>(std::aligned_alloc(64, wanted));
      TORCH_CHECK(data_, "kernel: no memory for ", bytes, " bytes of scratch");
      size_ = wanted;
    }
    return data_;
  }

 private:
  char* data_ = nullptr;
  size_t size_ = 0;
};

char* take_scratch(size_t bytes) {
  thread_local Scratch scratch;
  return scratch.take(bytes);
}

// Of one call: from where tensors come from, which keeps its pages, and counts them.
c10::DataPtr create_block(size_t bytes) { return c10::GetCPUAllocator()->allocate(bytes); }

constexpr int kMaxLineShift = 5;      // 32 rows, each added to those before it
constexpr int64_t kFewestLines = 16;  // where there are so many rows

int find_line_shift(int64_t rows, int64_t columns) {
  int shift = 0;
  if (rows * columns < 2 * kGrainElements) {  // for one thread
    while (shift < kMaxLineShift && int64_t{1} << shift < rows) ++shift;
    return shift;
  }
  while (shift < kMaxLineShift && rows >> (shift + 1) >= kFewestLines) ++shift;
  return shift;
}

constexpr int64_t kMaxBlockLines = 16;
constexpr int64_t kFewestBlocks = 8;  // for threads to share, where there are so many lines

// How many lines are added up by one thread: by their number alone, so that results do not depend on threads.
int64_t find_block_lines(int64_t lines) {
  int64_t block_lines = 1;
  while (block_lines < kMaxBlockLines && lines >= 2 * block_lines * kFewestBlocks) block_lines *= 2;
  return block_lines;
}

template <typename Number>
void add_to(double* sums, const Number* values, int64_t columns) {
  for (int64_t column = 0; column < columns; ++column) sums[column] += values[column];
}

// Each column by itself, the rows as a tree: float64 has nothing wider to add up in. Further down than `sums` is scratch.
void add_columns(const double* values, int64_t rows, int64_t pitch, int64_t columns, double* sums) {
  constexpr int64_t kInARow = 16;
  if (rows <= kInARow) {
    std::fill_n(sums, columns, 0.0);
    for (int64_t row = 0; row < rows; ++row) add_to(sums, values + row * pitch, columns);
    return;
  }
  const int64_t half = rows / 2;
  double* others = sums + columns;
  add_columns(values, half, pitch, columns, sums);
  add_columns(values + half * pitch, rows - half, pitch, columns, others);
  add_to(sums, others, columns);
}

double add_tree(std::vector<double>& values) {
  for (size_t count = values.size(); count > 1; count = (count + 1) / 2)
    for (size_t i = 0; i < count / 2; ++i) values[i] += values[count - 1 - i];
  return values[0];
}

// One total of a kernel: what its rows add up to, a value for each column, or one for all.
struct RowTotal {
  const Buffer& buffer;
  int word;  // of the call, which says where lines are
  void* target;
  int64_t stride;     // of the target
  int64_t line_from;  // in the scratch of a thread, in bytes
  double* blocks;     // what the lines of each come to

  void add_line(const char* lines, int64_t block, int64_t columns) const {
    double* sums = blocks + block * columns;
    if (buffer.type == DType::kFloat32) return add_to(sums, std::bit_cast<const float*>(lines + line_from), columns);
    add_to(sums, std::bit_cast<const double*>(lines + line_from), columns);
  }

  void store(int64_t block_count, int64_t rows, int64_t columns) const {
    std::vector<double> sums(columns);
    shared_loop(0, columns, std::max<int64_t>(1, kGrainElements / block_count), [&](int64_t begin, int64_t end) {
      const int64_t width = end - begin;
      std::vector<double> levels(width * (1 + std::bit_width(static_cast<uint64_t>(block_count))));
      add_columns(blocks + begin, block_count, columns, width, levels.data());
      std::copy_n(levels.begin(), width, sums.begin() + begin);
    });
    if (stride == 0) sums.assign(1, add_tree(sums));
    const int64_t points = rows * (stride ? 1 : columns);
    const double divisor = buffer.total == Total::kSum ? 1 : static_cast<double>(points);
    for (size_t column = 0; column < sums.size(); ++column) {
      const int64_t at = static_cast<int64_t>(column) * stride;
      if (buffer.type == DType::kFloat32) {
        static_cast<float*>(target)[at] = static_cast<float>(sums[column] / divisor);
      } else {
        static_cast<double*>(target)[at] = sums[column] / divisor;
      }
    }
  }
};

}  // namespace

struct Kernel::Prepared {
  std::vector<int64_t> words;
  CallShape shape;
  int64_t slot_bytes = 8;
  int64_t stash_bytes = 0;
  int64_t item_elements = 1;  // points of an item
  bool may_stream = true;     // as far as strides go
};

Kernel::~Kernel() = default;

Kernel::Kernel(KernelSpec spec, LoopPlan plan, std::unique_ptr<LinkedObject> object)
    : spec_(std::move(spec)),
      plan_(std::move(plan)),
      layout_(spec_, plan_),
      scratch_(plan_),
      object_(std::move(object)) {
  auto is_symbolic = [](const std::vector<int64_t>& list) {
    return std::find(list.begin(), list.end(), kSymbolic) != list.end();
  };
  bool is_static = !is_symbolic(spec_.sizes);
  for (const Buffer& buffer : spec_.buffers) is_static &= !is_symbolic(buffer.strides);
  if (is_static) static_call_ = std::make_unique<const Prepared>(prepare({}));
  CallModes modes = find_call_modes(plan_);
  if (modes.may_run_items) run_ = object_->find(kRunName);
  if (!modes.may_split) return;
  for (int pass = 0; pass < static_cast<int>(plan_.passes.size()); ++pass) {
    passes_.push_back(object_->find("pass" + std::to_string(pass)));
    if (pass < plan_.level_count) finishes_.push_back(object_->find("finish" + std::to_string(pass)));
  }
}

bool Kernel::is_complete() const {
  CallModes modes = find_call_modes(plan_);
  auto has_all = [](const std::vector<KernelFunction>& functions) {
    return std::find(functions.begin(), functions.end(), nullptr) == functions.end();
  };
  return (run_ || !modes.may_run_items) && has_all(passes_) && has_all(finishes_);
}

Kernel::Prepared Kernel::prepare(const KernelCall& call) const {
  std::vector<int64_t> sizes = spec_.sizes;
  size_t next = 0;
  for (int64_t& size : sizes) {
    if (size == kSymbolic) size = call.sizes[next++];
  }
  TORCH_INTERNAL_ASSERT(next == call.sizes.size());
  std::vector<std::vector<int64_t>> strides;
  next = 0;
  for (const Buffer& buffer : spec_.buffers) {
    strides.push_back(buffer.strides);
    for (int64_t& stride : strides.back()) {
      if (stride == kSymbolic) stride = call.strides[next++];
    }
  }
  TORCH_INTERNAL_ASSERT(next == call.strides.size());

  Prepared prepared;
  std::vector<const LoopDim*> dims = plan_.dims();
  std::vector<int64_t> loop_sizes;
  for (const LoopDim* dim : dims) {
    loop_sizes.push_back(1);
    for (int source : dim->sources) loop_sizes.back() *= sizes[source];
  }
  prepared.shape = find_call_shape(plan_, loop_sizes);
  const CallShape& shape = prepared.shape;
  prepared.words.assign(layout_.word_count(), 0);
  std::vector<int64_t>& words = prepared.words;
  for (size_t b = 0; b < spec_.buffers.size(); ++b) {
    for (size_t d = 0; d < dims.size(); ++d) {
      int64_t stride = dims[d]->sources.empty() ? 0 : strides[b][dims[d]->sources.back()];
      words[layout_.stride(b, d)] = stride;
      if (spec_.buffers[b].streaming && d + 1 < dims.size() && loop_sizes[d] > 1) {
        prepared.may_stream &= stride * bytes_of(spec_.buffers[b].type) % 64 == 0;
      }
    }
  }
  for (size_t d = 0; d < dims.size(); ++d) words[layout_.size(d)] = loop_sizes[d];
  prepared.slot_bytes = plan_.kind == NestKind::kColumn ? 8 * shape.chunk_size : 8;
  prepared.item_elements = shape.reduced_rows;
  if (plan_.kind == NestKind::kRow) {
    int64_t pitch = (shape.vector_size + kLanes - 1) / kLanes * kLanes + kLanes;
    prepared.stash_bytes = plan_.stash_count ? shape.reduced_rows * pitch * 8 : 0;
    prepared.item_elements *= shape.vector_size;
  } else {
    prepared.item_elements *= std::min(shape.chunk_size, shape.vector_size);
  }
  words[kBlockSize] = shape.block_size;
  words[kBlockCount] = shape.block_count;
  words[kChunkSize] = shape.chunk_size;
  words[kChunkCount] = shape.chunk_count;
  words[kSlotBytes] = prepared.slot_bytes;
  words[kStashBytes] = prepared.stash_bytes;
  words[kTogether] = shape.rows_together;
  words[kRowsAhead] = shape.rows_ahead;
  words[kRowBytes] = scratch_.end() * prepared.slot_bytes + plan_.stash_count * prepared.stash_bytes;
  words[kLineShift] = plan_.has_totals ? find_line_shift(shape.item_count, shape.vector_size) : 0;
  return prepared;
}

void Kernel::bind(Prepared& prepared, std::span<void* const> buffers, std::span<const ScalarValue> scalars) const {
  TORCH_INTERNAL_ASSERT(buffers.size() == spec_.buffers.size() && scalars.size() == spec_.scalars.size());
  bool is_aligned = prepared.may_stream;
  for (size_t b = 0; b < buffers.size(); ++b) {
    prepared.words[layout_.buffer(b)] = std::bit_cast<int64_t>(buffers[b]);
    if (spec_.buffers[b].streaming) is_aligned &= std::bit_cast<uintptr_t>(buffers[b]) % 64 == 0;
  }
  for (size_t s = 0; s < scalars.size(); ++s) {
    prepared.words[layout_.scalar(s)] = std::bit_cast<int64_t>(scalars[s]);
  }
  prepared.words[kStreams] = is_aligned;
}

std::shared_ptr<const Kernel::Prepared> Kernel::prepare_calls(const KernelCall& call) const {
  return std::make_shared<const Prepared>(prepare(call));
}

void Kernel::run(const KernelCall& call) const {
  if (static_call_) return run(*static_call_, call.buffers, call.scalars);
  run(prepare(call), call.buffers, call.scalars);
}

void Kernel::run(const Prepared& known, std::span<void* const> buffers, std::span<const ScalarValue> scalars) const {
  Prepared prepared = known;
  bind(prepared, buffers, scalars);
  if (prepared.shape.item_count == 0) return;
  if (prepared.shape.is_split) {
    run_split(prepared);
  } else if (plan_.has_totals) {
    run_items_with_totals(prepared);
  } else {
    run_items(prepared);
  }
}

size_t Kernel::scratch_bytes(const Prepared& prepared) const {
  return prepared.shape.rows_together * prepared.words[kRowBytes] + 64;
}

void Kernel::run_items(const Prepared& prepared) const {
  const size_t bytes = scratch_bytes(prepared);
  int64_t grain = std::max<int64_t>(1, kGrainElements / std::max<int64_t>(prepared.item_elements, 1));
  shared_loop(0, prepared.shape.item_count, grain,
              [&](int64_t begin, int64_t end) { run_(prepared.words.data(), begin, end, take_scratch(bytes)); });
}

// Rows are added up to a line of some rows, lines to a block: that is what threads share.
void Kernel::run_items_with_totals(const Prepared& prepared) const {
  const CallShape& shape = prepared.shape;
  const int64_t columns = shape.vector_size, rows = shape.item_count;
  const int64_t line_rows = int64_t{1} << prepared.words[kLineShift], line_count = at::ceil_div(rows, line_rows);
  const int64_t block_lines = find_block_lines(line_count), block_count = at::ceil_div(line_count, block_lines);
  const int64_t pitch = at::ceil_div<int64_t>(columns, kLanes) * kLanes;
  std::vector<RowTotal> totals;
  int64_t line_bytes = 0;
  for (int b = 0; b < layout_.buffer_count; ++b) {
    const Buffer& buffer = spec_.buffers[b];
    if (buffer.total == Total::kNone) continue;
    const int word = layout_.buffer(b);
    void* target = std::bit_cast<void*>(prepared.words[word]);
    totals.push_back({buffer, word, target, prepared.words[layout_.stride(b, layout_.dim_count - 1)], line_bytes, nullptr});
    line_bytes += pitch * bytes_of(buffer.type);
  }
  const int64_t sums_of_a_total = block_count * columns;
  const c10::DataPtr sums = create_block(totals.size() * sums_of_a_total * sizeof(double));
  for (size_t i = 0; i < totals.size(); ++i)
    totals[i].blocks = static_cast<double*>(sums.get()) + static_cast<int64_t>(i) * sums_of_a_total;
  const int64_t block_elements = std::max<int64_t>(1, block_lines * line_rows * prepared.item_elements);
  shared_loop(0, block_count, std::max<int64_t>(1, kGrainElements / block_elements), [&](int64_t begin, int64_t end) {
    std::vector<int64_t> words = prepared.words;
    char* lines = take_scratch(line_bytes + scratch_bytes(prepared));  // one of each total
    for (const RowTotal& total : totals) std::fill(total.blocks + begin * columns, total.blocks + end * columns, 0.0);
    for (int64_t line = begin * block_lines; line < std::min(end * block_lines, line_count); ++line) {
      std::memset(lines, 0, line_bytes);
      for (const RowTotal& total : totals)  // the kernel counts lines from the first row of all
        words[total.word] = std::bit_cast<int64_t>(lines + total.line_from) - line * pitch * bytes_of(total.buffer.type);
      run_(words.data(), line * line_rows, std::min((line + 1) * line_rows, rows), lines + line_bytes);
      for (const RowTotal& total : totals) total.add_line(lines, line / block_lines, columns);
    }
  });
  for (const RowTotal& total : totals) total.store(block_count, rows, columns);
}

void Kernel::run_split(Prepared& prepared) const {
  const CallShape& shape = prepared.shape;
  int64_t pairs = shape.item_count * shape.block_count;
  const c10::DataPtr shared = create_block(shape.item_count * plan_.slot_count * prepared.slot_bytes + 64);
  const c10::DataPtr partials = create_block(pairs * scratch_.reduction_count * prepared.slot_bytes + 64);
  const c10::DataPtr stash = create_block(shape.item_count * plan_.stash_count * prepared.stash_bytes + 64);
  prepared.words[kShared] = std::bit_cast<int64_t>(shared.get());
  prepared.words[kPartials] = std::bit_cast<int64_t>(partials.get());
  prepared.words[kStash] = std::bit_cast<int64_t>(stash.get());
  size_t bytes = scratch_.reduction_count * prepared.slot_bytes + 64;
  int64_t block_elements = std::max<int64_t>(1, prepared.item_elements / shape.block_count);
  int64_t grain = std::max<int64_t>(1, kGrainElements / block_elements);
  for (size_t pass = 0; pass < passes_.size(); ++pass) {
    shared_loop(0, pairs, grain, [&](int64_t begin, int64_t end) {
      passes_[pass](prepared.words.data(), begin, end, take_scratch(bytes));
    });
    if (pass < finishes_.size()) {
      finishes_[pass](prepared.words.data(), 0, shape.item_count, take_scratch(bytes));
    }
  }
}

}  // namespace lockstep::dynamic::jit
