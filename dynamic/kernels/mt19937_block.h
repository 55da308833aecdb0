// The words of a CPU generator (mt19937) in bulk: same words, same order and afterwards the same state as if each had
// been drawn by CPUGeneratorImpl::random().
#pragma once

#include <ATen/CPUGeneratorImpl.h>

#include <cstdint>
#include <cstring>
#include <optional>

namespace lockstep::dynamic {

// Takes the engine's state when made and puts it back when it ends. Holder of the generator's mutex only, and nobody
// else draws in between. Cached normal samples are not touched.
class WordSource {
 public:
  static constexpr int64_t kBlock = at::MERSENNE_STATE_N;

  // `word_count`: how many will be taken in all; few are drawn one by one, since the state is copied otherwise.
  WordSource(at::CPUGeneratorImpl& generator, int64_t word_count);
  ~WordSource();
  WordSource(const WordSource&) = delete;
  WordSource& operator=(const WordSource&) = delete;

  // Writes at most `wanted` words, at least one if any is wanted: what is left of a block, or as many whole blocks as
  // `capacity` holds (at least kBlock), or the beginning of the last.
  int64_t take_some(uint32_t* words, int64_t capacity, int64_t wanted);
  // Exactly `count` words.
  void take(uint32_t* words, int64_t count);

 private:
  int64_t take_rest_of_block(uint32_t* words, int64_t wanted);
  void next_block(uint32_t* words);

  at::CPUGeneratorImpl& generator_;
  std::optional<at::mt19937> engine_;  // none: words are drawn one by one
  bool is_changed_ = false;
  int64_t used_ = kBlock;  // of the current block
  int current_ = 0;
  alignas(64) uint32_t states_[2][kBlock + 16];  // the recurrence goes from one to the other
};

// consume(words, first, count) for consecutive ranges of elements, of `words_per_element` (1 to 32) each.
template <typename Consume>
void draw_elements(WordSource& source, int64_t element_count, int64_t words_per_element, Consume consume) {
  constexpr int64_t kMargin = 32, kCapacity = 4 * WordSource::kBlock;
  alignas(64) uint32_t buffer[kMargin + kCapacity];
  uint32_t* const base = buffer + kMargin;  // new words are stored here, aligned; a split element begins before
  int64_t held = 0;
  for (int64_t first = 0; first < element_count;) {
    const int64_t wanted = (element_count - first) * words_per_element - held;
    const int64_t taken = source.take_some(base, kCapacity, wanted);
    const int64_t count = (held + taken) / words_per_element;
    consume(base - held, first, count);
    first += count;
    held += taken - count * words_per_element;
    std::memmove(base - held, base + taken - held, held * sizeof(uint32_t));
  }
}

}  // namespace lockstep::dynamic
