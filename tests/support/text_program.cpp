#include "tests/support/text_program.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <sstream>

#include "dynamic/fusion/op_body.h"
#include "dynamic/jit/line_parser.h"
#include "dynamic/kernels/kernel_table.h"
#include "tests/support/jit_kernels.h"
#include "tests/support/test_host.h"

namespace lockstep::support {

namespace {

using dynamic::jit::LineParser;
using Argument = TextProgram::Argument;

bool take_name(LineParser& line, std::string& name) { return line.take("%") && line.take_word(name); }

bool take_names(LineParser& line, std::vector<std::string>& names) {
  do {
    if (!take_name(line, names.emplace_back())) return false;
  } while (line.take(","));
  return true;
}

bool take_truth(LineParser& line, bool& value) {
  value = line.take("true");
  return value || line.take("false");
}

// A number with a point or an exponent is no whole one.
bool take_scalar(LineParser& line, c10::IValue& value) {
  LineParser ahead = line;
  int64_t whole = 0;
  double real = 0;
  const bool is_whole = ahead.take_number(whole);
  if (!line.take_double(real)) return false;
  value = is_whole && static_cast<double>(whole) == real && ahead.position() == line.position() ? c10::IValue(whole) : c10::IValue(real);
  return true;
}

bool take_tensors(LineParser& line, Argument& argument) {
  argument.is_list = true;
  return line.take("[") && take_names(line, argument.names) && line.take("]");
}

bool take_truths(LineParser& line, Argument& argument) {
  c10::List<bool> list;
  if (!line.take("[")) return false;
  do {
    bool value = false;
    if (!take_truth(line, value)) return false;
    list.push_back(value);
  } while (line.take(","));
  argument.constant = list;
  return line.take("]");
}

bool take_sizes(LineParser& line, Argument& argument) {
  std::vector<int64_t> sizes;
  const bool taken = line.take_list(sizes);
  argument.constant = sizes;
  return taken;
}

bool take_argument(LineParser& line, const c10::TypePtr& declared, Argument& argument) {
  auto type = declared;
  if (const auto optional = type->cast<c10::OptionalType>()) {
    if (line.take("none")) return true;
    type = optional->getElementType();
  }
  bool truth = false;
  int64_t whole = 0;
  double real = 0;
  bool taken = false;
  switch (type->kind()) {
    case c10::TypeKind::TensorType: return take_name(line, argument.names.emplace_back());
    case c10::TypeKind::NumberType: return take_scalar(line, argument.constant);
    case c10::TypeKind::FloatType:
      taken = line.take_double(real);
      argument.constant = real;
      return taken;
    case c10::TypeKind::BoolType:
      taken = take_truth(line, truth);
      argument.constant = truth;
      return taken;
    case c10::TypeKind::IntType:
      taken = line.take_number(whole);
      argument.constant = whole;
      return taken;
    case c10::TypeKind::ListType: {
      const auto kind = type->expectRef<c10::ListType>().getElementType()->kind();
      if (kind == c10::TypeKind::TensorType) return take_tensors(line, argument);
      return kind == c10::TypeKind::BoolType ? take_truths(line, argument) : take_sizes(line, argument);
    }
    default: return false;
  }
}

const char* parse_op(LineParser& line, TextProgram::Line& one) {
  std::string name, overload;
  if (!line.take_word(name)) return "expected an op";
  if (line.take(".") && line.take_word(overload)) name += '.' + overload;
  one.op = graph::find_op_info("aten::" + name);
  if (!one.op) return "no such op";
  for (const auto& declared : one.op->handle.schema().arguments()) {
    auto& argument = one.arguments.emplace_back();
    if (!line.is_at_end()) {
      if (!take_argument(line, declared.type(), argument)) return "an argument is none of its type";
    } else if (declared.default_value()) {
      argument.constant = *declared.default_value();
    } else {
      return "arguments are missing";
    }
  }
  return nullptr;
}

// Sizes, and what the values are like. Of each input other ones, the same in each run.
const char* parse_input(LineParser& line, uint64_t seed, at::Tensor& value) {
  dynamic::jit::DType type{};
  std::vector<int64_t> sizes, strides;
  int64_t below = 2;
  if (!line.take_type(type)) return "unknown type";
  if (!line.take_list(sizes)) return "expected sizes in brackets";
  if (line.take("strides") && !line.take_list(strides)) return "expected strides in brackets";
  if (line.take("below") && !line.take_number(below)) return "expected a number";
  const bool is_positive = line.take("positive");
  at::manual_seed(seed);
  const auto dtype = dynamic::jit::scalar_type_of(type);
  auto drawn = at::isFloatingType(dtype) ? at::randn(sizes) : at::randint(below, sizes);
  if (is_positive) drawn = drawn.abs() + 0.5;
  value = strides.empty() ? at::empty(sizes, dtype) : at::empty_strided(sizes, strides, dtype);
  value.copy_(drawn);
  return nullptr;
}

const char* parse_line(LineParser& line, uint64_t number, TextProgram::Line& one) {
  LineParser ahead = line;
  if (ahead.take("%")) {
    if (!take_names(line, one.names) || !line.take("=")) return "expected names of results and =";
    ahead = line;
    std::string word;
    if (ahead.take_word(word) && word == "input") {
      one.kind = TextProgram::Kind::kInput;
      line = ahead;
      return parse_input(line, number, one.value);
    }
    return parse_op(line, one);
  }
  std::string word;
  if (!ahead.take_word(word)) return "expected an op, drop or read";
  if (word != "drop" && word != "read") return parse_op(line, one);
  one.kind = word == "drop" ? TextProgram::Kind::kDrop : TextProgram::Kind::kRead;
  line = ahead;
  while (!line.is_at_end())
    if (!take_name(line, one.names.emplace_back())) return "expected names";
  return nullptr;
}

c10::IValue value_of(const Argument& argument, const TextProgram::Values& values) {
  if (!argument.is_list) return argument.names.empty() ? argument.constant : values.at(argument.names[0]);
  c10::List<at::Tensor> list;
  for (const auto& name : argument.names) list.push_back(values.at(name));
  return list;
}

}  // namespace

std::optional<TextProgram> TextProgram::parse(const std::string& text, std::string* reason) {
  TextProgram program;
  std::istringstream lines(text);
  std::string line;
  for (uint64_t number = 1; std::getline(lines, line); ++number) {
    LineParser parser(line);
    int64_t way = 0;
    LineParser ahead = parser;
    if (ahead.take("way ") && ahead.take_number(way) && ahead.is_at_end()) {
      program.way_ = static_cast<int>(way);
      continue;
    }
    Line one;
    const char* wrong = parse_line(parser, number, one);
    if (!wrong && !parser.is_at_end()) wrong = "something is left at the end of the line";
    if (!wrong) wrong = program.find_unknown(one);
    if (wrong) {
      *reason = "line " + std::to_string(number) + ": " + wrong + ": " + line;
      return std::nullopt;
    }
    program.note_exact(one);
    program.lines_.push_back(std::move(one));
  }
  return program;
}

// A line uses what is there, and names what is not.
const char* TextProgram::find_unknown(const Line& line) {
  for (const auto& argument : line.arguments)
    for (const auto& name : argument.names)
      if (!held_.contains(name)) return "no such value is held";
  for (const auto& name : line.names) {
    const bool is_new = line.kind == Kind::kInput || line.kind == Kind::kOp;
    if (is_new == exact_.contains(name) || (!is_new && !held_.contains(name)))
      return is_new ? "the name is taken" : "no such value is held";
    if (line.kind == Kind::kDrop) held_.erase(name);
    if (is_new) held_.insert(name);
  }
  return nullptr;
}

void TextProgram::note_exact(const Line& line) {
  if (line.kind == Kind::kInput) exact_[line.names[0]] = true;
  if (line.kind != Kind::kOp) return;
  bool is_exact = dynamic::rounds_as_eager(*line.op) && !dynamic::may_round_otherwise(*line.op);
  for (const auto& argument : line.arguments)
    for (const auto& name : argument.names) is_exact = is_exact && exact_[name];
  for (const auto& name : line.names) exact_[name] = is_exact;
  if (is_exact || !line.op->writes) return;
  for (auto& [name, exact] : exact_) exact = false;  // some of them see it
}

TextProgram::Values TextProgram::create_inputs() const {
  Values values;
  for (const auto& line : lines_)
    if (line.kind == Kind::kInput) {
      auto& value = values[line.names[0]];
      value = at::empty_strided(line.value.sizes(), line.value.strides(), line.value.options());
      value.copy_(line.value);
    }
  return values;
}

void TextProgram::run(Values& values, bool drops) const {
  at::manual_seed(1);
  for (size_t i = 0; i < lines_.size(); ++i) {
    const auto& line = lines_[i];
    at_line(i + 1);
    if (line.kind == Kind::kDrop && drops)
      for (const auto& name : line.names) values.erase(name);
    if (line.kind == Kind::kRead)
      for (const auto& name : line.names) values.at(name).equal(values.at(name));
    if (line.kind != Kind::kOp) continue;
    torch::jit::Stack stack;
    for (const auto& argument : line.arguments) stack.push_back(value_of(argument, values));
    line.op->handle.callBoxed(&stack);
    for (size_t r = 0; r < line.names.size(); ++r) values[line.names[r]] = stack.at(r).toTensor();
  }
}

}  // namespace lockstep::support
