/* The life of a communicator: making its handle, the checks before a call, destroying, aborting, revoking. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of a communicator's handle is kept for the next one and never given back, so a stale handle is told by its guard and is
 * not a stray pointer. Joining is a task like any other (join.c).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host.h"

enum { RESTING = 64 };          /* handles that rest at least before one is used again: a stale one is told for so long */
static ncclComm_t spare, *spare_end = &spare, living; /* handles to be used again, first in first out, and those in use; under nh_lock */
static int nspare;

void nh_comm_each(void (*visit)(ncclComm_t, void *), void *argument)
{
  nh_lock();
  for (ncclComm_t comm = living; comm; comm = comm->alive)
    if (comm->head && comm->generation == nh_generation()) visit(comm, argument);
  nh_unlock();
}

static ncclComm_t take_handle(void)
{
  nh_lock();
  ncclComm_t comm = nspare > RESTING ? spare : NULL;
  if (comm) {
    spare = comm->next;
    nspare--;
  }
  nh_unlock();
  return comm ? comm : calloc(1, sizeof *comm);
}

/* What belongs to a handle stays with it until it is used again: a call that comes too late may still look at it. */
static void empty_handle(ncclComm_t comm)
{
  free(comm->sent);
  free(comm->paired);
  free(comm->last);
  free(comm->record);
  free(comm->meetings);
  nh_ops_free(comm);
  nh_registrations_free(comm);
  nh_windows_free(comm);
  memset(comm, 0, sizeof *comm);
}

static void give_handle(ncclComm_t comm)
{
  nh_lock();
  for (ncclComm_t *at = &living; *at; at = &(*at)->alive)
    if (*at == comm) {
      *at = comm->alive;
      break;
    }
  comm->next = NULL;
  *spare_end = comm;
  spare_end = &comm->next;
  nspare++;
  nh_unlock();
}

void nh_comm_detach(ncclComm_t comm)
{
  nh_segment *segment = comm->segment;
  nh_lock(); /* for nh_comm_each */
  comm->head = NULL;
  comm->segment = NULL;
  nh_unlock();
  nh_segment_drop(segment);
}

static void leave(ncclComm_t comm, nh_life life)
{
  if (!comm->segment) return;
  if (life != NH_EMPTY) nh_rank_leave(comm, life);
  nh_comm_detach(comm);
}


/* ---- making ---- */

static bool allocate(ncclComm_t comm)
{
  size_t n = (size_t)comm->nranks;
  comm->sent = calloc((4 + NH_SIGNALS) * n, sizeof *comm->sent);
  comm->paired = calloc(2 * n, sizeof *comm->paired);
  comm->last = calloc(4 * n + 1, sizeof *comm->last);
  if (!comm->sent || !comm->paired || !comm->last) return false;
  comm->received = comm->sent + n;
  comm->sent_pieces = comm->sent + 2 * n;
  comm->received_pieces = comm->sent + 3 * n;
  comm->waited = comm->sent + 4 * n;
  return true;
}

/* In an empty handle. */
static void reset(ncclComm_t comm, int nranks, int rank, int device, nh_settings settings)
{
  static uint64_t serials;
  nh_lock();
  comm->serial = ++serials;
  comm->alive = living;
  living = comm;
  nh_unlock();
  comm->generation = nh_generation();
  comm->nranks = nranks;
  comm->rank = rank;
  comm->device = device;
  comm->timeout = nh_timeout_here();
  comm->spins = 0;
  comm->core = -1;
  comm->settings = settings;
  if (settings.blocking) nh_comm_use(comm); /* one that is made from another is not entered for it */
}

void nh_comm_dispose(ncclComm_t comm)
{
  nh_comm_guard(comm, false);
  leave(comm, NH_ABORTED);
  give_handle(comm);
}

/* A failed init of a blocking communicator leaves no handle; that of a non-blocking one is to be aborted. */
static void joined(nh_task *task)
{
  ncclComm_t comm = task->comm;
  if (task->result == ncclSuccess) {
    nh_info(comm->device, "ncclCommInitRank: rank %d of %d is complete, %s", comm->rank, comm->nranks, comm->one_process ? "in one process" : "in several processes");
    return;
  }
  if (!comm->settings.blocking) {
    if (nh_comm_code(comm) == ncclSuccess) nh_comm_set_code(comm, task->result);
    return;
  }
  *task->out = NULL;
  nh_comm_dispose(comm);
}

/* A new handle in *out and the task that makes it a communicator. */
ncclResult_t nh_comm_new(nh_task *task, ncclComm_t *out, int nranks, const uint8_t *id, int rank, int device, nh_settings settings)
{
  ncclComm_t comm = take_handle();
  if (comm) empty_handle(comm);
  if (comm) reset(comm, nranks, rank, device, settings);
  if (!comm || !allocate(comm)) {
    if (comm) give_handle(comm);
    return nh_error(ncclSystemError, nickelKindMemory, "no memory for a communicator of %d ranks", nranks);
  }
  nh_comm_guard(comm, true);
  *task = (nh_task){.comm = comm, .serial = comm->serial, .end = joined, .out = out};
  nh_join_prepare(task);
  memcpy(task->id, id, sizeof task->id);
  *out = comm;
  return ncclSuccess;
}


/* ---- using and ending ---- */

ncclResult_t nh_comm_exists(ncclComm_t comm, const char *function)
{
  if (!comm) return nh_error(ncclInvalidArgument, nickelKindNone, "%s: the communicator is NULL", function);
  if (!nh_comm_valid(comm))
    return nh_error(ncclInvalidArgument, nickelKindClosed, "%s: %p is not a communicator, or has been destroyed or aborted", function, (void *)comm);
  if (comm->generation != nh_generation())
    return nh_error(ncclInvalidUsage, nickelKindForked,
                    "%s: this communicator belongs to the parent of this forked process: make one here, or start a fresh process", function);
  return ncclSuccess;
}

/* Is it over with what it does in the background? */
static ncclResult_t check_idle(ncclComm_t comm, const char *function)
{
  ncclResult_t state = comm->settings.blocking ? ncclSuccess : nh_comm_async(comm);
  if (state == ncclInProgress)
    return nh_error(ncclInvalidArgument, nickelKindBusy, "%s: the communicator is in progress: poll ncclCommGetAsyncError until it says ncclSuccess", function);
  if (state != ncclSuccess && nh_comm_code(comm) == ncclSuccess) return nh_recall_error(comm);
  return nh_comm_code(comm) == ncclSuccess ? nh_comm_check_ready(comm, function) : ncclSuccess;
}

ncclResult_t nh_comm_check_ready(ncclComm_t comm, const char *function)
{
  if (nh_comm_is(comm, NH_READY)) return ncclSuccess;
  if (nh_comm_code(comm) != ncclSuccess) return nh_error_again(comm);
  return nh_error(ncclInvalidArgument, nickelKindBusy, "%s: the communicator is not ready, the group of its init is still open", function);
}

ncclResult_t nh_comm_check_end(ncclComm_t comm, const char *function)
{
  ncclResult_t result = nh_comm_exists(comm, function);
  return result == ncclSuccess ? check_idle(comm, function) : result;
}

ncclResult_t nh_comm_check(ncclComm_t comm, const char *function)
{
  ncclResult_t result = nh_comm_exists(comm, function);
  if (result != ncclSuccess) return result;
  if (nh_comm_revoked(comm)) return nh_error(ncclInvalidUsage, nickelKindClosed, "%s: the communicator has been revoked", function);
  if ((result = check_idle(comm, function)) != ncclSuccess) return result;
  if (nh_comm_code(comm) != ncclSuccess) return nh_error_again(comm);
  if (nh_comm_is(comm, NH_FINALIZED)) return nh_error(ncclInvalidArgument, nickelKindClosed, "%s: the communicator has been finalized", function);
  if (nh_comm_is(comm, NH_SUSPENDED)) return nh_error(ncclInvalidUsage, nickelKindClosed, "%s: the communicator is suspended: call ncclCommResume first", function);
  return ncclSuccess;
}

/* Under busy, so that nobody is inside; whoever tries to enter after it finds the guard gone. */
static ncclResult_t end(ncclComm_t comm, const char *function, nh_life life, const void *token)
{
  ncclResult_t result = nh_comm_exists(comm, function);
  if (result == ncclSuccess) {
    nh_comm_guard(comm, false);
    nh_worker_end(comm);
    leave(comm, life);
  }
  nh_comm_leave(comm, token);
  if (result == ncclSuccess) give_handle(comm);
  return result;
}

ncclResult_t nh_comm_busy(ncclComm_t comm)
{
  if (nh_comm_aborted(comm))
    return nh_error(ncclInvalidUsage, nickelKindAborted, "rank %d of %d: the communicator is being aborted by another thread", comm->rank, comm->nranks);
  return nh_error(ncclInvalidUsage, nickelKindBusy,
                  "rank %d of %d: another thread is inside this communicator: one thread at a time may use it; ncclCommAbort ends its call", comm->rank,
                  comm->nranks);
}

static void enter_by_waiting(ncclComm_t comm, const void *token)
{
  while (!nh_comm_enter(comm, token)) {
    struct timespec moment = {.tv_nsec = 200000};
    nanosleep(&moment, NULL);
  }
}

/* What a non-blocking communicator has begun, it finishes first. */
ncclResult_t nh_comm_destroy(ncclComm_t comm)
{
  char token = 0;
  if (!comm->settings.blocking) enter_by_waiting(comm, &token);
  else if (!nh_comm_enter(comm, &token)) return nh_comm_busy(comm);
  return end(comm, "ncclCommDestroy", NH_CLOSED, &token);
}

/*
 * Ends the call of another thread, if there is one; that thread leaves as soon as nobody works on its buffers any more. By a signal handler
 * in the middle of this thread's call: the rest happens when that call ends.
 */
ncclResult_t nh_comm_abort(ncclComm_t comm)
{
  char token = 0;
  nh_comm_set_aborted(comm, true);
  if (nh_end_after_this(comm)) return ncclSuccess;
  enter_by_waiting(comm, &token);
  return end(comm, "ncclCommAbort", NH_ABORTED, &token);
}

/* The handle stays; all ranks' work on it ends that still waits for somebody. */
ncclResult_t nh_comm_revoke(ncclComm_t comm)
{
  nh_comm_set_revoked(comm, true);
  nh_lock();
  bool ready = nh_comm_is(comm, NH_READY);
  nh_unlock();
  if (ready) nh_fail(comm, (nh_failure){nickelKindAborted, ncclRemoteError, comm->rank, comm->rank});
  return ncclSuccess;
}

/* Ends the call of another thread and waits until that has left; the communicator has failed then and its handle stays. */
void nh_comm_interrupt(ncclComm_t comm)
{
  char token = 0;
  if (!nh_comm_inside(comm)) return;
  nh_comm_set_aborted(comm, true);
  enter_by_waiting(comm, &token);
  nh_comm_set_aborted(comm, false);
  nh_comm_leave(comm, &token);
}
