// Typed constants and layouts as text, each without ambiguity: what is printed parses to the same bits.
//
//   None  7  0x1.8p+1  nan:0x7ff8000000000000  true  "text"  complex(0x1p+0,-0x0p+0)  device("cpu")
//   int[1,2]  float[]  bool[true]  number[1,0x1p+0]  str["a"]  complex[]  any[None,1]      lists by element type
//   f32[2,3;3,1]+4/64#0~conj~neg~wrapped    dtype[sizes;strides]+offset/storage bytes#storage group~flags; none
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "graph/layout.h"

namespace lockstep::graph {

// What is wrong with a text, and in which line of it.
class TextError : public std::runtime_error {
 public:
  TextError(size_t line, const std::string& message)
      : std::runtime_error("line " + std::to_string(line) + ": " + message) {}
};

std::string print_string(std::string_view text);
std::string print_layout(const Layout& layout);
// None for what is neither a number, a string, a device nor a list of such.
std::optional<std::string> print_value(const c10::IValue& value);

// Reads one line from left to right. Every `parse_` skips blanks first and throws TextError where it cannot go on.
class TextCursor {
 public:
  TextCursor(std::string_view line, size_t number) : rest_(line), number_(number) {}

  bool at_end();
  bool try_take(std::string_view token);  // the characters, whatever follows them
  void expect(std::string_view token);
  std::string_view parse_word();  // up to the next blank
  int64_t parse_int();
  uint64_t parse_unsigned();
  uint64_t parse_hex();  // without 0x
  std::string parse_string();
  Layout parse_layout();
  c10::IValue parse_value();
  [[noreturn]] void fail(const std::string& message) const { throw TextError(number_, message); }

 private:
  void skip_blanks();
  std::string place() const;
  double parse_double();
  c10::IValue parse_number();
  c10::IValue parse_list(std::string_view element);
  std::string_view rest_;
  size_t number_;
};

}  // namespace lockstep::graph
