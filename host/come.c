/* Coming to a collective before it is called: who finds that all have come need not leave the call to another thread. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A caller that must not wait long hands its collective to a thread. Without a core of its own that thread takes the caller's, and each rank's
 * waits for the others' while they compute: that costs more than to wait for the others a moment. So ranks tell each other when they are about
 * to call. It is a promise: the call follows, by this thread or another, whatever the others do. Where something else follows it is taken back.
 */
#define _GNU_SOURCE
#include <sched.h>

#include "host.h"

enum { CLOCK_EVERY = 16, LOSSES = 2 };  /* turns between two looks at the clock; calls one after the other in which LOST was lost */
static const double PATIENCE = 0.001;   /* seconds: about what a thread beside the caller's costs */
static const double CROWDED = 0.01;     /* seconds, where a wait leaves the core to ranks that are to come */
static const double LOST = 0.0005;      /* seconds that others had this core: twice, and they use it all the time */

static void tell(ncclComm_t comm, uint64_t calls)
{
  comm->come = calls;
  nh_set_come(comm, calls);
}

void nh_stay(ncclComm_t comm)
{
  comm->coming = false;
  tell(comm, 0);
}

/* The first of the others, from this one on, that has not come; or -1. */
static int first_missing(ncclComm_t comm, int from)
{
  for (int rank = from; rank < comm->nranks; rank++)
    if (rank != comm->rank && !nh_has_come(comm, rank)) return rank;
  return -1;
}

static bool is_missing(void *comm)
{
  return !nh_comm_aborted(comm) && first_missing(comm, 0) >= 0;
}

/* Seconds in which this thread did not run; only differences mean anything. */
static double away(void)
{
  struct timespec ran;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ran);
  return nh_now() - ((double)ran.tv_sec + 1e-9 * (double)ran.tv_nsec);
}

/* Its own sleep says nothing about others. Else a rank that sleeps since others had its core would do so for ever. */
void nh_come_slept(ncclComm_t comm)
{
  comm->away = away();
}

/* A yield would not do where ranks share cores: the kernel may let it pass to the same session only. */
static bool await_all(ncclComm_t comm, int missing)
{
  double began = nh_now(), waited = 0, most = comm->roomy ? PATIENCE : CROWDED;
  for (int turn = 1; missing >= 0; turn++) {
    bool sleeps = !comm->roomy || (comm->yields_from > 0 && began + waited < comm->yields_from);
    if (sleeps || turn % CLOCK_EVERY == 0) waited = nh_now() - began;
    if (nh_comm_aborted(comm) || waited > most) return false;
    if (sleeps) {
      nh_sleep(comm, NH_ON_ANY, is_missing, comm, (long)(1e9 * (most - waited)) + 1000);
      nh_come_slept(comm);
    } else if (nh_core_of(comm, missing) != comm->core) nh_relax();
    else sched_yield();
    missing = first_missing(comm, missing);
  }
  return true;
}

/* A thread that polls is away when another program has its core. Then all that wait would better sleep: see yield() in step.c. */
void nh_come_over(ncclComm_t comm)
{
  comm->coming = false;
  if (!comm->roomy || nh_now() <= comm->yields_from) return;
  comm->lost = away() - comm->away > LOST ? comm->lost + 1 : 0;
  if (comm->lost >= LOSSES) nh_sleep_early(comm);
}

static bool all_come(ncclComm_t comm, bool wait)
{
  int missing = first_missing(comm, 0);
  if (missing >= 0 && !wait) return false;
  comm->away = away();
  comm->coming = true; /* until the call is over */
  if (await_all(comm, missing)) return true;
  nh_come_over(comm);
  return false;
}

ncclResult_t nh_come(ncclComm_t comm, int wait, int *all)
{
  char token = 0;
  if (!nh_comm_enter(comm, &token)) return nh_comm_busy(comm);
  ncclResult_t result = nh_comm_check(comm, "nickelCommCome"); /* inside: from now on no other thread can end it */
  *all = result == ncclSuccess && comm->nranks == 1;
  if (result == ncclSuccess && comm->nranks > 1 && comm->tight && !nh_grouped()) {
    if (wait < 0) nh_stay(comm);
    else {
      nh_note_core(comm, sched_getcpu());
      if (wait) tell(comm, comm->seq + 1);
      *all = all_come(comm, wait);
    }
  }
  nh_comm_leave(comm, &token);
  return result;
}
