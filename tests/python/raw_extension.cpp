// An extension as others write them: it reads the memory of tensors by itself, in functions of pybind11's and in an op
// without a kernel of its own.
#include <ATen/core/Tensor.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

namespace {

double first(const at::Tensor& tensor) { return tensor.data_ptr<float>()[0]; }
double first_of_constant(const at::Tensor& tensor) { return tensor.const_data_ptr<float>()[0]; }
// Of what it asks for on its way, too.
double first_of_twice(const at::Tensor& tensor) { return first(tensor.mul(2)); }

}  // namespace

TORCH_LIBRARY(lockstep_test_extension, m) { m.def("first_of_twice", &first_of_twice); }

PYBIND11_MODULE(lockstep_test_extension, m) {
  m.def("first", &first);
  m.def("first_of_constant", &first_of_constant);
  m.def("first_of_twice", &first_of_twice);
}
