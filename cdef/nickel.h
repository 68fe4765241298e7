/* What the CPU library offers beside NCCL's own functions; a library that has nickelHostVersion is the CPU library. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NICKEL_H
#define NICKEL_H
#include "types.h"

/* What the last error of the calling thread was about; finer than ncclResult_t, so that a binding never has to read text. */
enum {
  nickelKindNone = 0,          /* nothing finer is known: go by the result code */
  nickelKindMismatch = 1,      /* the ranks' calls do not fit together; the communicator can be used again */
  nickelKindDeadlock = 2,      /* blocked ranks wait for each other */
  nickelKindClosed = 3,        /* this rank's communicator has been finalized, destroyed or has failed before */
  nickelKindAborted = 4,       /* ended by ncclCommAbort from another thread of this rank */
  nickelKindForked = 5,        /* the communicator belongs to the parent of this forked process */
  nickelKindBusy = 6,          /* another thread is inside this communicator */
  nickelKindRemote = 7,        /* a peer died, closed, aborted or failed: nickelErrorRanks names it */
  nickelKindTimeout = 8,       /* a deadline passed: nickelErrorRanks names who is missing */
  nickelKindInterrupted = 9,   /* the interrupt check ended the call */
  nickelKindDuplicateRank = 10,
  nickelKindWorldSize = 11,
  nickelKindIdReused = 12,     /* the unique id has already made (or failed to make) a communicator */
  nickelKindIdStale = 13,      /* the maker of the unique id has ended, or lives where this process cannot reach it */
  nickelKindIdInvalid = 14,    /* not a unique id of this library: zero, or made by another one */
  nickelKindVersion = 15,      /* ranks with different versions of this library */
  nickelKindMemory = 16,       /* shared memory or descriptors could not be had */
  nickelKindOverlap = 17       /* buffers overlap in a way that is not the in-place form */
};

/* The version of the CPU library itself, coded as NCCL codes its own. */
ncclResult_t nickelHostVersion(int *version);

/* The kind of the calling thread's last failed call. comm may be NULL (a failed init has none). */
int nickelErrorKind(ncclComm_t comm);

/* The ranks that error was about and their process ids; returns how many there are, writes at most capacity. */
int nickelErrorRanks(ncclComm_t comm, int *ranks, int *pids, int capacity);

/* Seconds that every later wait of comm may last; 0 waits for ever; below 0 is NICKEL_TIMEOUT again.
   comm NULL: the same for communicators which this thread makes from now on, their init included. */
ncclResult_t nickelCommSetTimeout(ncclComm_t comm, double seconds);

/* *all: whether all others have come to the next collective of comm, so that the call waits for nobody who has not begun. They have if they are in
   it, or have told that they are about to call it, whatever the others do. wait 1: tell that, and give the others as long as it pays, 10 ms at
   most; 0: look, and tell nothing; -1: take back what was told, as the call is not made. Where there are cores for two threads of each rank
   nothing is told, and *all is 0. */
ncclResult_t nickelCommCome(ncclComm_t comm, int wait, int *all);

/* check is called from every wait about ten times a second, on the waiting thread; a value other than 0 ends the call. NULL removes it. */
void nickelSetInterruptCheck(int (*check)(void));

/* From outside, without joining: what the ranks of a communicator do, as JSON. pid has its segment open as descriptor fd (a memfd "nickel").
   The text is cut to size, its whole length goes to *length. */
ncclResult_t nickelInspect(int pid, int fd, char *text, size_t size, size_t *length);

#endif
