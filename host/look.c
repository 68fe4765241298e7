/* Reasons to stop waiting, and making them everybody's: abort, failures, peers that are gone, interrupts, deadlines. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loop of step.c looks here while nothing moves. A rank that finds a reason declares it for all ranks (give_up): the failure first, then
 * the verdict of its round. If that was decided before, the call goes on; everybody sees the failure at the next wait.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host.h"

static const double DEFAULT_TIMEOUT = 1800, LEAVE_IT_FOR = 1;     /* seconds */

double nh_timeout_everywhere(void)
{
  const char *text = getenv("NICKEL_TIMEOUT");
  if (!text || !*text) return DEFAULT_TIMEOUT;
  char *end;
  double seconds = strtod(text, &end);
  if (!*end && seconds >= 0 && !isinf(seconds)) return seconds;
  nh_refuse_value("NICKEL_TIMEOUT", text, "a number of seconds, 0 for no limit", "1800 is taken");
  return DEFAULT_TIMEOUT;
}

static double timeout_of(ncclComm_t comm)
{
  return comm->timeout >= 0 ? comm->timeout : nh_timeout_everywhere();
}

/* A rank's descriptor of the segment is closed when its process ends, execs or is a zombie; so one look at /proc tells all of it. */
bool nh_alive(ncclComm_t comm, int rank)
{
  int pid, fd;
  char path[64];
  struct stat about;
  nh_life life = nh_rank_life(comm->head, rank, &pid, &fd);
  if (life == NH_EMPTY || pid == getpid()) return true;
  snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
  if (stat(path, &about) == 0) return about.st_ino == comm->segment->inode;
  if (errno != EACCES && errno != EPERM) return errno == EMFILE || errno == ENFILE;
  uint64_t start = nh_start_time(pid), started = life >= NH_JOINED ? nh_rank_at(comm->head, rank)->start : 0; /* a zombie's are closed to others */
  return start ? !started || start == started : errno == EMFILE || errno == ENFILE;
}

/* While a thread of this process works on this rank's memory the call must not return, whatever happens: that thread never waits for
   anybody before it is done, so this ends soon. */
static bool held_back(nh_task *task)
{
  ncclComm_t comm = task->comm;
  if (task->phase != NH_DIRECT_END) return false;
  for (int rank = 0; rank < comm->nranks; rank++) {
    int pid;
    if (rank == comm->rank || !task->missing(task, rank)) continue;
    nh_rank_life(comm->head, rank, &pid, NULL);
    if (pid == getpid()) return true;
  }
  return false;
}

/* Declares the failure for all ranks. ncclSuccess: too late, the round was decided before; the task goes on. */
static ncclResult_t give_up(nh_task *task, nh_failure failure, ncclResult_t own)
{
  ncclComm_t comm = task->comm;
  nh_failure first = failure;
  if (task->phase == NH_MEETING) return own; /* the communicator may have failed before, and this is about the new one */
  if (task->op != NH_JOIN) first = nh_fail(comm, failure);
  if (task->give_up) {
    nh_verdict verdict = task->give_up(task);
    if (verdict == NH_GO || verdict == NH_MISMATCH) return ncclSuccess;
  }
  if (task->op == NH_JOIN) {
    uint64_t state = nh_state_set(comm->head, nh_failure_pack(failure));
    nh_wake(comm, NH_ON_ANY);
    if (state == NH_COMPLETE) return ncclSuccess;
    first = nh_failure_unpack(state);
  }
  if (nh_comm_code(comm) != ncclSuccess) return nh_recall_error(comm); /* it failed in this very call */
  bool mine = nh_failure_pack(first) == nh_failure_pack(failure) && own != ncclSuccess;
  if (!mine) own = task->op == NH_JOIN ? nh_join_failed(task, first) : nh_error_failure(comm, first, nh_op_name(task->op));
  nh_comm_failed(comm, own);
  return own;
}

/* The verdict of this round was failure: whoever set it had declared its reason before. */
ncclResult_t nh_round_failed(nh_task *task)
{
  ncclResult_t result = nh_error_failure(task->comm, nh_failed_with(task->comm), nh_op_name(task->op));
  nh_comm_failed(task->comm, result);
  return result;
}

static ncclResult_t peer_gone(nh_task *task, int rank)
{
  ncclComm_t comm = task->comm;
  nh_failure failure = {nickelKindRemote, ncclRemoteError, rank, comm->rank};
  return give_up(task, failure, nh_error_failure(comm, failure, nh_op_name(task->op)));
}

/* Who is missing, and who began it: a missing rank may wait for another one itself. false: all have come in this moment. */
static bool find_missing(nh_task *task, bool *missing, bool *began)
{
  ncclComm_t comm = task->comm;
  bool any = false, found = false;
  for (int rank = 0; rank < comm->nranks; rank++) {
    missing[rank] = task->missing(task, rank);
    began[rank] = false;
  }
  for (int rank = 0; rank < comm->nranks; rank++) {
    if (!missing[rank]) continue;
    any = true;
    int first = task->op == NH_JOIN ? rank : nh_held_up_by(comm, rank);
    if (first == comm->rank) continue; /* it waits for this rank: that is no explanation */
    began[first] = found = true;
  }
  for (int rank = 0; rank < comm->nranks && !found; rank++) began[rank] = missing[rank];
  return any;
}

/* "rank 2 (pid 71, last in ncclAllReduce, its call 7)" for each that is named, as far as there is room. */
static void describe(ncclComm_t comm, const bool *missing, const bool *began, char *text, size_t room)
{
  size_t used = 0;
  text[0] = 0;
  for (int rank = 0; rank < comm->nranks; rank++) {
    if ((!missing[rank] && !began[rank]) || used + 400 > room) continue;
    int pid;
    nh_life life = nh_rank_life(comm->head, rank, &pid, NULL);
    int wrote = snprintf(text + used, room - used, life == NH_EMPTY ? "%srank %d (never seen)" : "%srank %d (pid %d", used ? ", " : "", rank, pid);
    used += (size_t)wrote;
    if (life == NH_EMPTY) continue;
    uint64_t round = nh_last_round(comm, rank);
    const nh_call *call = &nh_rank_at(comm->head, rank)->call[round & 1];
    if (round) wrote = snprintf(text + used, room - used, ", last in %s, its call %lu", nh_op_name(call->op), (unsigned long)call->seq + 1);
    else wrote = snprintf(text + used, room - used, ", no call yet");
    used += (size_t)wrote;
    used += nh_describe_wait(comm, rank, text + used, room - used);
    used += (size_t)snprintf(text + used, room - used, ")");
  }
}

/* Of several ranks whose deadline has come one names for all whom it waited for; the others leave it a moment. If it dies or stands still in
   that another one ends the wait, and names the first to the rest. */
static ncclResult_t too_late(nh_task *task, double timeout, double waited)
{
  ncclComm_t comm = task->comm;
  bool missing[NH_MAX_RANKS], began[NH_MAX_RANKS];
  char names[8192];
  if (!find_missing(task, missing, began)) return ncclSuccess;
  bool tells = task->phase != NH_MEETING && nh_reason_claim(comm); /* no communicator fails by a meeting that is given up */
  if (!tells && task->phase != NH_MEETING && waited < timeout + LEAVE_IT_FOR) return ncclSuccess;
  describe(comm, missing, began, names, sizeof names);
  nh_error(ncclTimeout, nickelKindTimeout, "%s on rank %d of %d, call %lu: waited %.3g s for %s", nh_op_name(task->op), comm->rank, comm->nranks,
           (unsigned long)task->seq + 1, timeout, names);
  int first = -1;
  for (int rank = comm->nranks - 1; rank >= 0; rank--)
    if (began[rank]) first = rank;
  for (int rank = first; rank < comm->nranks; rank++) {
    if (!began[rank]) continue;
    nh_error_rank(comm, rank);
    if (tells && comm->head->nlate < NH_LATE) comm->head->late[comm->head->nlate++] = (uint16_t)rank;
  }
  ncclResult_t result = give_up(task, (nh_failure){nickelKindTimeout, ncclTimeout, first, comm->rank}, ncclTimeout);
  if (result == ncclSuccess && tells && task->op == NH_JOIN) { /* the communicator is complete after all; any other failure is final */
    comm->head->nlate = 0;
    nh_reason_drop(comm);
  }
  return result;
}

void nh_look_warn(nh_task *task, double seconds)
{
  bool missing[NH_MAX_RANKS], began[NH_MAX_RANKS];
  char names[2048];
  if (!find_missing(task, missing, began)) return;
  describe(task->comm, missing, began, names, sizeof names);
  nh_warn_always(task->comm->device, "%s on rank %d of %d, call %lu: waiting for %s since %.0f s", nh_op_name(task->op), task->comm->rank,
                 task->comm->nranks, (unsigned long)task->seq + 1, names, seconds);
}

static bool somebody_missing(nh_task *task)
{
  for (int rank = 0; rank < task->comm->nranks; rank++)
    if (task->missing(task, rank)) return true;
  return false;
}

/* What can be seen in shared memory alone. A failure ends what still waits for somebody: who has failed may have done its part of it before. */
ncclResult_t nh_look(nh_task *task)
{
  ncclComm_t comm = task->comm;
  if (held_back(task)) return ncclSuccess;
  if (nh_comm_revoked(comm) && task->op != NH_SPLIT && task->op != NH_SHRINK && task->op != NH_JOIN)
    return give_up(task, (nh_failure){nickelKindAborted, ncclRemoteError, comm->rank, comm->rank},
                   nh_error(ncclInvalidUsage, nickelKindAborted, "%s on rank %d of %d was ended by ncclCommRevoke", nh_op_name(task->op), comm->rank,
                            comm->nranks));
  if (nh_comm_aborted(comm) || (task->home && nh_comm_aborted(task->home)))
    return give_up(task, (nh_failure){nickelKindRemote, ncclRemoteError, comm->rank, comm->rank},
                   nh_error(ncclInvalidUsage, nickelKindAborted, "%s on rank %d of %d was ended by ncclCommAbort", nh_op_name(task->op), comm->rank,
                            comm->nranks));
  if (task->op != NH_JOIN && task->phase != NH_MEETING) {
    nh_failure failure = nh_failed_with(comm);
    if (failure.kind && somebody_missing(task)) return give_up(task, failure, ncclSuccess);
  }
  bool nobody = true;
  for (int rank = 0; rank < comm->nranks; rank++) {
    if (!task->missing(task, rank)) continue;
    nobody = false;
    if (nh_rank_life(comm->head, rank, NULL, NULL) >= NH_CLOSED && task->missing(task, rank)) return peer_gone(task, rank);
    if (task->op < NH_SEND && task->phase == NH_POSTED && nh_passed_zero(comm, rank, task->seq, task->round)) {
      nh_failure failure = {nickelKindMismatch, ncclInvalidUsage, rank, comm->rank};
      return give_up(task, failure, nh_error_failure(comm, failure, nh_op_name(task->op)));
    }
  }
  if (nobody && task->nobody_missing) task->nobody_missing(task);
  return ncclSuccess;
}

static bool awaited(nh_task *task, int rank)
{
  return task->op == NH_JOIN || task->missing(task, rank);
}

/* What costs system calls. */
ncclResult_t nh_look_around(nh_task *task, double waited, bool interrupted)
{
  ncclComm_t comm = task->comm;
  if (held_back(task)) return ncclSuccess;
  for (int rank = 0; rank < comm->nranks; rank++)
    if (awaited(task, rank) && !nh_alive(comm, rank) && awaited(task, rank)) return peer_gone(task, rank); /* its last act may be the one awaited */
  for (int rank = 0; rank < comm->nranks && task->lost; rank++) {
    ncclResult_t lost = task->lost(task, rank);
    if (lost != ncclSuccess) return give_up(task, (nh_failure){nickelKindRemote, ncclRemoteError, rank, comm->rank}, lost);
  }
  if (interrupted)
    return give_up(task, (nh_failure){nickelKindInterrupted, ncclInvalidUsage, comm->rank, comm->rank},
                   nh_error(ncclInvalidUsage, nickelKindInterrupted, "%s on rank %d of %d was interrupted", nh_op_name(task->op), comm->rank, comm->nranks));
  double timeout = timeout_of(comm);
  if (timeout > 0 && waited >= timeout) return too_late(task, timeout, waited);
  return ncclSuccess;
}


ncclResult_t nh_look_for_cycle(nh_task *task)
{
  ncclComm_t comm = task->comm;
  if (task->op == NH_JOIN || held_back(task) || !nh_in_cycle(comm)) return ncclSuccess;
  nh_failure failure = {nickelKindDeadlock, ncclInvalidUsage, comm->rank, comm->rank};
  return give_up(task, failure, ncclSuccess);
}
