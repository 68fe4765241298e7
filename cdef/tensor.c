/* Reads a tensor of torch with one call of C instead of six questions to Python: the smallest messages notice the difference. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <Python.h>
#include "all.h"
#include "dlpack.h"
#include "tensor.h"

enum { HOST_MEMORY = 1, SIGNED = 0, UNSIGNED = 1, FLOAT = 2, BFLOAT = 4, E4M3FN = 10, E5M2 = 12 }; /* DLPack's numbers */

static int (*describe)(void *object, pn_dltensor *found);


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


static PyObject *look(PyObject *types, PyObject *object)
{
  pn_dltensor t;
  if (describe(object, &t) != 0) {
    PyErr_Clear(); /* what has no plain memory; the slow way says what it is */
    Py_RETURN_NONE;
  }
  int64_t count = t.device_type == HOST_MEMORY && t.data != NULL ? dense_count(&t) : 0;
  int type = type_of(&t);
  if (count < 2 || type < 0) Py_RETURN_NONE; /* a single element can be a lazy negative */
  PyObject *address = PyLong_FromUnsignedLongLong((uintptr_t)t.data + t.byte_offset), *size = PyLong_FromLongLong(count);
  PyObject *found = address != NULL && size != NULL ? PyTuple_Pack(3, address, size, PyTuple_GetItem(types, type)) : NULL;
  Py_XDECREF(address);
  Py_XDECREF(size);
  return found;
}


static PyMethodDef definition = {"look", look, METH_O, NULL};

uintptr_t pn_tensor_reader(uintptr_t function, uintptr_t types)
{
  PyGILState_STATE state = PyGILState_Ensure();
  describe = (int (*)(void *, pn_dltensor *))function;
  PyObject *made = PyCFunction_NewEx(&definition, (PyObject *)types, NULL);
  PyGILState_Release(state);
  return (uintptr_t)made;
}
