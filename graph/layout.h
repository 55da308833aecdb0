// Layouts: what is known of a tensor without its data. Two values with equal layouts are interchangeable to every
// decision that PyTorch makes outside a kernel.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <string>
#include <vector>

namespace at {
class Tensor;
}
namespace c10 {
struct IValue;
}

namespace lockstep::graph {

struct Layout {
  c10::ScalarType dtype = c10::ScalarType::Undefined;  // Undefined: no tensor in this place
  bool conj = false;
  bool neg = false;
  bool wrapped_number = false;
  c10::SmallVector<int64_t, 5> sizes;
  c10::SmallVector<int64_t, 5> strides;
  int64_t offset = 0;         // elements
  int64_t storage_bytes = 0;  // of the whole storage
  int storage_group = -1;     // outputs of one op with equal groups share one storage

  bool is_defined() const { return dtype != c10::ScalarType::Undefined; }
  int64_t numel() const;
  int64_t end_bytes() const;  // where the last element ends in the storage; 0 without elements
  bool same_geometry(const Layout& other) const;
  bool is_contiguous() const;  // the strides of dims of size 1 say nothing
  bool is_without_overlap() const;  // true: no two elements in one place
  std::string str() const;  // f32[2,3;3,1]
};

Layout layout_of(const at::Tensor& tensor);
const char* dtype_name(c10::ScalarType dtype);

using SignatureWords = std::vector<int64_t>;
// The inputs of an op, flattened into words: equal words, equal output layouts (dynamic/shapes/shape_memo.h). The first
// word is of the mode in which the op is asked, in kModeBits, and of the classes of its numbers.
constexpr int kModeBits = 15;
constexpr int kNumberClasses = 120;
inline int64_t mode_of(const SignatureWords& words) { return words[0] & ((1 << kModeBits) - 1); }
void append_layout(SignatureWords& words, const at::Tensor& tensor);
// The value of a constant argument. A scalar without its value counts by type; and its class goes to the first word, which
// is there already.
void append_constant(SignatureWords& words, const c10::IValue& value);
inline int64_t list_word(size_t size) { return static_cast<int64_t>(size) << 8 | 9; }  // before the items of a list
void append_scalar(SignatureWords& words, const c10::IValue& value, bool with_value);
// A list of scalars, of any length.
void append_scalars(SignatureWords& words, const c10::IValue& list, bool with_values);
// By kind and sign, and by the types whose range holds it: kernels refuse numbers that are negative, or too large for a
// type, or whose inverse is; and the kind may decide on the type of the result.
int number_class(const c10::IValue& value);
uint64_t hash_words(const SignatureWords& words);

}  // namespace lockstep::graph
