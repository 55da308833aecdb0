// Steps of torch.optim's optimizers over all parameters as one op, where the session allows other kernels and the tensors
// fit. What Python sees of a step, version counters included, is what the loops over single parameters leave.
#include <ATen/Context.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_fused_adagrad.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <optional>

#include "coexec/session.h"
#include "dynamic/kernels/optimizer_steps.h"
#include "python/bindings/bind.h"

namespace py = pybind11;

namespace lockstep::bindings {

using coexec::Session;
using dynamic::StepTensors;

namespace {

// Modes, tracers and the replay see each op, and gradients of a step want each op's own.
bool joins_steps() {
  const Session* session = Session::active_on_this_thread();
  return session && session->function()->joins_steps && !session->has_recorder() && !c10::GradMode::is_enabled() &&
         !c10::InferenceMode::is_enabled() && !at::impl::torch_function_mode_enabled() &&
         !c10::impl::dispatch_mode_enabled() && !torch::jit::tracer::isTracing() &&
         !at::globalContext().deterministicAlgorithms();
}

// Nobody but PyTorch says what its ops do (subclasses may), nothing hangs on it that they would carry along, and its storage
// shares no memory with another one.
bool is_plain(const at::Tensor& tensor) {
  if (!tensor.defined() || coexec::why_foreign(tensor) || tensor.is_inference() || tensor._fw_grad(0).defined()) return false;
  const auto* storage = tensor.storage().unsafeGetStorageImpl();
  return coexec::link_of(storage) || coexec::owns_plain_memory(storage);
}

bool read_tensors(const py::list& list, std::vector<at::Tensor>& tensors) {
  tensors.reserve(list.size());
  for (const auto& item : list) {
    if (!THPVariable_CheckExact(item.ptr())) return false;
    tensors.push_back(THPVariable_Unpack(item.ptr()));
    if (!is_plain(tensors.back())) return false;
  }
  return true;
}

// None where the step has to go one parameter after the other.
std::optional<StepTensors> read_step(const py::list& parameters, const py::list& gradients,
                                     std::initializer_list<py::list> states, const py::list* counts) {
  if (!joins_steps() || parameters.empty()) return std::nullopt;
  StepTensors step;
  bool all_are_plain = read_tensors(parameters, step.parameters) && read_tensors(gradients, step.gradients);
  for (const auto& state : states) all_are_plain = all_are_plain && read_tensors(state, step.states.emplace_back());
  if (!all_are_plain || (counts && (counts->size() != parameters.size() || !read_tensors(*counts, step.counts))) ||
      !dynamic::fit_one_step(step, dynamic::SharedBy::kStorage))
    return std::nullopt;
  return step;
}

void bump(const std::vector<at::Tensor>& tensors, int by) {
  for (const auto& tensor : tensors)
    for (int n = 0; n < by; ++n) tensor.unsafeGetTensorImpl()->bump_version();
}

// As anybody would: its versions rise by themselves.
void count(const StepTensors& step) { at::_foreach_add_(step.counts, 1); }

bool try_adam(const py::list& parameters, const py::list& gradients, const py::list& means, const py::list& squares,
              const py::list& largest_squares, const py::list& counts, double rate, double beta1, double beta2,
              double weight_decay, double eps, bool amsgrad, bool maximize, bool is_decoupled) {
  const double first_rate = rate / (1 - beta1);  // the largest: later ones are corrected by less
  if (!dynamic::has_usual_rates(first_rate, weight_decay, {beta1, beta2}) || !dynamic::has_usual_rates(rate, eps)) return false;
  const auto step = amsgrad ? read_step(parameters, gradients, {means, squares, largest_squares}, &counts)
                      : read_step(parameters, gradients, {means, squares}, &counts);
  if (!step) return false;
  const py::gil_scoped_release released;
  count(*step);
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::TensorList largest = amsgrad ? at::TensorList(step->states[2]) : at::TensorList();
  if (is_decoupled) {
    at::_fused_adamw_(step->parameters, step->gradients, step->states[0], step->states[1], largest, step->counts, rate,
                      beta1, beta2, weight_decay, eps, amsgrad, maximize);
  } else {
    at::_fused_adam_(step->parameters, step->gradients, step->states[0], step->states[1], largest, step->counts, rate,
                     beta1, beta2, weight_decay, eps, amsgrad, maximize);
  }
  bump(step->parameters, is_decoupled && weight_decay != 0 ? 2 : 1);
  bump(step->states[0], 1);
  bump(step->states[1], 2);
  if (amsgrad) bump(step->states[2], 1);
  return true;
}

bool try_sgd(const py::list& parameters, const py::list& gradients, const py::list& buffers, double weight_decay,
             double momentum, double rate, double dampening, bool nesterov, bool maximize) {
  if (!dynamic::has_usual_rates(rate, weight_decay) || !dynamic::has_usual_rates(momentum, dampening)) return false;
  const auto step = momentum == 0 ? read_step(parameters, gradients, {}, nullptr)
                                  : read_step(parameters, gradients, {buffers}, nullptr);
  if (!step) return false;
  const py::gil_scoped_release released;
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::TensorList momenta = momentum == 0 ? at::TensorList() : at::TensorList(step->states[0]);
  at::_fused_sgd_(step->parameters, step->gradients, momenta, weight_decay, momentum, rate, dampening, nesterov, maximize,
                  /*is_first_step=*/false);
  bump(step->parameters, 1);
  if (momentum != 0) bump(step->states[0], 2);
  return true;
}

bool try_adagrad(const py::list& parameters, const py::list& gradients, const py::list& sums, const py::list& counts,
                 double rate, double weight_decay, double rate_decay, double eps, bool maximize) {
  if (!dynamic::has_usual_rates(rate, weight_decay) || !dynamic::has_usual_rates(rate_decay, eps)) return false;
  const auto step = read_step(parameters, gradients, {sums}, &counts);
  if (!step) return false;
  const py::gil_scoped_release released;
  count(*step);
  const at::AutoDispatchBelowADInplaceOrView below;
  at::_fused_adagrad_(step->parameters, step->gradients, step->states[0], step->counts, rate, rate_decay, weight_decay, eps,
                      maximize);
  bump(step->parameters, 1);
  bump(step->states[0], 1);
  return true;
}

using RmspropSignature = void(at::TensorList, at::TensorList, at::TensorList, at::TensorList, at::TensorList, double, double,
                              double, double, double, bool);

bool try_rmsprop(const py::list& parameters, const py::list& gradients, const py::list& squares, const py::list& means,
                 const py::list& buffers, const py::list& counts, double rate, double alpha, double eps, double weight_decay,
                 double momentum, bool is_centered, bool maximize) {
  if (!dynamic::has_usual_rates(rate, weight_decay) || !dynamic::has_usual_rates(momentum, eps) ||
      !dynamic::has_usual_rates(0, 0, {alpha}))
    return false;
  const bool has_momentum = momentum > 0;
  const auto step = is_centered ? has_momentum ? read_step(parameters, gradients, {squares, means, buffers}, &counts)
                                               : read_step(parameters, gradients, {squares, means}, &counts)
                    : has_momentum ? read_step(parameters, gradients, {squares, buffers}, &counts)
                                   : read_step(parameters, gradients, {squares}, &counts);
  if (!step) return false;
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("lockstep::_fused_rmsprop_", "").typed<RmspropSignature>();
  const py::gil_scoped_release released;
  count(*step);
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::TensorList no_tensors, means_read = is_centered ? at::TensorList(step->states[1]) : no_tensors;
  const at::TensorList buffers_read = has_momentum ? at::TensorList(step->states.back()) : no_tensors;
  op.call(step->parameters, step->gradients, step->states[0], means_read, buffers_read, rate, alpha, eps, weight_decay,
          momentum, maximize);
  bump(step->parameters, 1);
  bump(step->states[0], 2);
  if (is_centered) bump(step->states[1], 1);
  if (has_momentum) bump(step->states.back(), 2);
  return true;
}

}  // namespace

// Each returns whether it has done the step; if not, nothing has happened.
void bind_optimizers(py::module_& m) {
  m.def("try_adam", &try_adam);
  m.def("try_sgd", &try_sgd);
  m.def("try_adagrad", &try_adagrad);
  m.def("try_rmsprop", &try_rmsprop);
}

}  // namespace lockstep::bindings
