/* Shows memory by DLPack. It is C because whoever looks at the memory gives it back from any thread, and may do so after Python has ended. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <Python.h>
#include <stdlib.h>
#include <string.h>
#include "dlpack.h"

typedef struct shown {
  union {                          /* first, as users know this address and nothing else */
    struct {                       /* DLManagedTensor */
      pn_dltensor tensor;
      void *context;
      void (*deleter)(struct shown *);
    } old;
    struct {                       /* DLManagedTensorVersioned */
      uint32_t major, minor;
      void *context;
      void (*deleter)(struct shown *);
      uint64_t flags;
      pn_dltensor tensor;
    } versioned;
  };
  PyObject *owner;
  int64_t numbers[];               /* the shape, then the strides */
} shown;

static const char NAME[] = "dltensor", VERSIONED_NAME[] = "dltensor_versioned";


static void give_back(shown *it)
{
  if (Py_IsInitialized()) {
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *kind, *value, *traceback;
    PyErr_Fetch(&kind, &value, &traceback); /* this may happen while an exception is on its way */
    Py_DecRef(it->owner);
    PyErr_Restore(kind, value, traceback);
    PyGILState_Release(state);
  }
  free(it);
}


/* A capsule that somebody has taken over has another name, and they give the memory back. */
static void drop(PyObject *capsule)
{
  const char *name = PyCapsule_GetName(capsule);
  if (name == NULL || (strcmp(name, NAME) != 0 && strcmp(name, VERSIONED_NAME) != 0)) return;
  shown *it = PyCapsule_GetPointer(capsule, name);
  if (it != NULL) give_back(it);
}


void *pn_dlpack_new(int versioned, uintptr_t owner, uintptr_t address, int device_type, int device_id,
                    int code, int bits, int ndim, const int64_t *shape)
{
  shown *it = calloc(1, sizeof *it + 2 * (size_t)ndim * sizeof it->numbers[0]);
  if (it == NULL) return NULL;
  pn_dltensor made = {.data = (void *)address, .device_type = device_type, .device_id = device_id, .ndim = ndim,
                 .code = (uint8_t)code, .bits = (uint8_t)bits, .lanes = 1, .shape = it->numbers, .strides = it->numbers + ndim};
  int64_t step = 1;
  for (int i = ndim - 1; i >= 0; i--) {
    made.shape[i] = shape[i];
    made.strides[i] = step;
    step *= shape[i] > 0 ? shape[i] : 1;
  }
  if (versioned) {
    it->versioned.major = 1;
    it->versioned.deleter = give_back;
    it->versioned.tensor = made;
  } else {
    it->old.deleter = give_back;
    it->old.tensor = made;
  }
  it->owner = (PyObject *)owner;
  return it;
}


uintptr_t pn_dlpack_name(int versioned) { return (uintptr_t)(versioned ? VERSIONED_NAME : NAME); }

uintptr_t pn_dlpack_destructor(void) { return (uintptr_t)drop; }
