/* One opened NCCL library as a table of addresses, and the guard around a communicator; the wrappers that build.py writes stand on it. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LOADER_H
#define LOADER_H
#include <stdatomic.h>
#include "types.h"

/* Returned in place of a result without entering the library; far from every ncclResult_t. */
enum {
  PN_MISSING = 0x70000001, /* the library does not have the function */
  PN_BUSY,                 /* another thread is inside the communicator */
  PN_CLOSED,               /* pn_comm.state says so */
  PN_FORKED,               /* the communicator was made by the parent of this process */
  PN_MEMORY,               /* no memory */
  PN_IN_PROGRESS = 7       /* ncclInProgress, also where its release's header is not included */
};

typedef struct { const char *name, *since; } pn_symbol;                /* since: "2.28.3", or "host" */
typedef struct { const char *owner, *name, *since; } pn_field;

/* Written by build.py from the headers; the arrays end with a NULL name. */
extern const pn_symbol pn_symbols[], pn_constants[];
extern const pn_field pn_fields[];
extern const int pn_symbols_length;

/* One library. address[i] belongs to pn_symbols[i]; NULL where the library lacks it. Never freed. */
typedef struct pn_table {
  void *handle;
  char *path;
  struct pn_table *next;
  /* Those that the extension's own C calls. */
  ncclResult_t (*group_start)(void);
  ncclResult_t (*group_end)(void);
  ncclResult_t (*simulate_end)(ncclSimInfo_t *info);
  ncclResult_t (*broadcast)(const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
  const char *(*last_error)(ncclComm_t comm);
  void *address[];
} pn_table;

pn_table *pn_open(const char *path, char *error, size_t size);
const char *pn_path(const pn_table *table);
void *pn_address(const pn_table *table, int index);
int pn_symbol_count(void);
const pn_symbol *pn_symbol_at(int index);
const char *pn_field_since(const char *struct_name, const char *field);
const char *pn_constant_since(const char *name);

/* A communicator of one library. Python writes comm, state (0: open), and what direct.c has to know: rank, nranks, and whether memory
   of the host is good as it is (plain). busy is 1 while a thread is inside. */
typedef struct pn_comm {
  pn_table *table;
  ncclComm_t comm;
  int state, rank, nranks, plain;
  unsigned generation;
  atomic_int busy;
} pn_comm;

pn_comm *pn_comm_new(pn_table *table);
void pn_comm_free(pn_comm *comm);

/* How many forks lie between the process that loaded this extension and this one. */
unsigned pn_generation(void);

/* pn_enter: 0, then pn_leave must follow; or the reason why not, in the order forked, closed, busy.
   pn_enter_at: the same for a communicator that is to be in that state, not in state 0; it sets *inside to 1 with its 0, for a
   caller that may never see the 0: Python raises KeyboardInterrupt in place of it. */
int pn_enter(pn_comm *comm);
int pn_enter_at(pn_comm *comm, int state, int *inside);
void pn_leave(pn_comm *comm);

/* Python's answer to "is a signal pending": not 0 ends the call. Defined by cffi, filled in by Python. */
int pn_check_signals(void);

/* 1: the library asks pn_check_signals from its waits on the main thread; 0: it cannot. */
int pn_install_interrupt(pn_table *table);

#endif
