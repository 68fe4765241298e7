/* Calls of a library written down as records and made later, all in one group and one step into C. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PLAN_H
#define PLAN_H
#include "loader.h"

enum {
  PN_ARGUMENTS = 9, /* the most that a function with a stream takes beside communicator and stream */
  PN_TEXT = 1024
};

/* Makes one call on the library of the communicator; build.py writes one for each function with a stream. */
typedef ncclResult_t pn_call(pn_table *table, ncclComm_t comm, uintptr_t stream, const uintptr_t *argument);

typedef struct pn_operation {
  pn_call *call;
  pn_comm *comm;
  uintptr_t stream;
  uintptr_t argument[PN_ARGUMENTS];
} pn_operation;

/* A library that operations of the plan belong to. */
typedef struct pn_part {
  pn_table *table;
  pn_comm *taken; /* of an operation that the open group has taken, or NULL */
  int result;     /* of the last ncclGroupEnd */
} pn_part;

typedef struct pn_plan {
  int length;         /* how many operations */
  int failed;         /* the operation that the library refused at the last launch; PN_NONE: none of them; PN_AT_START: no group was opened */
  char text[PN_TEXT]; /* the library's words for it */
  atomic_int busy;    /* 1 while a thread is inside */
  int room, ncomms, nparts;
  pn_operation *operations;
  pn_comm **comms; /* every communicator, once */
  pn_part *parts;  /* every library, once */
} pn_plan;

enum { PN_NONE = -1, PN_AT_START = -2 };

pn_plan *pn_plan_new(void);
void pn_plan_free(pn_plan *plan);

/* 0, PN_BUSY or PN_MEMORY; all operations of the other plan go behind the plan's own. */
int pn_plan_add(pn_plan *plan, const pn_operation *operation);
int pn_plan_extend(pn_plan *plan, pn_plan *other);
int pn_plan_clear(pn_plan *plan);

/* Group start, every operation, group end: 0; or what refused it, and then nothing has started; or what the group's end said.
   PN_BUSY, PN_CLOSED and PN_FORKED: no library was entered. on: every operation on this stream; simulate: the end only estimates. */
int pn_plan_launch(pn_plan *plan);
int pn_plan_launch_on(pn_plan *plan, uintptr_t stream);
int pn_plan_simulate(pn_plan *plan, ncclSimInfo_t *info);

/* What the group's end in that library returned at the last launch. */
int pn_plan_result(const pn_plan *plan, const pn_table *table);

#endif
