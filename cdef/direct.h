/* Functions for Python that make an operation's call on usual arguments in one step of C. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DIRECT_H
#define DIRECT_H
#include "plan.h"

/* Written by build.py: the functions that a plan can hold; the array ends with a NULL name. */
typedef struct { const char *name; pn_call *call; } pn_named_call;
extern const pn_named_call pn_named_calls[];

/* Puts a function for each operation into `functions`, a dict of Python, under the name in C:

       (comm, its pn_comm as an int, send, recv, count, dtype, stream, config, ...: the operator, the root or the peer)

   True: the call is made, and what it said, if it was not success, has gone to comm._after(). False: nothing has happened, because
   something is unusual, or wrong: the long way through Python says in words what. That is wherever a group is open (`groups`, a
   dict, is not empty), a stream or a configuration is given, a buffer is no array that pn_read() reads and no address with count
   and dtype (of the class `element`), the operator is not of the class `reduction`, ranks, sizes, types or places do not fit, or
   the communicator lets nobody in. `calls` is a dict: by that name, what _after() takes for the call. All five are Python
   objects by their addresses, and what is needed later is kept. -1: an exception. */
int pn_direct_functions(uintptr_t functions, uintptr_t calls, uintptr_t groups, uintptr_t element, uintptr_t reduction);
#endif
