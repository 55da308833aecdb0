// The words of a CPU generator (mt19937) in bulk: same words, same order and afterwards the same state as if each had
// been drawn by CPUGeneratorImpl::random().
#pragma once

#include <ATen/CPUGeneratorImpl.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <optional>

#include "dynamic/threads/shared_loop.h"

namespace lockstep::dynamic {

// Takes the engine's state when made and puts it back when it ends. Holder of the generator's mutex only, and nobody
// else draws in between. Cached normal samples are not touched.
class WordSource {
 public:
  static constexpr int64_t kBlock = at::MERSENNE_STATE_N;

  // `word_count`: how many will be taken in all; few are drawn one by one, since the state is copied otherwise.
  WordSource(at::CPUGeneratorImpl& generator, int64_t word_count);
  ~WordSource();
  WordSource& operator=(const WordSource&) = delete;

  // Writes at most `wanted` words, at least one if any is wanted: what is left of a block, or as many whole blocks as
  // `capacity` holds (at least kBlock), or the beginning of the last.
  int64_t take_some(uint32_t* words, int64_t capacity, int64_t wanted);
  // Exactly `count` words.
  void take(uint32_t* words, int64_t count);

  // For two threads that draw from one generator: one from a copy, which is not put back, one from where that ends. Only
  // with has_blocks().
  bool has_blocks() const { return engine_.has_value(); }
  // From now on words come as the state holds them: who needs a part of them only, tempers that. Only with has_blocks().
  void leave_raw() { is_raw_ = true; }
  bool is_raw() const { return is_raw_; }
  WordSource copy() const { return WordSource(*this); }
  void skip(int64_t count);
  void go_on_from(const WordSource& other);

 private:
  WordSource(const WordSource& other);
  int64_t take_rest_of_block(uint32_t* words, int64_t wanted);
  void next_block(uint32_t* words);

  at::CPUGeneratorImpl& generator_;
  std::optional<at::mt19937> engine_;  // none: words are drawn one by one
  bool is_copy_ = false, is_changed_ = false, is_raw_ = false;
  int64_t used_ = kBlock;  // of the current block
  int current_ = 0;
  alignas(64) uint32_t states_[2][kBlock + 16];  // the recurrence goes from one to the other
};

// Elements [begin, end), of which the next word is the first.
template <typename Consume>
void draw_range(WordSource& source, int64_t begin, int64_t end, int64_t words_per_element, const Consume& consume) {
  constexpr int64_t kMargin = 32, kCapacity = 4 * WordSource::kBlock;
  alignas(64) uint32_t buffer[kMargin + kCapacity];
  uint32_t* const base = buffer + kMargin;  // new words are stored here, aligned; a split element begins before
  int64_t held = 0;
  for (int64_t first = begin; first < end;) {
    const int64_t wanted = (end - first) * words_per_element - held;
    const int64_t taken = source.take_some(base, kCapacity, wanted);
    const int64_t count = (held + taken) / words_per_element;
    consume(base - held, first, count);
    first += count;
    held += taken - count * words_per_element;
    std::memmove(base - held, base + taken - held, held * sizeof(uint32_t));
  }
}

// Whether loops have two threads, and denormals are what they are to both.
bool may_share_drawing();

// consume(words, first, count) for ranges of elements, of `words_per_element` (1 to 32) each; on any thread, and on two at
// a time. Where there are many, two threads do it: the recurrence goes from word to word, but to go on without making
// numbers of them is half the work, or more of it where words are left raw.
template <typename Consume>
void draw_elements(WordSource& source, int64_t element_count, int64_t words_per_element, const Consume& consume) {
  constexpr int64_t kManyWords = 1 << 18;
  constexpr double kFirstPart = 0.6, kFirstRawPart = 0.64;
  if (element_count * words_per_element < kManyWords || !source.has_blocks() || !may_share_drawing())
    return draw_range(source, 0, element_count, words_per_element, consume);
  const auto cut = static_cast<int64_t>((source.is_raw() ? kFirstRawPart : kFirstPart) * static_cast<double>(element_count));
  WordSource first = source.copy();
  std::atomic<bool> is_first_done{false};
  shared_loop(0, 2, 1, [&](int64_t begin, int64_t end) {
    if (begin == 0) {
      draw_range(first, 0, cut, words_per_element, consume);
      is_first_done.store(true, std::memory_order_release);
    }
    if (end < 2) return;
    if (is_first_done.load(std::memory_order_acquire)) {
      source.go_on_from(first);
    } else {
      source.skip(cut * words_per_element);
    }
    draw_range(source, cut, element_count, words_per_element, consume);
  });
}

}  // namespace lockstep::dynamic
