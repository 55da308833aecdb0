#include "dynamic/jit/spec_text.h"

#include <bit>
#include <cmath>
#include <cstdio>
#include <sstream>

#include "dynamic/jit/line_parser.h"

namespace lockstep::dynamic::jit {
namespace {

constexpr const char* kAccessNames[] = {"in", "out", "inout"};

void print_list(std::ostream& out, const std::vector<int64_t>& list) {
  out << '[';
  for (size_t i = 0; i < list.size(); ++i) {
    out << (i ? ", " : "");
    if (list[i] == kSymbolic)
      out << '?';
    else
      out << list[i];
  }
  out << ']';
}

std::string constant_text(const Instruction& instruction) {
  if (!is_floating(instruction.type)) return std::to_string(instruction.immediate);
  char text[64];
  std::snprintf(text, sizeof text, "%a", std::bit_cast<double>(instruction.immediate));
  return text;
}

void print_instruction(std::ostream& out, const Instruction& instruction, size_t number) {
  if (instruction.op == Op::k_store) {
    out << "store b" << instruction.immediate << " %" << instruction.operands[0] << '\n';
    return;
  }
  out << '%' << number << " = " << row_of(instruction.op).name;
  if (instruction.op == Op::k_load) out << " b" << instruction.immediate;
  if (instruction.op == Op::k_scalar) out << " s" << instruction.immediate;
  if (instruction.op == Op::k_index) out << ' ' << instruction.immediate;
  if (instruction.op == Op::k_constant) out << ' ' << constant_text(instruction);
  if (instruction.op == Op::k_reduce) {
    std::vector<int64_t> dims;
    for (int dim = 0; dim < 63; ++dim) {
      if (instruction.immediate >> dim & 1) dims.push_back(dim);
    }
    out << ' ' << kReduceNames[static_cast<int>(instruction.kind)] << ' ';
    print_list(out, dims);
  }
  for (int i = 0; i < row_of(instruction.op).arity; ++i) out << " %" << instruction.operands[i];
  out << " : " << name_of(instruction.type) << '\n';
}

const char* parse_buffer(LineParser& line, KernelSpec& spec) {
  Buffer buffer;
  std::string word;
  if (!line.take_word(word)) return "expected in, out or inout";
  int access = -1;
  for (int i = 0; i < 3; ++i) {
    if (word == kAccessNames[i]) access = i;
  }
  if (access < 0) return "expected in, out or inout";
  buffer.access = static_cast<Access>(access);
  buffer.streaming = line.take("stream");
  buffer.packed = line.take("packed");
  for (const Total total : {Total::kSum, Total::kMean}) {
    if (line.take(kTotalNames[static_cast<int>(total)])) buffer.total = total;
  }
  if (!line.take_type(buffer.type)) return "unknown type";
  if (!line.take_list(buffer.strides)) return "expected strides in brackets";
  spec.buffers.push_back(buffer);
  return nullptr;
}

const char* parse_reduce(LineParser& line, Instruction& instruction) {
  std::string word;
  line.take_word(word);
  int kind = -1;
  for (int i = 0; i < static_cast<int>(ReduceKind::kCount); ++i) {
    if (word == kReduceNames[i]) kind = i;
  }
  if (kind < 0) return "unknown kind of reduction";
  instruction.kind = static_cast<ReduceKind>(kind);
  std::vector<int64_t> dims;
  if (!line.take_list(dims)) return "expected dims in brackets";
  for (int64_t dim : dims) {
    if (dim < 0 || dim >= 63) return "dim out of range";
    instruction.immediate |= int64_t{1} << dim;
  }
  return nullptr;
}

const char* parse_value(LineParser& line, KernelSpec& spec) {
  int64_t number;
  if (!line.take_number(number) || number != static_cast<int64_t>(spec.body.size())) return "values count from %0";
  std::string word;
  if (!line.take("=") || !line.take_word(word)) return "expected = and an op";
  Instruction instruction;
  instruction.op = Op::kCount;
  for (int i = 0; i < static_cast<int>(Op::kCount); ++i) {
    if (word == kOpRows[i].name) instruction.op = static_cast<Op>(i);
  }
  if (instruction.op == Op::kCount || instruction.op == Op::k_store) return "unknown op";
  double real = 0;
  std::string literal;
  const char* wrong = nullptr;
  switch (instruction.op) {
    case Op::k_load:
      if (!line.take("b") || !line.take_number(instruction.immediate)) return "expected a buffer";
      break;
    case Op::k_scalar:
      if (!line.take("s") || !line.take_number(instruction.immediate)) return "expected a scalar";
      break;
    case Op::k_index:
      if (!line.take_number(instruction.immediate)) return "expected a dim";
      break;
    case Op::k_reduce: wrong = parse_reduce(line, instruction); break;
    case Op::k_constant: {  // the type comes last and decides how the literal reads
      LineParser ahead = line;
      if (!ahead.take_double(real) || !ahead.take(":") || !ahead.take_type(instruction.type))
        return "expected a number";
      if (is_floating(instruction.type)) {
        line.take_double(real);
        instruction.immediate = std::bit_cast<int64_t>(real);
      } else if (!line.take_number(instruction.immediate)) {
        return "expected a whole number";
      }
      break;
    }
    default: break;
  }
  if (wrong) return wrong;
  for (int i = 0; i < row_of(instruction.op).arity; ++i) {
    int64_t operand;
    if (!line.take("%") || !line.take_number(operand)) return "expected an operand";
    instruction.operands[i] = static_cast<ValueId>(operand);
  }
  if (!line.take(":") || !line.take_type(instruction.type)) return "expected : and a type";
  spec.body.push_back(instruction);
  return nullptr;
}

const char* parse_line(LineParser& line, KernelSpec& spec) {
  int64_t number;
  if (line.take("dims")) return line.take_list(spec.sizes) ? nullptr : "expected sizes in brackets";
  if (line.take("store")) {
    int64_t value;
    if (!line.take("b") || !line.take_number(number) || !line.take("%") || !line.take_number(value)) {
      return "expected a buffer and a value";
    }
    Instruction store{Op::k_store, DType::kFloat32, {}, {static_cast<ValueId>(value), -1, -1}, number};
    if (value >= 0 && value < static_cast<int64_t>(spec.body.size())) store.type = spec.type_of(store.operands[0]);
    spec.body.push_back(store);
    return nullptr;
  }
  if (line.take("%")) return parse_value(line, spec);
  if (line.take("b")) {
    bool in_order = line.take_number(number) && number == static_cast<int64_t>(spec.buffers.size()) && line.take("=");
    return in_order ? parse_buffer(line, spec) : "buffers count from b0";
  }
  if (line.take("s")) {
    DType type;
    bool in_order = line.take_number(number) && number == static_cast<int64_t>(spec.scalars.size()) && line.take("=");
    if (!in_order || !line.take_type(type)) return "expected a scalar's type; scalars count from s0";
    spec.scalars.push_back(type);
    return nullptr;
  }
  return "expected dims, a buffer, a scalar, a value or a store";
}

}  // namespace

std::string print_spec(const KernelSpec& spec) {
  std::ostringstream out;
  out << "dims ";
  print_list(out, spec.sizes);
  out << '\n';
  for (size_t i = 0; i < spec.buffers.size(); ++i) {
    const Buffer& buffer = spec.buffers[i];
    out << 'b' << i << " = " << kAccessNames[static_cast<int>(buffer.access)] << (buffer.streaming ? " stream" : "")
        << (buffer.packed ? " packed " : " ");
    if (buffer.total != Total::kNone) out << kTotalNames[static_cast<int>(buffer.total)] << ' ';
    out << name_of(buffer.type) << ' ';
    print_list(out, buffer.strides);
    out << '\n';
  }
  for (size_t i = 0; i < spec.scalars.size(); ++i) out << 's' << i << " = " << name_of(spec.scalars[i]) << '\n';
  for (size_t i = 0; i < spec.body.size(); ++i) print_instruction(out, spec.body[i], i);
  return out.str();
}

std::optional<KernelSpec> parse_spec(const std::string& text, std::string* reason) {
  KernelSpec spec;
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    LineParser parser(line);
    if (parser.is_at_end()) continue;
    const char* wrong = parse_line(parser, spec);
    if (!wrong && !parser.is_at_end()) wrong = "something is left at the end of the line";
    if (wrong) {
      if (reason) *reason = "line " + std::to_string(number) + ": " + wrong + ": " + line;
      return std::nullopt;
    }
  }
  return spec;
}

}  // namespace lockstep::dynamic::jit
