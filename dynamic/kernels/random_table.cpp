// The schemas are PyTorch 2.13's, beside each kernel. A factory (rand) draws into memory of its own what the in-place
// sampler (uniform_) draws: so PyTorch composes them, too (ATen/native/TensorFactories.cpp).
#include "dynamic/kernels/kernel_table.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "dynamic/kernels/random.h"

namespace lockstep::dynamic {
namespace {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

class Arguments {
 public:
  Arguments(const Stack& stack, size_t count) : first_(stack.data() + stack.size() - count) {}
  const IValue& operator[](size_t i) const { return first_[i]; }
  const Tensor& tensor(size_t i) const { return first_[i].toTensor(); }
  double number(size_t i) const { return first_[i].toDouble(); }
  int64_t integer(size_t i) const { return first_[i].toInt(); }
  MaybeGenerator generator(size_t i) const {
    return first_[i].isNone() ? MaybeGenerator() : MaybeGenerator(first_[i].toGenerator());
  }

 private:
  const IValue* first_;
};

void return_tensor(Stack& stack, size_t argument_count, Tensor tensor) {
  torch::jit::drop(stack, argument_count);
  stack.emplace_back(std::move(tensor));
}

// dtype, layout, device, pin_memory from argument i on. None if it is more than a type of a plain CPU tensor.
std::optional<at::ScalarType> plain_type(const Arguments& arguments, size_t i, at::ScalarType otherwise) {
  const auto &type = arguments[i], &layout = arguments[i + 1], &device = arguments[i + 2], &pin = arguments[i + 3];
  if (!layout.isNone() && layout.toLayout() != at::kStrided) return std::nullopt;
  if (!device.isNone() && !device.toDevice().is_cpu()) return std::nullopt;
  if (!pin.isNone() && pin.toBool()) return std::nullopt;
  return type.isNone() ? otherwise : type.toScalarType();
}

Tensor create_contiguous(at::IntArrayRef sizes, at::ScalarType type) { return at::detail::empty_cpu(sizes, type); }

// A new tensor of the sizes in argument `sizes`, filled; the options begin at argument `options`.
template <typename Fill>
bool create(Stack& stack, size_t count, size_t sizes, size_t options, Fill fill) {
  const Arguments arguments(stack, count);
  if (!arguments[sizes].isIntList()) return false;  // symbolic
  const auto type = plain_type(arguments, options, at::typeMetaToScalarType(c10::get_default_dtype()));
  if (!type) return false;
  for (const int64_t size : arguments[sizes].toIntList())
    if (size < 0) return false;
  Tensor tensor = create_contiguous(arguments[sizes].toIntVector(), *type);
  if (!fill(tensor, arguments)) return false;
  return_tensor(stack, count, std::move(tensor));
  return true;
}

// A new tensor like argument 0, filled; behind the options stands the memory format.
template <typename Fill>
bool create_like(Stack& stack, size_t count, size_t options, Fill fill) {
  const Arguments arguments(stack, count);
  const Tensor& self = arguments.tensor(0);
  const IValue& format = arguments[options + 4];
  const bool is_kept = format.isNone() || format.toMemoryFormat() == at::MemoryFormat::Preserve;
  if (!self.defined() || !self.is_cpu() || self.layout() != at::kStrided) return false;
  if (is_kept ? !self.is_non_overlapping_and_dense() : format.toMemoryFormat() != at::MemoryFormat::Contiguous)
    return false;
  const auto type = plain_type(arguments, options, self.scalar_type());
  if (!type) return false;
  Tensor tensor = is_kept ? Tensor(at::detail::empty_strided_cpu(self.sizes(), self.strides(), *type))
                          : create_contiguous(self.sizes(), *type);
  if (!fill(tensor, arguments)) return false;
  return_tensor(stack, count, std::move(tensor));
  return true;
}

// In place: self is argument 0 and the result.
template <typename Fill>
bool fill_in_place(Stack& stack, size_t count, Fill fill) {
  const Arguments arguments(stack, count);
  if (!fill(arguments.tensor(0), arguments)) return false;
  torch::jit::drop(stack, count - 1);
  return true;
}

// bernoulli_.float(Tensor(a!) self, float p, *, Generator? generator)
bool bernoulli_in_place(Stack& stack) {
  return fill_in_place(stack, 3, [](const Tensor& self, const Arguments& arguments) {
    return try_bernoulli_(self, arguments.number(1), arguments.generator(2));
  });
}

// bernoulli_.Tensor(Tensor(a!) self, Tensor p, *, Generator? generator)
bool bernoulli_each_in_place(Stack& stack) {
  return fill_in_place(stack, 3, [](const Tensor& self, const Arguments& arguments) {
    return try_bernoulli_(self, arguments.tensor(1), arguments.generator(2));
  });
}

// bernoulli(Tensor self, *, Generator? generator): self holds the probabilities
bool bernoulli(Stack& stack) {
  const Arguments arguments(stack, 2);
  const Tensor& p = arguments.tensor(0);
  if (!p.defined() || !p.is_cpu() || p.layout() != at::kStrided) return false;
  Tensor result = create_contiguous(p.sizes(), p.scalar_type());
  if (!try_bernoulli_(result, p, arguments.generator(1))) return false;
  return_tensor(stack, 2, std::move(result));
  return true;
}

// bernoulli.p(Tensor self, float p, *, Generator? generator): self gives sizes and type
bool bernoulli_p(Stack& stack) {
  const Arguments arguments(stack, 3);
  const Tensor& self = arguments.tensor(0);
  if (!self.defined() || !self.is_cpu() || self.layout() != at::kStrided) return false;
  Tensor result = create_contiguous(self.sizes(), self.scalar_type());
  if (!try_bernoulli_(result, arguments.number(1), arguments.generator(2))) return false;
  return_tensor(stack, 3, std::move(result));
  return true;
}

// uniform_(Tensor(a!) self, float from, float to, *, Generator? generator)
bool uniform_in_place(Stack& stack) {
  return fill_in_place(stack, 4, [](const Tensor& self, const Arguments& arguments) {
    return try_uniform_(self, arguments.number(1), arguments.number(2), arguments.generator(3));
  });
}

// normal_(Tensor(a!) self, float mean, float std, *, Generator? generator)
bool normal_in_place(Stack& stack) {
  return fill_in_place(stack, 4, [](const Tensor& self, const Arguments& arguments) {
    return try_normal_(self, arguments.number(1), arguments.number(2), arguments.generator(3));
  });
}

// normal.float_float(float mean, float std, SymInt[] size, *, Generator? generator, options)
bool normal(Stack& stack) {
  return create(stack, 8, 2, 4, [](const Tensor& self, const Arguments& arguments) {
    return try_normal_(self, arguments.number(0), arguments.number(1), arguments.generator(3));
  });
}

// random_(Tensor(a!) self, *, Generator? generator)
bool random_in_place(Stack& stack) {
  return fill_in_place(stack, 2, [](const Tensor& self, const Arguments& arguments) {
    return try_random_(self, arguments.generator(1));
  });
}

// random_.to(Tensor(a!) self, int to, *, Generator? generator)
bool random_to_in_place(Stack& stack) {
  return fill_in_place(stack, 3, [](const Tensor& self, const Arguments& arguments) {
    return try_random_(self, 0, arguments.integer(1), arguments.generator(2));
  });
}

// random_.from(Tensor(a!) self, int from, int? to, *, Generator? generator)
bool random_from_in_place(Stack& stack) {
  return fill_in_place(stack, 4, [](const Tensor& self, const Arguments& arguments) {
    if (arguments[2].isNone()) return false;
    return try_random_(self, arguments.integer(1), arguments.integer(2), arguments.generator(3));
  });
}

// What the factories draw. kGenerator: the argument that holds the generator, or none.
constexpr size_t kNoGenerator = 0;

template <size_t kGenerator>
MaybeGenerator generator_of(const Arguments& arguments) {
  return kGenerator == kNoGenerator ? MaybeGenerator() : arguments.generator(kGenerator);
}

template <size_t kGenerator>
bool standard_uniform(const Tensor& self, const Arguments& arguments) {
  return try_uniform_(self, 0, 1, generator_of<kGenerator>(arguments));
}

template <size_t kGenerator>
bool standard_normal(const Tensor& self, const Arguments& arguments) {
  return try_normal_(self, 0, 1, generator_of<kGenerator>(arguments));
}

template <size_t kHigh, size_t kGenerator>
bool below(const Tensor& self, const Arguments& arguments) {
  if (!arguments[kHigh].isInt()) return false;  // symbolic
  return try_random_(self, 0, arguments.integer(kHigh), generator_of<kGenerator>(arguments));
}

template <size_t kLow, size_t kGenerator>
bool between(const Tensor& self, const Arguments& arguments) {
  if (!arguments[kLow].isInt() || !arguments[kLow + 1].isInt()) return false;  // symbolic
  return try_random_(self, arguments.integer(kLow), arguments.integer(kLow + 1), generator_of<kGenerator>(arguments));
}

using FillByArguments = bool (*)(const Tensor&, const Arguments&);

// (..., SymInt[] size, *, [Generator? generator,] options): the sizes are argument kSizes.
template <FillByArguments kFill, size_t kSizes, bool kTakesGenerator>
bool factory(Stack& stack) {
  constexpr size_t kOptions = kSizes + 1 + kTakesGenerator;
  return create(stack, kOptions + 4, kSizes, kOptions, kFill);
}

// (Tensor self, ..., *, [Generator? generator,] options, MemoryFormat? memory_format)
template <FillByArguments kFill, size_t kOptions>
bool factory_like(Stack& stack) {
  return create_like(stack, kOptions + 5, kOptions, kFill);
}

constexpr OwnKernelRow kRows[] = {
    {"aten::bernoulli", "", bernoulli},
    {"aten::bernoulli", "p", bernoulli_p},
    {"aten::bernoulli_", "Tensor", bernoulli_each_in_place},
    {"aten::bernoulli_", "float", bernoulli_in_place},
    {"aten::normal", "float_float", normal},
    {"aten::normal_", "", normal_in_place},
    {"aten::rand", "", factory<standard_uniform<kNoGenerator>, 0, false>},
    {"aten::rand", "generator", factory<standard_uniform<1>, 0, true>},
    {"aten::rand_like", "", factory_like<standard_uniform<kNoGenerator>, 1>},
    {"aten::rand_like", "generator", factory_like<standard_uniform<1>, 2>},
    {"aten::randint", "", factory<below<0, kNoGenerator>, 1, false>},
    {"aten::randint", "generator", factory<below<0, 2>, 1, true>},
    {"aten::randint", "low", factory<between<0, kNoGenerator>, 2, false>},
    {"aten::randint", "low_generator", factory<between<0, 3>, 2, true>},
    {"aten::randint_like", "", factory_like<below<1, kNoGenerator>, 2>},
    {"aten::randint_like", "generator", factory_like<below<1, 2>, 3>},
    {"aten::randint_like", "low_dtype", factory_like<between<1, kNoGenerator>, 3>},
    {"aten::randint_like", "low_generator_dtype", factory_like<between<1, 3>, 4>},
    {"aten::randn", "", factory<standard_normal<kNoGenerator>, 0, false>},
    {"aten::randn", "generator", factory<standard_normal<1>, 0, true>},
    {"aten::randn_like", "", factory_like<standard_normal<kNoGenerator>, 1>},
    {"aten::randn_like", "generator", factory_like<standard_normal<1>, 2>},
    {"aten::random_", "", random_in_place},
    {"aten::random_", "from", random_from_in_place},
    {"aten::random_", "to", random_to_in_place},
    {"aten::uniform_", "", uniform_in_place},
};

}  // namespace

std::span<const OwnKernelRow> random_kernels() { return kRows; }

}  // namespace lockstep::dynamic
