#include "graph/layout.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <sstream>
#include <type_traits>

namespace lockstep::graph {

int64_t Layout::numel() const {
  int64_t n = 1;
  for (int64_t size : sizes) n *= size;
  return n;
}

int64_t Layout::end_bytes() const {
  if (!is_defined() || numel() == 0) return 0;
  int64_t last = offset;
  for (size_t d = 0; d < sizes.size(); ++d) last += (sizes[d] - 1) * strides[d];
  return (last + 1) * static_cast<int64_t>(c10::elementSize(dtype));
}

bool Layout::same_geometry(const Layout& other) const {
  return dtype == other.dtype && conj == other.conj && neg == other.neg && offset == other.offset &&
         sizes == other.sizes && strides == other.strides;
}

bool Layout::is_contiguous() const {
  int64_t stride = 1;
  for (size_t dim = sizes.size(); dim-- > 0; stride *= sizes[dim])
    if (sizes[dim] != 1 && strides[dim] != stride) return false;
  return true;
}

// Sorted by stride, each dim steps over the smaller ones.
bool Layout::is_without_overlap() const {
  c10::SmallVector<size_t, 8> order;
  for (size_t dim = 0; dim < sizes.size(); ++dim)
    if (sizes[dim] != 1) order.push_back(dim);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return strides[a] < strides[b]; });
  int64_t extent = 1;
  for (const size_t dim : order) {
    if (strides[dim] < extent) return false;
    extent = strides[dim] * (sizes[dim] - 1) + extent;
  }
  return true;
}

const char* dtype_name(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Float: return "f32";
    case c10::ScalarType::Double: return "f64";
    case c10::ScalarType::Half: return "f16";
    case c10::ScalarType::BFloat16: return "bf16";
    case c10::ScalarType::Long: return "i64";
    case c10::ScalarType::Int: return "i32";
    case c10::ScalarType::Short: return "i16";
    case c10::ScalarType::Char: return "i8";
    case c10::ScalarType::Byte: return "u8";
    case c10::ScalarType::Bool: return "b1";
    case c10::ScalarType::ComplexFloat: return "c64";
    case c10::ScalarType::ComplexDouble: return "c128";
    case c10::ScalarType::Undefined: return "none";
    default: return c10::toString(dtype);
  }
}

std::string Layout::str() const {
  std::ostringstream out;
  out << dtype_name(dtype);
  if (!is_defined()) return out.str();
  out << '[';
  for (size_t d = 0; d < sizes.size(); ++d) out << (d ? "," : "") << sizes[d];
  out << ';';
  for (size_t d = 0; d < strides.size(); ++d) out << (d ? "," : "") << strides[d];
  out << ']';
  if (conj) out << "conj";
  if (neg) out << "neg";
  return out.str();
}

Layout layout_of(const at::Tensor& tensor) {
  Layout layout;
  if (!tensor.defined()) return layout;
  const auto* impl = tensor.unsafeGetTensorImpl();
  layout.dtype = tensor.scalar_type();
  layout.conj = tensor.is_conj();
  layout.neg = tensor.is_neg();
  layout.wrapped_number = impl->is_wrapped_number();
  layout.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
  layout.strides.assign(tensor.strides().begin(), tensor.strides().end());
  layout.offset = tensor.storage_offset();
  layout.storage_bytes = static_cast<int64_t>(tensor.storage().nbytes());
  return layout;
}

void append_layout(SignatureWords& words, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    words.push_back(-1);
    return;
  }
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  const int64_t bits = (tensor.is_conj() ? 1 : 0) | (tensor.is_neg() ? 2 : 0) |
                       (tensor.unsafeGetTensorImpl()->is_wrapped_number() ? 4 : 0);
  words.push_back(static_cast<int64_t>(tensor.scalar_type()) | (bits << 8) |
                  (static_cast<int64_t>(sizes.size()) << 16));
  words.insert(words.end(), sizes.begin(), sizes.end());
  words.insert(words.end(), strides.begin(), strides.end());
}

namespace {

struct Range {
  double least, largest;
};

// What a type takes, as c10::overflows has it: of unsigned ones also the negative numbers that wrap around once.
template <class T>
constexpr Range range_of() {
  constexpr double largest = std::numeric_limits<T>::max();
  return {std::is_signed_v<T> ? static_cast<double>(std::numeric_limits<T>::lowest()) : -largest, largest};
}

// Each within the next.
constexpr Range kRanges[] = {
    range_of<int8_t>(),   range_of<uint8_t>(),         {-448, 448} /* float8_e4m3 */,
    range_of<int16_t>(),  {-57344, 57344} /* e5m2 */,  {-65504, 65504} /* half */,
    range_of<uint16_t>(), range_of<int32_t>(),         range_of<uint32_t>(),
    {-0x1p63, 0x1.fffffffffffffp62} /* int64_t */,     {-0x1.fep127, 0x1.fep127} /* bfloat16 */,
    range_of<float>(),    range_of<double>(),
};

// Of each range and kind two: above and below zero. Of what is near zero, the inverse is too large for float, or infinite.
enum NumberClass { kZero, kRealZero, kTiny, kTiniest, kNan, kFalse, kTrue, kOther, kFirstRange };
enum NumberKind { kWhole, kReal, kComplex, kImaginary, kKindCount };
static_assert(kFirstRange + 2 * kKindCount * (std::size(kRanges) + 1) <= kNumberClasses);

int class_of(double number, NumberKind kind) {
  if (kind < kComplex) {
    if (number == 0) return kind == kReal ? kRealZero : kZero;
    if (std::isnan(number)) return kNan;
    if (std::abs(number) * std::numeric_limits<float>::max() < 1) return std::isinf(1 / number) ? kTiniest : kTiny;
  }
  const auto holds = [number](const Range& range) { return range.least <= number && number <= range.largest; };
  const auto range = std::find_if(std::begin(kRanges), std::end(kRanges), holds) - std::begin(kRanges);
  return static_cast<int>(kFirstRange + 2 * (kKindCount * range + kind) + (number < 0));
}

}  // namespace

int number_class(const c10::IValue& value) {
  if (value.isBool()) return value.toBool() ? kTrue : kFalse;
  if (value.isInt()) return class_of(static_cast<double>(value.toInt()), kWhole);
  if (value.isDouble()) return class_of(value.toDouble(), kReal);
  if (!value.isComplexDouble()) return kOther;
  const auto number = value.toComplexDouble();
  const double larger = std::abs(number.real()) < std::abs(number.imag()) ? number.imag() : number.real();
  return class_of(larger, number.imag() == 0 ? kComplex : kImaginary);
}

namespace {

// Beside those of the numbers before it, of which seven find room.
void note_class(int64_t* first_word, int new_class) {
  constexpr uint64_t kMode = (uint64_t{1} << kModeBits) - 1;
  const auto word = static_cast<uint64_t>(*first_word);
  const uint64_t classes = (word >> kModeBits) * kNumberClasses + new_class;
  *first_word = static_cast<int64_t>(classes << kModeBits | (word & kMode));
}

}  // namespace

void append_scalar(SignatureWords& words, const c10::IValue& value, bool with_value) {
  note_class(words.data(), number_class(value));
  if (value.isNone()) return words.push_back(-5);
  if (value.isList()) return append_constant(words, value);
  const int64_t kind = value.isDouble() ? 1 : value.isInt() ? 2 : value.isBool() ? 3 : value.isComplexDouble() ? 4 : 5;
  words.push_back(kind);
  if (with_value) append_constant(words, value);
}

void append_scalars(SignatureWords& words, const c10::IValue& list, bool with_values) {
  if (!list.isList()) return append_constant(words, list);
  const auto numbers = list.toListRef();
  words.push_back(list_word(numbers.size()));
  for (const auto& number : numbers) {
    words.push_back(number_class(number));  // those of single ones have room in the first word
    if (with_values) append_constant(words, number);
  }
}

// No size, no dim, and not a number either: the bits of a nan.
constexpr auto kNoValue = static_cast<int64_t>(0xfff86e6f6e650000);

void append_constant(SignatureWords& words, const c10::IValue& value) {
  if (value.isInt()) {
    words.push_back(value.toInt());
  } else if (value.isBool()) {
    words.push_back(value.toBool());
  } else if (value.isNone()) {
    words.push_back(kNoValue);
  } else if (value.isDouble()) {
    words.push_back(std::bit_cast<int64_t>(value.toDouble()));
  } else if (value.isComplexDouble()) {
    words.push_back(std::bit_cast<int64_t>(value.toComplexDouble().real()));
    words.push_back(std::bit_cast<int64_t>(value.toComplexDouble().imag()));
  } else if (value.isList()) {
    const auto list = value.toListRef();
    words.push_back(list_word(list.size()));
    for (const auto& item : list) append_constant(words, item);
  } else if (value.isIntList()) {
    const auto list = value.toIntVector();
    words.push_back(list_word(list.size()));
    words.insert(words.end(), list.begin(), list.end());
  } else if (value.isString()) {
    words.push_back(static_cast<int64_t>(std::hash<std::string>()(value.toStringRef())));
  } else if (value.isDevice()) {
    const auto device = value.toDevice();  // without an index it has index -1
    words.push_back(static_cast<int64_t>(device.type()) << 8 | static_cast<uint8_t>(device.index()));
  } else {
    words.push_back(static_cast<int64_t>(std::hash<std::string>()(value.tagKind())));
  }
}

uint64_t hash_words(const SignatureWords& words) {
  uint64_t hash = 0x9e3779b97f4a7c15ull;
  for (int64_t word : words) {
    hash ^= static_cast<uint64_t>(word);
    hash *= 0xff51afd7ed558ccdull;
    hash ^= hash >> 32;
  }
  return hash;
}

}  // namespace lockstep::graph
