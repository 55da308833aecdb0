// What is left of a batch norm when its statistics are known, as an op: see fusion/splitter.h.
#include <torch/library.h>

#include "dynamic/kernels/batch_norm.h"

namespace lockstep::dynamic {
namespace {

TORCH_LIBRARY_FRAGMENT(lockstep, library) {
  library.def("_scale_channels(Tensor input, Tensor mean, Tensor factor, Tensor shift) -> Tensor");
}
TORCH_LIBRARY_IMPL(lockstep, CPU, library) { library.impl("_scale_channels", &scale_channels); }

}  // namespace
}  // namespace lockstep::dynamic
