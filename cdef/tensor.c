/* Reads NumPy's arrays in place and torch's tensors with one call of C, instead of half a dozen questions to Python. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <Python.h>
#include "all.h"
#include "dlpack.h"
#include "tensor.h"

/* The beginning of NumPy's PyArrayObject, the same in all its releases: compiled users read it in place, too. */
typedef struct {
  PyObject_HEAD
  char *data;
  int ndim;
  Py_ssize_t *shape, *strides;
  PyObject *base, *dtype;
  int flags;
} array;

enum { IN_C_ORDER = 1, WRITEABLE = 0x400, WARN_ON_WRITE = (int)(1u << 31) };                          /* NumPy's flags */
enum { HOST_MEMORY = 1, SIGNED = 0, UNSIGNED = 1, FLOAT = 2, BFLOAT = 4, E4M3FN = 10, E5M2 = 12 }; /* DLPack's numbers */
enum { KINDS = 4 };

static PyTypeObject *array_kind, *tensor_kind[KINDS];
static PyObject *array_types; /* a dict, kept: whoever imports the package anew brings another, and only with its first array */
static int (*describe)(void *object, pn_dltensor *found);


static int64_t elements(const array *it)
{
  int64_t count = 1;
  for (int i = 0; i < it->ndim; i++) count *= it->shape[i];
  return count;
}


int pn_know_arrays(uintptr_t kind, uintptr_t object, uintptr_t address, int64_t count, int flags, uintptr_t dtype, uintptr_t types)
{
  const array *it = (const array *)object;
  if ((uintptr_t)it->data != address || it->ndim < 0 || it->ndim > 64 || elements(it) != count) return 0;
  if ((uintptr_t)it->dtype != dtype || it->flags != flags) return 0;
  PyGILState_STATE state = PyGILState_Ensure(); /* other threads may be reading arrays */
  Py_INCREF((PyObject *)types);
  Py_XDECREF(array_types);
  array_types = (PyObject *)types;
  array_kind = (PyTypeObject *)kind;
  PyGILState_Release(state);
  return 1;
}


static int read_array(array *it, int writable, pn_dense *found)
{
  int needed = writable ? IN_C_ORDER | WRITEABLE : IN_C_ORDER;
  if ((it->flags & (needed | WARN_ON_WRITE)) != needed) return 0;
  PyObject *type = PyDict_GetItemWithError(array_types, it->dtype);
  if (type == NULL) {
    PyErr_Clear();
    return 0;
  }
  found->address = (uintptr_t)it->data;
  found->count = elements(it);
  found->type = (int)PyLong_AsLong(type);
  return found->count > 0;
}


/* NCCL's type, or -1. */
static int type_of(const pn_dltensor *t)
{
  if (t->lanes != 1) return -1;
  switch (t->code << 8 | t->bits) {
    case SIGNED << 8 | 8: return ncclInt8;
    case SIGNED << 8 | 32: return ncclInt32;
    case SIGNED << 8 | 64: return ncclInt64;
    case UNSIGNED << 8 | 8: return ncclUint8;
    case UNSIGNED << 8 | 32: return ncclUint32;
    case UNSIGNED << 8 | 64: return ncclUint64;
    case FLOAT << 8 | 16: return ncclFloat16;
    case FLOAT << 8 | 32: return ncclFloat32;
    case FLOAT << 8 | 64: return ncclFloat64;
    case BFLOAT << 8 | 16: return ncclBfloat16;
    case E4M3FN << 8 | 8: return ncclFloat8e4m3;
    case E5M2 << 8 | 8: return ncclFloat8e5m2;
    default: return -1;
  }
}


/* The number of elements that lie side by side in C order, or 0. */
static int64_t dense_count(const pn_dltensor *t)
{
  int64_t count = 1;
  for (int i = t->ndim - 1; i >= 0; i--) {
    if (t->strides != NULL && t->shape[i] != 1 && t->strides[i] != count) return 0;
    count *= t->shape[i];
  }
  return count;
}


void pn_know_tensors(uintptr_t kind, uintptr_t function)
{
  PyGILState_STATE state = PyGILState_Ensure();
  describe = (int (*)(void *, pn_dltensor *))function;
  int i = 0;
  while (i < KINDS && tensor_kind[i] != NULL && tensor_kind[i] != (PyTypeObject *)kind) i++;
  if (i < KINDS) tensor_kind[i] = (PyTypeObject *)kind;
  PyGILState_Release(state);
}


static int is_tensor(const PyTypeObject *kind)
{
  for (int i = 0; i < KINDS && tensor_kind[i] != NULL; i++)
    if (tensor_kind[i] == kind) return 1;
  return 0;
}


/* A leaf: what is received into a result that autograd has recorded would be lost to it. */
static int is_leaf(PyObject *object)
{
  static PyObject *name;
  if (name == NULL && (name = PyUnicode_InternFromString("is_leaf")) == NULL) return 0;
  PyObject *answer = PyObject_GetAttr(object, name);
  int leaf = answer == Py_True;
  Py_XDECREF(answer);
  return leaf;
}


static int read_tensor(PyObject *object, int writable, pn_dense *found)
{
  pn_dltensor t;
  if ((writable && !is_leaf(object)) || describe(object, &t) != 0) {
    PyErr_Clear(); /* what has no plain memory; the long way says what it is */
    return 0;
  }
  found->address = (uintptr_t)t.data + t.byte_offset;
  found->count = t.device_type == HOST_MEMORY && t.data != NULL ? dense_count(&t) : 0;
  found->type = type_of(&t);
  return found->count > 1 && found->type >= 0; /* a single element can be a lazy negative */
}


int pn_read(void *object, int writable, pn_dense *found)
{
  PyTypeObject *kind = Py_TYPE((PyObject *)object);
  if (kind == array_kind) return read_array(object, writable, found);
  return is_tensor(kind) && read_tensor(object, writable, found);
}


static PyObject *facts(PyObject *types, PyObject *const *args, Py_ssize_t given)
{
  pn_dense found;
  if (given != 2 || !pn_read(args[0], args[1] == Py_True, &found)) Py_RETURN_NONE;
  PyObject *address = PyLong_FromUnsignedLongLong(found.address), *count = PyLong_FromLongLong(found.count);
  PyObject *told = address != NULL && count != NULL ? PyTuple_Pack(3, address, count, PyTuple_GetItem(types, found.type)) : NULL;
  Py_XDECREF(address);
  Py_XDECREF(count);
  return told;
}


int pn_put_reader(uintptr_t place, uintptr_t types)
{
  static PyMethodDef definition = {"facts", (PyCFunction)(void (*)(void))facts, METH_FASTCALL, NULL};
  PyGILState_STATE state = PyGILState_Ensure();
  PyObject *made = PyCFunction_NewEx(&definition, (PyObject *)types, NULL);
  int failed = made == NULL || PyDict_SetItemString((PyObject *)place, definition.ml_name, made) != 0;
  Py_XDECREF(made);
  PyGILState_Release(state);
  return failed ? -1 : 0;
}
