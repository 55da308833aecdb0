/* What any C extension may do with a tensor: it gets an address and a length in bytes, and reads or
 * writes there. It knows nothing of torch. Errors: a negative length is a ValueError. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>

static int parse_span(PyObject* args, char** data, Py_ssize_t* length) {
  unsigned long long address = 0;
  if (!PyArg_ParseTuple(args, "Kn", &address, length)) return 0;
  if (*length < 0) {
    PyErr_SetString(PyExc_ValueError, "length is negative");
    return 0;
  }
  *data = (char*)(uintptr_t)address;
  return 1;
}

/* read(address, length) -> bytes */
static PyObject* read_span(PyObject* self, PyObject* args) {
  char* data;
  Py_ssize_t length;
  if (!parse_span(args, &data, &length)) return NULL;
  return PyBytes_FromStringAndSize(data, length);
}

/* negate(address, length): flips the sign of length / 4 floats where they lie */
static PyObject* negate_span(PyObject* self, PyObject* args) {
  char* data;
  Py_ssize_t length;
  if (!parse_span(args, &data, &length)) return NULL;
  for (Py_ssize_t at = 0; at + 4 <= length; at += 4) {
    float value;
    memcpy(&value, data + at, 4);
    value = -value;
    memcpy(data + at, &value, 4);
  }
  Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"read", read_span, METH_VARARGS, "read(address, length) -> bytes"},
    {"negate", negate_span, METH_VARARGS, "negate(address, length): floats, in place"},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "raw_pointer", NULL, -1, methods};

PyMODINIT_FUNC PyInit_raw_pointer(void) { return PyModule_Create(&module); }
