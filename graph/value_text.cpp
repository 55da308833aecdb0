#include "graph/value_text.h"

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace lockstep::graph {

namespace {

std::string print_double(double value) {
  char text[64];
  if (std::isnan(value)) {
    std::snprintf(text, sizeof(text), "nan:0x%016llx",
                  static_cast<unsigned long long>(std::bit_cast<uint64_t>(value)));
  } else {
    std::snprintf(text, sizeof(text), "%a", value);  // inf and -inf as they are
  }
  return text;
}

struct ElementType {
  const char* name;
  c10::TypePtr (*type)();
};

// Element types of lists that a schema can ask for as a constant.
const ElementType kElements[] = {
    {"int", [] { return c10::TypePtr(c10::IntType::get()); }},
    {"float", [] { return c10::TypePtr(c10::FloatType::get()); }},
    {"bool", [] { return c10::TypePtr(c10::BoolType::get()); }},
    {"number", [] { return c10::TypePtr(c10::NumberType::get()); }},
    {"str", [] { return c10::TypePtr(c10::StringType::get()); }},
    {"complex", [] { return c10::TypePtr(c10::ComplexType::get()); }},
    {"optint", [] { return c10::TypePtr(c10::OptionalType::create(c10::IntType::get())); }},
    {"any", [] { return c10::TypePtr(c10::AnyType::get()); }},
};

const char* element_name(const c10::Type& type) {
  for (const auto& element : kElements)
    if (type == *element.type()) return element.name;
  return "any";
}

template <class Numbers>
void join(std::string& out, const Numbers& numbers) {
  for (size_t i = 0; i < numbers.size(); ++i) out += (i ? "," : "") + std::to_string(numbers[i]);
}

std::optional<std::string> print_list(const c10::IValue& value) {
  const auto list = value.toList();
  std::string out = element_name(*list.elementType());
  out += '[';
  for (size_t i = 0; i < list.size(); ++i) {
    const auto item = print_value(list.get(i));
    if (!item) return std::nullopt;
    out += (i ? "," : "") + *item;
  }
  return out + ']';
}

}  // namespace

std::string print_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      (out += '\\') += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string print_layout(const Layout& layout) {
  std::string out = dtype_name(layout.dtype);
  if (!layout.is_defined()) return out;
  out += '[';
  join(out, layout.sizes);
  out += ';';
  join(out, layout.strides);
  out += "]+" + std::to_string(layout.offset) + '/' + std::to_string(layout.storage_bytes);
  if (layout.storage_group >= 0) out += '#' + std::to_string(layout.storage_group);
  if (layout.conj) out += "~conj";
  if (layout.neg) out += "~neg";
  if (layout.wrapped_number) out += "~wrapped";
  return out;
}

std::optional<std::string> print_value(const c10::IValue& value) {
  if (value.isNone()) return "None";
  if (value.isInt()) return std::to_string(value.toInt());
  if (value.isDouble()) return print_double(value.toDouble());
  if (value.isBool()) return value.toBool() ? "true" : "false";
  if (value.isString()) return print_string(value.toStringRef());
  if (value.isDevice()) return "device(" + print_string(value.toDevice().str()) + ")";
  if (value.isComplexDouble()) {
    const auto z = value.toComplexDouble();
    return "complex(" + print_double(z.real()) + "," + print_double(z.imag()) + ")";
  }
  if (value.isList()) return print_list(value);
  return std::nullopt;
}

// ---- parsing

std::string TextCursor::place() const { return "before '" + std::string(rest_.substr(0, 40)) + "'"; }

void TextCursor::skip_blanks() {
  const size_t first = rest_.find_first_not_of(' ');
  rest_.remove_prefix(first == std::string_view::npos ? rest_.size() : first);
}

bool TextCursor::at_end() {
  skip_blanks();
  return rest_.empty();
}

bool TextCursor::try_take(std::string_view token) {
  skip_blanks();
  if (!rest_.starts_with(token)) return false;
  rest_.remove_prefix(token.size());
  return true;
}

void TextCursor::expect(std::string_view token) {
  if (!try_take(token)) fail("expected '" + std::string(token) + "' " + place());
}

std::string_view TextCursor::parse_word() {
  skip_blanks();
  const auto word = rest_.substr(0, rest_.find(' '));
  if (word.empty()) fail("expected a word before the end of the line");
  rest_.remove_prefix(word.size());
  return word;
}

namespace {

template <class Number>
bool take_number(std::string_view& rest, Number& number, int base) {
  const auto result = std::from_chars(rest.data(), rest.data() + rest.size(), number, base);
  if (result.ec != std::errc()) return false;
  rest.remove_prefix(result.ptr - rest.data());
  return true;
}

}  // namespace

int64_t TextCursor::parse_int() {
  skip_blanks();
  int64_t number = 0;
  if (!take_number(rest_, number, 10)) fail("expected an integer " + place());
  return number;
}

uint64_t TextCursor::parse_unsigned() {
  skip_blanks();
  uint64_t number = 0;
  if (!take_number(rest_, number, 10)) fail("expected a count " + place());
  return number;
}

uint64_t TextCursor::parse_hex() {
  skip_blanks();
  uint64_t number = 0;
  if (!take_number(rest_, number, 16)) fail("expected a hexadecimal number " + place());
  return number;
}

std::string TextCursor::parse_string() {
  expect("\"");
  std::string out;
  for (size_t i = 0; i < rest_.size(); ++i) {
    char c = rest_[i];
    if (c == '"') {
      rest_.remove_prefix(i + 1);
      return out;
    }
    if (c == '\\' && i + 1 < rest_.size()) {
      c = rest_[++i];
      c = c == 'n' ? '\n' : c == 'r' ? '\r' : c;
    }
    out += c;
  }
  fail("a string without an end");
}

double TextCursor::parse_double() {
  skip_blanks();
  if (try_take("nan:0x")) return std::bit_cast<double>(parse_hex());
  const std::string text(rest_.substr(0, rest_.find_first_of(" ,])")));
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || end != text.c_str() + text.size()) fail("expected a number, found '" + text + "'");
  rest_.remove_prefix(text.size());
  return value;
}

c10::IValue TextCursor::parse_number() {
  const auto word = rest_.substr(0, rest_.find_first_of(" ,])"));
  if (word.find_first_of("xin") != std::string_view::npos) return parse_double();
  return parse_int();
}

c10::IValue TextCursor::parse_list(std::string_view element) {
  const auto* found = std::find_if(std::begin(kElements), std::end(kElements),
                                   [&](const ElementType& e) { return element == e.name; });
  c10::impl::GenericList list(found->type());
  if (!try_take("]")) {
    do list.push_back(parse_value());
    while (try_take(","));
    expect("]");
  }
  return list;
}

c10::IValue TextCursor::parse_value() {
  if (try_take("None")) return {};
  if (try_take("true")) return true;
  if (try_take("false")) return false;
  if (try_take("device(")) {
    const auto name = parse_string();
    expect(")");
    return c10::Device(name);
  }
  if (try_take("complex(")) {
    const double real = parse_double();
    expect(",");
    const double imaginary = parse_double();
    expect(")");
    return c10::complex<double>(real, imaginary);
  }
  if (rest_.starts_with('"')) return parse_string();
  for (const auto& element : kElements)
    if (try_take(std::string(element.name) + "[")) return parse_list(element.name);
  return parse_number();
}

namespace {

c10::ScalarType dtype_named(std::string_view name, const TextCursor& cursor) {
  for (int i = 0; i < static_cast<int>(c10::ScalarType::NumOptions); ++i)
    if (const auto dtype = static_cast<c10::ScalarType>(i); name == dtype_name(dtype)) return dtype;
  cursor.fail("no dtype is called '" + std::string(name) + "'");
}

}  // namespace

Layout TextCursor::parse_layout() {
  Layout layout;
  if (try_take("none")) return layout;
  const auto name = rest_.substr(0, rest_.find('['));
  layout.dtype = dtype_named(name, *this);
  rest_.remove_prefix(name.size());
  expect("[");
  while (!try_take(";")) {
    if (!layout.sizes.empty()) expect(",");
    layout.sizes.push_back(parse_int());
  }
  while (!try_take("]")) {
    if (!layout.strides.empty()) expect(",");
    layout.strides.push_back(parse_int());
  }
  expect("+");
  layout.offset = parse_int();
  expect("/");
  layout.storage_bytes = parse_int();
  if (try_take("#")) layout.storage_group = static_cast<int>(parse_int());
  layout.conj = try_take("~conj");
  layout.neg = try_take("~neg");
  layout.wrapped_number = try_take("~wrapped");
  return layout;
}

}  // namespace lockstep::graph
