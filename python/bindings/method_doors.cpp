// A replaced C function must know which one it replaced, and C functions have no closure: so there is a pool of
// functions made by template, one for each slot and calling convention.
#include "python/bindings/method_doors.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <array>
#include <utility>

#include "coexec/session.h"

namespace lockstep::bindings {

namespace {

constexpr size_t kSlots = 192;

struct Door {
  PyCFunction original = nullptr;
  DoorKind kind = DoorKind::kDrain;
};
std::array<Door, kSlots> doors;
size_t used_slots = 0;

void pass_tensor(const at::Tensor& tensor, DoorKind kind) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  auto* link = coexec::link_of(storage);
  auto* leader = coexec::Session::active_on_this_thread();
  if (link) {
    if (leader) {
      leader->wait_for_readers(*link);
      if (kind != DoorKind::kSettle) leader->note_fetch();
    } else {
      coexec::Session::on_raw_access(link);
    }
  }
  if (kind != DoorKind::kExpose) return;
  if (!link && coexec::owns_plain_memory(storage)) link = coexec::link_storage(storage);
  if (link) link->is_exposed = true;
}

void pass(const Door& door, PyObject* self, PyObject* first) {
  if (door.kind == DoorKind::kDrain) {
    if (auto* leader = coexec::Session::active_on_this_thread()) leader->drain();
    return;
  }
  PyObject* subject = self && THPVariable_Check(self) ? self : first;
  if (subject && THPVariable_Check(subject)) pass_tensor(THPVariable_Unpack(subject), door.kind);
}

// Every tensor argument, lists and tuples included.
void settle_all(PyObject* value, int depth = 0) {
  if (!value) return;
  if (THPVariable_Check(value)) return pass_tensor(THPVariable_Unpack(value), DoorKind::kSettle);
  if (depth > 2 || !(PyTuple_Check(value) || PyList_Check(value))) return;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i)
    settle_all(PySequence_Fast_GET_ITEM(value, i), depth + 1);
}

bool try_settle(PyObject* self, PyObject* args, PyObject* kwargs) {
  HANDLE_TH_ERRORS
  if (!coexec::Session::active_on_this_thread()) return true;
  settle_all(self);
  settle_all(args);
  PyObject *key, *value;
  Py_ssize_t position = 0;
  while (kwargs && PyDict_Next(kwargs, &position, &key, &value)) settle_all(value);
  return true;
  END_HANDLE_TH_ERRORS_RET(false)
}

// What a raw reader asks for on its way, it reads as well.
class SynchronousScope {
 public:
  explicit SynchronousScope(DoorKind kind)
      : session_(kind == DoorKind::kSettle ? coexec::Session::active_on_this_thread() : nullptr),
        before_(session_ && session_->set_synchronous(true)) {}
  ~SynchronousScope() {
    if (session_) session_->set_synchronous(before_);
  }
  SynchronousScope(const SynchronousScope&) = delete;

 private:
  coexec::Session* session_;
  bool before_;
};

bool try_pass(const Door& door, PyObject* self, PyObject* first) {
  HANDLE_TH_ERRORS
  pass(door, self, first);
  return true;
  END_HANDLE_TH_ERRORS_RET(false)
}

PyObject* first_of(PyObject* args) {
  return args && PyTuple_Check(args) && PyTuple_GET_SIZE(args) > 0 ? PyTuple_GET_ITEM(args, 0) : args;
}

template <size_t kSlot>
struct Entry {
  static PyObject* plain(PyObject* self, PyObject* args) {  // METH_NOARGS, METH_O, METH_VARARGS
    if (!try_pass(doors[kSlot], self, first_of(args))) return nullptr;
    return doors[kSlot].original(self, args);
  }
  static PyObject* keywords(PyObject* self, PyObject* args, PyObject* kwargs) {
    const bool passed = doors[kSlot].kind == DoorKind::kSettle ? try_settle(self, args, kwargs)
                                                              : try_pass(doors[kSlot], self, first_of(args));
    if (!passed) return nullptr;
    const SynchronousScope scope(doors[kSlot].kind);
    return reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void*>(doors[kSlot].original))(
        self, args, kwargs);
  }
  static PyObject* fast(PyObject* self, PyObject* const* args, Py_ssize_t count) {
    if (!try_pass(doors[kSlot], self, count > 0 ? args[0] : nullptr)) return nullptr;
    return reinterpret_cast<_PyCFunctionFast>(reinterpret_cast<void*>(doors[kSlot].original))(self, args, count);
  }
  static PyObject* fast_keywords(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
    if (!try_pass(doors[kSlot], self, count > 0 ? args[0] : nullptr)) return nullptr;
    return reinterpret_cast<_PyCFunctionFastWithKeywords>(reinterpret_cast<void*>(doors[kSlot].original))(
        self, args, count, names);
  }
};

template <class F>
PyCFunction as_c_function(F* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function));
}

struct Variants {
  PyCFunction plain, keywords, fast, fast_keywords;
};

template <size_t... kSlot>
constexpr auto make_variants(std::index_sequence<kSlot...>) {
  return std::array<Variants (*)(), sizeof...(kSlot)>{+[]() -> Variants {
    return {as_c_function(&Entry<kSlot>::plain), as_c_function(&Entry<kSlot>::keywords),
            as_c_function(&Entry<kSlot>::fast), as_c_function(&Entry<kSlot>::fast_keywords)};
  }...};
}

PyMethodDef* method_of(PyObject* callable) {
  if (PyCFunction_Check(callable)) return reinterpret_cast<PyCFunctionObject*>(callable)->m_ml;
  if (Py_IS_TYPE(callable, &PyMethodDescr_Type) || Py_IS_TYPE(callable, &PyClassMethodDescr_Type))
    return reinterpret_cast<PyMethodDescrObject*>(callable)->d_method;
  return nullptr;
}

}  // namespace

bool install_door(pybind11::handle callable, DoorKind kind) {
  static constexpr auto variants = make_variants(std::make_index_sequence<kSlots>());
  PyMethodDef* method = method_of(callable.ptr());
  if (!method || used_slots >= kSlots) return false;
  for (size_t slot = 0; slot < used_slots; ++slot) {
    const auto v = variants[slot]();
    if (method->ml_meth == v.plain || method->ml_meth == v.keywords || method->ml_meth == v.fast ||
        method->ml_meth == v.fast_keywords)
      return true;  // installed already
  }
  const size_t slot = used_slots++;
  doors[slot] = {method->ml_meth, kind};
  const auto v = variants[slot]();
  const int convention = method->ml_flags & (METH_VARARGS | METH_FASTCALL | METH_NOARGS | METH_O | METH_KEYWORDS);
  switch (convention) {
    case METH_NOARGS:
    case METH_O:
    case METH_VARARGS: method->ml_meth = v.plain; break;
    case METH_VARARGS | METH_KEYWORDS: method->ml_meth = v.keywords; break;
    case METH_FASTCALL: method->ml_meth = v.fast; break;
    case METH_FASTCALL | METH_KEYWORDS: method->ml_meth = v.fast_keywords; break;
    default: --used_slots; return false;
  }
  return true;
}

}  // namespace lockstep::bindings
