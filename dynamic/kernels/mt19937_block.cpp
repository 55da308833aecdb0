#include "dynamic/kernels/mt19937_block.h"

#include <xmmintrin.h>

#include <algorithm>

#include "dynamic/kernels/vector_loops.h"

namespace lockstep::dynamic {
namespace {

// Below, copying the state (2.5 KB) out and in costs more than single draws.
constexpr int64_t kFewWords = 128;

}  // namespace

// As in MT19937RNGEngine.h: `left_ - 1` words can be drawn from `next_` on before the block has to be renewed. A state
// where the two do not fit together was made by hand (set_state lets it pass); the engine itself deals with it.
WordSource::WordSource(at::CPUGeneratorImpl& generator, int64_t word_count) : generator_(generator) {
  if (word_count < kFewWords) return;
  engine_ = generator.engine();
  const auto data = engine_->data();
  used_ = kBlock - (data.left_ - 1);
  if (used_ < kBlock && used_ != data.next_) {
    engine_.reset();
    return;
  }
  std::memcpy(states_[0], data.state_.data(), sizeof(data.state_));
}

WordSource::~WordSource() {
  if (is_copy_ || !is_changed_) return;
  auto data = engine_->data();
  std::memcpy(data.state_.data(), states_[current_], sizeof(data.state_));
  data.next_ = static_cast<uint32_t>(used_);
  data.left_ = static_cast<int>(kBlock - used_ + 1);
  engine_->set_data(data);
  generator_.set_engine(*engine_);
}

WordSource::WordSource(const WordSource& other)
    : generator_(other.generator_), engine_(other.engine_), is_copy_(true), is_raw_(other.is_raw_), used_(other.used_),
      current_(other.current_) {
  std::memcpy(states_[current_], other.states_[current_], kBlock * sizeof(uint32_t));
}

void WordSource::go_on_from(const WordSource& other) {
  is_changed_ = true;
  used_ = other.used_;
  current_ = other.current_;
  std::memcpy(states_[current_], other.states_[current_], kBlock * sizeof(uint32_t));
}

void WordSource::skip(int64_t count) {
  is_changed_ |= count > 0;
  while (count > 0) {
    if (used_ == kBlock) {
      vector_loops().skip_block(states_[current_], states_[1 - current_]);
      current_ = 1 - current_;
      used_ = 0;
    }
    const int64_t skipped = std::min(kBlock - used_, count);
    used_ += skipped;
    count -= skipped;
  }
}

int64_t WordSource::take_some(uint32_t* words, int64_t capacity, int64_t wanted) {
  if (!engine_) {
    const int64_t count = std::min(capacity, wanted);
    for (int64_t i = 0; i < count; ++i) words[i] = generator_.random();
    return count;
  }
  if (wanted <= 0) return 0;
  is_changed_ = true;
  if (used_ < kBlock) return take_rest_of_block(words, wanted);
  if (wanted < kBlock) {
    alignas(64) uint32_t block[kBlock];
    next_block(block);
    std::memcpy(words, block, wanted * sizeof(uint32_t));
    used_ = wanted;
    return wanted;
  }
  const int64_t block_count = std::min(capacity, wanted) / kBlock;
  for (int64_t i = 0; i < block_count; ++i) next_block(words + i * kBlock);
  return block_count * kBlock;
}

void WordSource::take(uint32_t* words, int64_t count) {
  for (int64_t taken = 0; taken < count;)
    taken += take_some(words + taken, count - taken, count - taken);
}

int64_t WordSource::take_rest_of_block(uint32_t* words, int64_t wanted) {
  const int64_t count = std::min(kBlock - used_, wanted);
  const uint32_t* from = states_[current_] + used_;
  if (is_raw_) {
    std::copy_n(from, count, words);
  } else {
    vector_loops().temper(from, count, words);
  }
  used_ += count;
  return count;
}

void WordSource::next_block(uint32_t* words) {
  const auto next = is_raw_ ? vector_loops().next_raw_block : vector_loops().next_block;
  next(states_[current_], states_[1 - current_], words);
  current_ = 1 - current_;
}

bool may_share_drawing() {
  constexpr unsigned kFlushes = 0x8040;  // denormals
  return loop_threads() > 1 && !at::in_parallel_region() && (_mm_getcsr() & kFlushes) == 0;
}

}  // namespace lockstep::dynamic
