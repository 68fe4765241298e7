/* Makes an operation's call straight from the usual arguments: one step from Python to the library, because small messages notice two. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <Python.h>
#include <stdlib.h>
#include <string.h>
#include "direct.h"
#include "tensor.h"

enum share { NONE, PART, ALL };                          /* what a buffer holds: nothing, one rank's part, all ranks' parts */
enum use { EVERYWHERE, SEND_AT_ROOT, RECV_AT_ROOT };     /* where both buffers are used, and where the other one alone */
enum { COMM, GUARD, SEND, RECV, COUNT, DTYPE, STREAM, CONFIG, NUMBERS, MOST_GIVEN = NUMBERS + 2 };

static const int64_t MOST = ((int64_t)1 << 60) - 1; /* of a count, as in buffer.py */
static const int WIDTH[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

/* An operation as NCCL knows it: call(send, recv, count, type, numbers), or call(buffer, count, type, numbers) with one buffer. */
typedef struct {
  const char *name;
  enum share send, recv;
  enum use use;
  const char *numbers; /* o: an operator, r: a rank */
  int in_place;        /* one buffer may stand for both */
  pn_call *call;
} operation;

static operation operations[] = {
  {.name = "ncclAllReduce", .send = PART, .recv = PART, .numbers = "o", .in_place = 1},
  {.name = "ncclBroadcast", .send = PART, .recv = PART, .numbers = "r", .in_place = 1, .use = SEND_AT_ROOT},
  {.name = "ncclReduce", .send = PART, .recv = PART, .numbers = "or", .in_place = 1, .use = RECV_AT_ROOT},
  {.name = "ncclAllGather", .send = PART, .recv = ALL, .numbers = ""},
  {.name = "ncclReduceScatter", .send = ALL, .recv = PART, .numbers = "o"},
  {.name = "ncclAlltoAll", .send = ALL, .recv = ALL, .numbers = ""},
  {.name = "ncclGather", .send = PART, .recv = ALL, .numbers = "r", .use = RECV_AT_ROOT},
  {.name = "ncclScatter", .send = ALL, .recv = PART, .numbers = "r", .use = SEND_AT_ROOT},
  {.name = "ncclSend", .send = PART, .numbers = "r"},
  {.name = "ncclRecv", .recv = PART, .numbers = "r"},
};
enum { OPERATIONS = sizeof operations / sizeof operations[0] };

static PyMethodDef definitions[OPERATIONS];

/* What a function goes by; whoever imports the package anew gets functions of its own, and those before go by what they were given. */
typedef struct {
  const operation *op;
  PyObject *after, *groups;
  PyTypeObject *element, *reduction;
} means;


/* The operator and the root or peer. */
static int read_numbers(const means *my, const pn_comm *comm, PyObject *const *given, uintptr_t *numbers)
{
  const operation *op = my->op;
  for (int i = 0; op->numbers[i] != '\0'; i++) {
    int is_rank = op->numbers[i] == 'r';
    if (is_rank ? !PyLong_CheckExact(given[i]) : Py_TYPE(given[i]) != my->reduction) return 0;
    long number = PyLong_AsLong(given[i]);
    if (PyErr_Occurred() || (is_rank && (number < 0 || number >= comm->nranks))) {
      PyErr_Clear();
      return 0;
    }
    numbers[i] = (uintptr_t)number;
  }
  return 1;
}


/* A buffer that holds so many ranks' parts; an address has as many elements as the caller says. */
static int read_buffer(const means *my, PyObject *const *given, PyObject *buffer, int writable, int parts, pn_dense *found)
{
  if (given[COUNT] == Py_None && given[DTYPE] == Py_None) return pn_read(buffer, writable, found);
  if (!PyLong_CheckExact(buffer) || !PyLong_CheckExact(given[COUNT]) || Py_TYPE(given[DTYPE]) != my->element) return 0;
  found->address = (uintptr_t)PyLong_AsUnsignedLongLong(buffer);
  int64_t count = PyLong_AsLongLong(given[COUNT]);
  found->type = (int)PyLong_AsLong(given[DTYPE]);
  if (PyErr_Occurred()) {
    PyErr_Clear();
    return 0;
  }
  found->count = count * parts;
  return found->address != 0 && count > 0 && count <= MOST / parts;
}


/* Whether two buffers fit: as many parts of one size, apart or in place. */
static int fit(const operation *op, const pn_dense *s, int a, const pn_dense *r, int b, int rank)
{
  if (s->type != r->type || s->count % a != 0 || r->count % b != 0 || s->count / a != r->count / b) return 0;
  int64_t part = s->count / a * WIDTH[s->type], apart = (int64_t)(r->address - s->address);
  if (apart <= -b * part || apart >= a * part) return 1;
  if (op->send == op->recv) return op->send == PART && apart == 0;
  return apart == (op->send == ALL ? rank : -rank) * part;
}


/* The arguments of the call; 0 where the long way has to look. */
static int read_arguments(const means *my, const pn_comm *comm, PyObject *const *given, uintptr_t *argument)
{
  const operation *op = my->op;
  uintptr_t numbers[2];
  if (!comm->plain || given[STREAM] != Py_None || given[CONFIG] != Py_None || PyDict_Size(my->groups) != 0) return 0;
  if (!read_numbers(my, comm, given + NUMBERS, numbers)) return 0;
  PyObject *send = given[SEND], *recv = given[RECV];
  int at_root = op->use == EVERYWHERE || (int)numbers[strlen(op->numbers) - 1] == comm->rank;
  int a = op->send == ALL ? comm->nranks : 1, b = op->recv == ALL ? comm->nranks : 1;
  int in_place = op->in_place && recv == Py_None && (at_root || op->use == SEND_AT_ROOT);
  int sends = op->send != NONE && (at_root || op->use == RECV_AT_ROOT || (op->in_place && send != Py_None));
  int receives = op->recv != NONE && !in_place && (at_root || op->use == SEND_AT_ROOT);
  int written = in_place && !(op->use == SEND_AT_ROOT && at_root);
  pn_dense s = {0}, r = {0};
  if (sends && !read_buffer(my, given, send, written, a, &s)) return 0;
  if (receives && !read_buffer(my, given, recv, 1, b, &r)) return 0;
  if (sends && receives && !fit(op, &s, a, &r, b, comm->rank)) return 0;
  if (in_place) r.address = s.address;
  if (!sends && !receives) return 0;
  if (op->send != NONE) *argument++ = s.address;
  if (op->recv != NONE) *argument++ = r.address;
  *argument++ = (uintptr_t)(sends ? s.count / a : r.count / b);
  *argument++ = (uintptr_t)(sends ? s.type : r.type);
  for (int i = 0; op->numbers[i] != '\0'; i++) *argument++ = numbers[i];
  return 1;
}


/* The call, without the GIL. */
static int call(const operation *op, pn_comm *comm, const uintptr_t *argument)
{
  PyThreadState *state = PyEval_SaveThread();
  int code = pn_enter(comm);
  if (code == 0) {
    code = op->call(comm->table, comm->comm, 0, argument);
    pn_leave(comm);
  }
  PyEval_RestoreThread(state);
  return code;
}


static PyObject *make(PyObject *self, PyObject *const *given, Py_ssize_t number)
{
  const means *my = PyCapsule_GetPointer(self, NULL);
  if (my == NULL) return NULL;
  const operation *op = my->op;
  if (number != NUMBERS + (Py_ssize_t)strlen(op->numbers)) {
    PyErr_Format(PyExc_TypeError, "%s: %zd arguments", op->name, number);
    return NULL;
  }
  pn_comm *comm = PyLong_AsVoidPtr(given[GUARD]);
  if (comm == NULL) return NULL;
  uintptr_t argument[PN_ARGUMENTS];
  if (!read_arguments(my, comm, given, argument)) Py_RETURN_FALSE;
  int code = call(op, comm, argument);
  if (code == PN_MISSING || code == PN_BUSY || code == PN_CLOSED || code == PN_FORKED) Py_RETURN_FALSE;
  if (code != 0) {
    PyObject *done = PyObject_CallMethod(given[COMM], "_after", "iO()(OO)", code, my->after, given[SEND], given[RECV]);
    if (done == NULL) return NULL;
    Py_DecRef(done);
  }
  Py_RETURN_TRUE;
}


static void forget(PyObject *capsule)
{
  means *my = PyCapsule_GetPointer(capsule, NULL);
  Py_XDECREF(my->after);
  Py_DECREF(my->groups);
  Py_DECREF(my->element);
  Py_DECREF(my->reduction);
  free(my);
}


/* A capsule with what an operation's function goes by; takes references to all of it. */
static PyObject *capsule(const means *what)
{
  means *my = malloc(sizeof *my);
  if (my == NULL) return NULL;
  *my = *what;
  PyObject *made = PyCapsule_New(my, NULL, NULL);
  if (made == NULL) {
    free(my);
    return NULL;
  }
  Py_XINCREF(my->after);
  Py_INCREF(my->groups);
  Py_INCREF(my->element);
  Py_INCREF(my->reduction);
  PyCapsule_SetDestructor(made, forget);
  return made;
}


static PyObject *function(operation *op, PyMethodDef *definition, means my, PyObject *calls)
{
  for (const pn_named_call *named = pn_named_calls; named->name != NULL; named++)
    if (strcmp(named->name, op->name) == 0) op->call = named->call;
  my.op = op;
  my.after = PyDict_GetItemString(calls, op->name);
  *definition = (PyMethodDef){op->name, (PyCFunction)(void (*)(void))make, METH_FASTCALL, NULL};
  PyObject *self = capsule(&my);
  PyObject *made = self == NULL ? NULL : PyCFunction_NewEx(definition, self, NULL);
  Py_XDECREF(self);
  return made;
}


int pn_direct_functions(uintptr_t functions, uintptr_t calls, uintptr_t groups, uintptr_t element, uintptr_t reduction)
{
  PyGILState_STATE state = PyGILState_Ensure();
  means my = {.groups = (PyObject *)groups, .element = (PyTypeObject *)element, .reduction = (PyTypeObject *)reduction};
  int failed = 0;
  for (int i = 0; i < OPERATIONS && !failed; i++) {
    PyObject *made = function(&operations[i], &definitions[i], my, (PyObject *)calls);
    failed = made == NULL || PyDict_SetItemString((PyObject *)functions, operations[i].name, made) != 0;
    Py_XDECREF(made);
  }
  PyGILState_Release(state);
  return failed ? -1 : 0;
}
