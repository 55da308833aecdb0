#include "tests/support/jit_kernels.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <random>

#include "dynamic/jit/spec_text.h"

namespace lockstep::dynamic::jit {
namespace {

constexpr c10::ScalarType kTypes[] = {at::kBool, at::kByte, at::kChar,     at::kShort, at::kInt,
                                      at::kLong, at::kHalf, at::kBFloat16, at::kFloat, at::kDouble};

}  // namespace

c10::ScalarType scalar_type_of(DType type) { return kTypes[static_cast<int>(type)]; }

DType dtype_of(const at::Tensor& tensor) {
  for (int i = 0; i < static_cast<int>(DType::kCount); ++i) {
    if (kTypes[i] == tensor.scalar_type()) return static_cast<DType>(i);
  }
  ADD_FAILURE() << "no such type: " << tensor.scalar_type();
  return DType::kFloat32;
}

std::shared_ptr<const Kernel> compile_or_fail(const KernelSpec& spec, TargetChoice choice) {
  CompileResult result = compile(spec, choice);
  EXPECT_TRUE(result) << result.reason << "\n" << print_spec(spec);
  return result.kernel;
}

std::vector<int64_t> strides_for(const at::Tensor& tensor, at::IntArrayRef sizes) {
  return tensor.expand(sizes).strides().vec();
}

void run_on(const Kernel& kernel, const std::vector<at::Tensor>& tensors, const std::vector<int64_t>& sizes,
            const std::vector<int64_t>& strides, const std::vector<ScalarValue>& scalars) {
  std::vector<void*> buffers;
  for (const at::Tensor& tensor : tensors) buffers.push_back(tensor.mutable_data_ptr());
  kernel.run({buffers, sizes, strides, scalars});
}

bool has_same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  at::Tensor x = a.contiguous();
  at::Tensor y = b.contiguous();
  at::Tensor is_nan = x.isnan().logical_and(y.isnan());
  c10::ScalarType bits = x.element_size() == 8   ? at::kLong
                         : x.element_size() == 4 ? at::kInt
                         : x.element_size() == 2 ? at::kShort
                                                 : at::kByte;
  return x.view(bits).eq(y.view(bits)).logical_or(is_nan).all().item<bool>();
}

at::Tensor run_op(Op op, const std::vector<at::Tensor>& operands, TargetChoice choice) {
  int64_t count = operands[0].numel();
  KernelSpec spec;
  spec.sizes = {kSymbolic};
  std::vector<ValueId> values;
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& operand : operands) {
    tensors.push_back(operand.contiguous());
    values.push_back(spec.load(spec.add_buffer(dtype_of(operand), Access::kIn, {1})));
  }
  ValueId value = values.size() == 1   ? spec.unary(op, values[0])
                  : op == Op::k_where  ? spec.where(values[0], values[1], values[2])
                  : values.size() == 2 ? spec.binary(op, values[0], values[1])
                                       : spec.fma(values[0], values[1], values[2]);
  DType type = spec.type_of(value);
  spec.store(spec.add_buffer(type, Access::kOut, {1}), value);
  tensors.push_back(at::empty(operands[0].sizes(), at::TensorOptions().dtype(scalar_type_of(type))));
  if (auto kernel = compile_or_fail(spec, choice)) run_on(*kernel, tensors, {count});
  return tensors.back();
}

at::Tensor special_numbers(at::IntArrayRef sizes, c10::ScalarType type, uint64_t seed) {
  std::mt19937_64 random(seed);
  if (type == at::kBool || !at::isFloatingType(type)) {
    at::Tensor whole = at::empty(sizes, at::kLong);
    for (int64_t i = 0; i < whole.numel(); ++i)
      whole.mutable_data_ptr<int64_t>()[i] = static_cast<int64_t>(random() % 200) - 100;
    return type == at::kBool ? whole.gt(0) : whole.to(type);
  }
  const double kSpecial[] = {0.0, -0.0, 1.0, -1.0, INFINITY, -INFINITY, NAN,  1e-40, -1e-40, 1e-45,  3e38,  -3e38,
                             0.5, -0.5, 2.5, 1.5,  1e10,     -1e10,     88.0, -88.0, 104.0,  -104.0, 1e-20, 65504.0};
  at::Tensor numbers = at::empty(sizes, at::kDouble);
  auto* data = numbers.mutable_data_ptr<double>();
  std::normal_distribution<double> normal(0, 3);
  for (int64_t i = 0; i < numbers.numel(); ++i) {
    data[i] = random() % 4 == 0 ? kSpecial[random() % std::size(kSpecial)] : normal(random);
  }
  return numbers.to(type);
}

}  // namespace lockstep::dynamic::jit
