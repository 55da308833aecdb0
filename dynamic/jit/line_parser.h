// What all of our text forms are read with: specs, and the programs of tests.
#pragma once

#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "dynamic/jit/kernel_spec.h"

namespace lockstep::dynamic::jit {

// Reads a line from the left; every take_* returns false where something else comes next.
class LineParser {
 public:
  explicit LineParser(const std::string& line) : at_(line.c_str()) {}  // which outlives it

  bool take(const char* word) {
    skip();
    const char* at = at_;
    for (; *word; ++word, ++at) {
      if (*at != *word) return false;
    }
    at_ = at;
    return true;
  }
  bool take_number(int64_t& value) {
    skip();
    char* end;
    value = std::strtoll(at_, &end, 10);
    return advance(end);
  }
  bool take_double(double& value) {
    skip();
    char* end;
    value = std::strtod(at_, &end);
    return advance(end);
  }
  bool take_word(std::string& word) {
    skip();
    const char* begin = at_;
    while (std::isalnum(static_cast<unsigned char>(*at_)) || *at_ == '_') ++at_;
    word.assign(begin, at_);
    return !word.empty();
  }
  bool take_list(std::vector<int64_t>& list) {
    if (!take("[")) return false;
    if (take("]")) return true;
    do {
      int64_t value = kSymbolic;
      if (!take("?") && !take_number(value)) return false;
      list.push_back(value);
    } while (take(","));
    return take("]");
  }
  bool take_type(DType& type) {
    std::string word;
    if (!take_word(word)) return false;
    for (int i = 0; i < static_cast<int>(DType::kCount); ++i) {
      if (word == kDTypeNames[i]) return type = static_cast<DType>(i), true;
    }
    return false;
  }
  bool is_at_end() { return skip(), *at_ == 0; }
  const char* position() const { return at_; }

 private:
  void skip() {
    while (*at_ == ' ') ++at_;
  }
  bool advance(char* end) {
    bool moved = end != at_;
    at_ = end;
    return moved;
  }
  const char* at_;
};

}  // namespace lockstep::dynamic::jit
