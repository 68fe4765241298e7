/* Counts the arguments of the wrappers as callers of `lib` see them: without the table, which a bound method puts before them. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ARGUMENTS_H
#define ARGUMENTS_H
#include <Python.h>
#include <stdarg.h>
#include <string.h>

/* In the place of Python's function of that name, in the code that cffi writes below; min and max are always the same there. */
static int pn_unpack(PyObject *args, const char *name, Py_ssize_t min, Py_ssize_t max, ...)
{
  Py_ssize_t given = PyTuple_Size(args);
  Py_ssize_t hidden = strncmp(name, "nccl", 4) == 0 || strncmp(name, "nickel", 6) == 0;
  if (given < min || given > max) {
    PyErr_Format(PyExc_TypeError, "%s takes %zd arguments (%zd given)", name, max - hidden, given - hidden);
    return 0;
  }
  va_list places;
  va_start(places, max);
  for (Py_ssize_t i = 0; i < given; i++) *va_arg(places, PyObject **) = PyTuple_GetItem(args, i);
  va_end(places);
  return 1;
}
#define PyArg_UnpackTuple pn_unpack

#endif
