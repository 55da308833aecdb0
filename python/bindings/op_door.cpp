#include "python/bindings/op_door.h"

#include <structmember.h>

#include <cstddef>

#include "coexec/session.h"
#include "python/bindings/method_doors.h"

namespace py = pybind11;

namespace lockstep::bindings {

namespace {

struct OpDoor {
  PyObject_HEAD
  PyObject* attributes;
  PyObject* original;
  PyObject* may_read;
  vectorcallfunc vectorcall;
};

PyObject* call(PyObject* self, PyObject* const* args, size_t flags, PyObject* names) {
  const auto* door = reinterpret_cast<OpDoor*>(self);
  const auto original = [&] { return PyObject_Vectorcall(door->original, args, flags, names); };
  if (PyVectorcall_NARGS(flags) == 0 || !coexec::Session::active_on_this_thread()) return original();
  const auto answer = py::reinterpret_steal<py::object>(PyObject_CallOneArg(door->may_read, args[0]));
  const int may_read = answer ? PyObject_IsTrue(answer.ptr()) : -1;
  if (may_read < 0) return nullptr;
  return may_read ? call_alone(original) : original();
}

PyObject* bind(PyObject* self, PyObject* instance, PyObject* /*type*/) {
  return instance ? PyMethod_New(self, instance) : Py_NewRef(self);
}

// Of objects that are never freed: what they are methods of lives as long as the process.
PyTypeObject* make_type() {
  static PyMemberDef members[] = {
      {"__dictoffset__", T_PYSSIZET, offsetof(OpDoor, attributes), READONLY, nullptr},
      {"__vectorcalloffset__", T_PYSSIZET, offsetof(OpDoor, vectorcall), READONLY, nullptr},
      {nullptr, 0, 0, 0, nullptr}};
  static PyGetSetDef attributes[] = {{"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
                                     {nullptr, nullptr, nullptr, nullptr, nullptr}};
  PyType_Slot slots[] = {{Py_tp_call, reinterpret_cast<void*>(&PyVectorcall_Call)},
                         {Py_tp_descr_get, reinterpret_cast<void*>(&bind)},
                         {Py_tp_members, members},
                         {Py_tp_getset, attributes},
                         {0, nullptr}};
  PyType_Spec spec = {"lockstep._C.OpDoor", sizeof(OpDoor), 0,
                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR, slots};
  return reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
}

}  // namespace

pybind11::object op_door(const py::object& original, const py::object& may_read) {
  static PyTypeObject* const type = make_type();
  auto* door = type ? PyObject_New(OpDoor, type) : nullptr;
  if (!door) throw py::error_already_set();
  door->attributes = nullptr;
  door->original = Py_NewRef(original.ptr());
  door->may_read = Py_NewRef(may_read.ptr());
  door->vectorcall = &call;
  return py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(door));
}

}  // namespace lockstep::bindings
