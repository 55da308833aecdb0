// A replaced C function must know which one it replaced, and C functions have no closure: so there is a pool of
// functions made by template, one for each slot and calling convention.
#include "python/bindings/method_doors.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <array>
#include <optional>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "coexec/session.h"
#include "tracer/hook.h"

namespace py = pybind11;

namespace lockstep::bindings {

namespace {

constexpr size_t kSlots = 384;

struct Door {
  PyCFunction original = nullptr;
  DoorKind kind = DoorKind::kDrain;
};
std::array<Door, kSlots> doors;
size_t used_slots = 0;

// What C++ reads on its way is no value that Python asks for.
bool only_settles(DoorKind kind) { return kind == DoorKind::kSettle || kind == DoorKind::kSettleIntegers; }

void pass_tensor(const at::Tensor& tensor, DoorKind kind) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  auto* link = coexec::link_of(storage);
  auto* leader = coexec::Session::active_on_this_thread();
  if (link) {
    if (leader) {
      leader->wait_for_readers(*link);
      if (!only_settles(kind)) leader->note_fetch();
    } else {
      coexec::Session::on_raw_access(link);
    }
  }
  if (kind != DoorKind::kExpose && kind != DoorKind::kLend) return;
  if (!link && coexec::owns_plain_memory(storage)) link = coexec::link_storage(storage);
  if (link && kind == DoorKind::kExpose) coexec::ReadingScope::note(coexec::expose(*link));
}

// Ordinary conversions ask for a value by an op, which the hook sees.
bool is_ordinary(DoorKind kind) {
  return kind == DoorKind::kConvert && !c10::impl::tls_is_dispatch_key_excluded(tracer::kHookKey);
}

PyObject* subject_of(PyObject* self, PyObject* first) {
  PyObject* subject = self && THPVariable_Check(self) ? self : first;
  return subject && THPVariable_Check(subject) ? subject : nullptr;
}

void pass(const Door& door, PyObject* self, PyObject* first) {
  if (door.kind == DoorKind::kScope) return;
  if (door.kind == DoorKind::kDrain || door.kind == DoorKind::kAlone) {
    if (auto* leader = coexec::Session::active_on_this_thread()) leader->drain();
    coexec::Session::drain_others();  // settings and generators are everybody's
    return;
  }
  if (PyObject* subject = subject_of(self, first)) pass_tensor(THPVariable_Unpack(subject), door.kind);
}

// The memory of `subject` is seen through `loan` until that dies: an array, whose views keep it alive.
void lend(PyObject* subject, PyObject* loan) {
  const auto& tensor = THPVariable_Unpack(subject);
  auto* link = tensor.has_storage() ? coexec::link_of(tensor.storage().unsafeGetStorageImpl()) : nullptr;
  if (!link) return;
  const auto exposure = coexec::expose(*link);
  try {
    const auto finalize = py::module_::import("weakref").attr("finalize");
    finalize(py::handle(loan), py::cpp_function([exposure] { exposure.end(); })).attr("atexit") = false;
  } catch (py::error_already_set& error) {  // nothing that can be watched: it stays exposed
    error.discard_as_unraisable("lockstep");
  }
}

// What arguments hold.
struct Contents {
  bool tensors = false;
  bool sequences = false;  // of other types than lists and tuples: what is in them shows when it is read
};

constexpr int kDeepest = 16;  // lists in lists

// Text and buffers, arrays above all, hold no tensors.
bool may_hold_tensors(PyObject* sequence) {
  return PySequence_Check(sequence) && !PyUnicode_Check(sequence) && !PyObject_CheckBuffer(sequence) && !PyRange_Check(sequence);
}

// Every tensor that the kind is about, lists and tuples included.
void settle_all(DoorKind kind, PyObject* value, Contents& contents, int depth = 0) {
  if (THPVariable_Check(value)) {
    const auto& tensor = THPVariable_Unpack(value);
    contents.tensors = true;
    if (kind == DoorKind::kSettle || c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true)) pass_tensor(tensor, kind);
    return;
  }
  if (depth > kDeepest || !(PyTuple_Check(value) || PyList_Check(value))) {
    contents.sequences |= kind == DoorKind::kSettle && may_hold_tensors(value);
    return;
  }
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i)
    settle_all(kind, PySequence_Fast_GET_ITEM(value, i), contents, depth + 1);
}

// `reads_tensors`: also a tensor that is an argument for itself, not only those in lists.
bool try_settle(DoorKind kind, PyObject* self, PyObject* args, PyObject* kwargs, bool reads_tensors, Contents& contents) {
  HANDLE_TH_ERRORS
  if (!coexec::Session::active_on_this_thread() && coexec::Session::all().empty()) return true;
  const auto settle = [&](PyObject* value) {
    if (reads_tensors || !THPVariable_Check(value)) settle_all(kind, value, contents);
  };
  if (self) settle(self);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); ++i) settle(PyTuple_GET_ITEM(args, i));
  PyObject *key, *value;
  Py_ssize_t position = 0;
  while (kwargs && PyDict_Next(kwargs, &position, &key, &value)) settle(value);
  return true;
  END_HANDLE_TH_ERRORS_RET(false)
}

// Reads memory of what it asks for on its way: the numbers behind a view that negates or conjugates, say.
bool reads_its_own(DoorKind kind) {
  return kind == DoorKind::kSettle || kind == DoorKind::kRead || kind == DoorKind::kLend || kind == DoorKind::kAlone;
}

// While the original runs.
class PassageScope {
 public:
  explicit PassageScope(DoorKind kind)
      : session_(reads_its_own(kind) ? coexec::Session::active_on_this_thread() : nullptr),
        before_(session_ && session_->set_synchronous(true)),
        alone_(kind == DoorKind::kAlone ? session_ : nullptr),
        before_alone_(alone_ && alone_->set_at_once(true)) {
    if (kind == DoorKind::kScope || kind == DoorKind::kLend) reading_.emplace();
  }
  ~PassageScope() {
    if (alone_) alone_->set_at_once(before_alone_);
    if (session_) session_->set_synchronous(before_);
  }
  PassageScope(const PassageScope&) = delete;

 private:
  coexec::Session* session_;
  bool before_;
  coexec::Session* alone_;
  bool before_alone_;
  std::optional<coexec::ReadingScope> reading_;
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

template <class Call>
PyObject* through(const Door& door, PyObject* self, PyObject* first, Call call) {
  PyObject* result = nullptr;
  {
    const PassageScope scope(door.kind);
    result = call();
  }
  if (result && door.kind == DoorKind::kLend)
    if (PyObject* subject = subject_of(self, first)) lend(subject, result);
  return result;
}

template <size_t kSlot>
struct Entry {
  static PyObject* plain(PyObject* self, PyObject* args) {  // METH_NOARGS, METH_O, METH_VARARGS
    const Door& door = doors[kSlot];
    if (is_ordinary(door.kind)) return door.original(self, args);
    if (!try_pass(door, self, first_of(args))) return nullptr;
    return through(door, self, first_of(args), [&] { return door.original(self, args); });
  }
  static PyObject* keywords(PyObject* self, PyObject* args, PyObject* kwargs) {
    const Door& door = doors[kSlot];
    Contents contents;
    const bool passed = only_settles(door.kind)
                            ? try_settle(door.kind, self, args, kwargs, /*reads_tensors=*/true, contents)
                            : try_pass(door, self, first_of(args));
    if (!passed) return nullptr;
    const auto call = [&] {
      return reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void*>(door.original))(self, args, kwargs);
    };
    return contents.sequences ? call_alone(call) : through(door, self, first_of(args), call);
  }
  static PyObject* fast(PyObject* self, PyObject* const* args, Py_ssize_t count) {
    const Door& door = doors[kSlot];
    PyObject* first = count > 0 ? args[0] : nullptr;
    if (!try_pass(door, self, first)) return nullptr;
    return through(door, self, first, [&] {
      return reinterpret_cast<_PyCFunctionFast>(reinterpret_cast<void*>(door.original))(self, args, count);
    });
  }
  static PyObject* fast_keywords(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
    const Door& door = doors[kSlot];
    PyObject* first = count > 0 ? args[0] : nullptr;
    if (!try_pass(door, self, first)) return nullptr;
    return through(door, self, first, [&] {
      return reinterpret_cast<_PyCFunctionFastWithKeywords>(reinterpret_cast<void*>(door.original))(self, args, count,
                                                                                                    names);
    });
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

// ---- constructors: slots of types, which subclasses copy

std::array<newfunc, 4> constructors{};

template <size_t kSlot>
PyObject* construct(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  const auto call = [&] { return constructors[kSlot](type, args, kwargs); };
  Contents contents;
  if (!try_settle(DoorKind::kSettle, nullptr, args, kwargs, /*reads_tensors=*/false, contents)) return nullptr;
  if (contents.sequences) return call_alone(call);
  std::optional<PassageScope> scope;
  if (contents.tensors) scope.emplace(DoorKind::kSettle);
  return call();
}

constexpr std::array<newfunc, 4> kConstructors{construct<0>, construct<1>, construct<2>, construct<3>};

void replace_constructor(const py::handle& type, newfunc from, newfunc to) {
  auto* object = reinterpret_cast<PyTypeObject*>(type.ptr());
  if (object->tp_new != from) return;  // one of its own, in Python, which calls that of its base
  object->tp_new = to;
  PyType_Modified(object);
  const py::handle any_type(reinterpret_cast<PyObject*>(&PyType_Type));  // a metaclass may have such a method of its own
  for (const auto& derived : py::list(any_type.attr("__subclasses__")(type)))
    replace_constructor(derived, from, to);
}

PyMethodDef* method_of(PyObject* callable) {
  if (PyInstanceMethod_Check(callable)) callable = PyInstanceMethod_GET_FUNCTION(callable);  // a method of pybind11's
  if (PyCFunction_Check(callable)) return reinterpret_cast<PyCFunctionObject*>(callable)->m_ml;
  if (Py_IS_TYPE(callable, &PyMethodDescr_Type) || Py_IS_TYPE(callable, &PyClassMethodDescr_Type))
    return reinterpret_cast<PyMethodDescrObject*>(callable)->d_method;
  return nullptr;
}

}  // namespace

DoorKind door_kind(const std::string& name) {
  static const std::unordered_map<std::string, DoorKind> kinds = {
      {"drain", DoorKind::kDrain},   {"read", DoorKind::kRead}, {"settle", DoorKind::kSettle},
      {"expose", DoorKind::kExpose}, {"lend", DoorKind::kLend}, {"scope", DoorKind::kScope},
      {"alone", DoorKind::kAlone},   {"settle integers", DoorKind::kSettleIntegers},
      {"convert", DoorKind::kConvert},
  };
  return kinds.at(name);
}

bool install_door(pybind11::handle callable, DoorKind kind) {
  static constexpr auto variants = make_variants(std::make_index_sequence<kSlots>());
  PyMethodDef* method = method_of(callable.ptr());
  if (!method) return false;
  for (size_t slot = 0; slot < used_slots; ++slot) {
    const auto v = variants[slot]();
    if (method->ml_meth == v.plain || method->ml_meth == v.keywords || method->ml_meth == v.fast ||
        method->ml_meth == v.fast_keywords)
      return true;  // installed already
  }
  // The functions that pybind11 makes in one module are all one C function.
  size_t slot = 0;
  while (slot < used_slots && (doors[slot].original != method->ml_meth || doors[slot].kind != kind)) ++slot;
  if (slot == used_slots) {
    if (used_slots == kSlots) throw std::length_error("there are too many C functions to watch in this process");
    doors[used_slots++] = {method->ml_meth, kind};
  }
  const auto v = variants[slot]();
  const int convention = method->ml_flags & (METH_VARARGS | METH_FASTCALL | METH_NOARGS | METH_O | METH_KEYWORDS);
  switch (convention) {
    case METH_NOARGS:
    case METH_O:
    case METH_VARARGS: method->ml_meth = v.plain; break;
    case METH_VARARGS | METH_KEYWORDS: method->ml_meth = v.keywords; break;
    case METH_FASTCALL: method->ml_meth = v.fast; break;
    case METH_FASTCALL | METH_KEYWORDS: method->ml_meth = v.fast_keywords; break;
    default: return false;
  }
  return true;
}

void install_constructor_door(pybind11::handle type) {
  const newfunc original = reinterpret_cast<PyTypeObject*>(type.ptr())->tp_new;
  if (std::find(kConstructors.begin(), kConstructors.end(), original) != kConstructors.end()) return;
  size_t slot = 0;
  while (slot < constructors.size() && constructors[slot] && constructors[slot] != original) ++slot;
  if (slot == constructors.size()) throw std::length_error("there are too many constructors of tensors to watch");
  constructors[slot] = original;
  replace_constructor(type, original, kConstructors[slot]);
}

PyObject* call_alone(const std::function<PyObject*()>& call) {
  const Door door{nullptr, DoorKind::kAlone};
  if (!try_pass(door, nullptr, nullptr)) return nullptr;
  const PassageScope scope(door.kind);
  return call();
}

pybind11::object in_reading_scope(const py::object& original) {
  const py::cpp_function function(
      [original](const py::args& args, const py::kwargs& kwargs) {
        const coexec::ReadingScope scope;
        return original(*args, **kwargs);
      },
      py::name(py::str(original.attr("__name__")).cast<std::string>().c_str()));
  return py::reinterpret_steal<py::object>(PyInstanceMethod_New(function.ptr()));
}

}  // namespace lockstep::bindings
