/* Running tasks: the loops over steps, and everything that ends a wait other than success. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A task is an operation of one rank cut into steps that never wait. nh_run steps all tasks of a call or a group in turn until all are
 * finished; when nothing moves it polls, then yields, then sleeps. After each sleep it looks whether there is a reason to stop waiting:
 * ncclCommAbort, a failure that a peer declared, a peer that closed, died or passed count 0, the interrupt check, the deadline.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host.h"

enum { YIELDS = 200, LOOK_EVERY = 32 };
static const long NAP = 50000000, SHORT_NAP = 200000;   /* ns: one communicator waits; several do, and one bell rings for one only */
static const double LOOK_ROUND = 0.1, WARN_AFTER = 30, DEFAULT_TIMEOUT = 1800;     /* seconds */

static _Thread_local double thread_timeout = -1;

void nh_set_timeout(double seconds)
{
  thread_timeout = seconds;
}

double nh_timeout_here(void)
{
  return thread_timeout;
}

double nh_now(void)
{
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static double timeout_of(ncclComm_t comm)
{
  if (comm->timeout >= 0) return comm->timeout;
  const char *text = getenv("NICKEL_TIMEOUT");
  if (!text || !*text) return DEFAULT_TIMEOUT;
  char *end;
  double seconds = strtod(text, &end);
  return *end || !(seconds >= 0) || isinf(seconds) ? DEFAULT_TIMEOUT : seconds;
}

/* Cores that this process may use: the affinity mask, cut by the cgroup's quota. */
int nh_cores(void)
{
  cpu_set_t set;
  int cores = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
  FILE *file = fopen("/sys/fs/cgroup/cpu.max", "re");
  if (!file) return cores;
  double quota, period;
  if (fscanf(file, "%lf %lf", &quota, &period) == 2 && period > 0 && quota / period < cores) cores = quota < period ? 1 : (int)(quota / period);
  fclose(file);
  return cores;
}

ncclResult_t nh_wait_for(nh_task *task, int await)
{
  task->await = await;
  return ncclInProgress;
}


/* ---- reasons to stop waiting ---- */

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
  if (errno == EACCES || errno == EPERM) return kill(pid, 0) == 0 || errno != ESRCH;
  return false;
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
  if (comm->failed != ncclSuccess) return nh_recall_error(comm); /* it failed in this very call */
  bool mine = nh_failure_pack(first) == nh_failure_pack(failure) && own != ncclSuccess;
  if (!mine) own = nh_error_failure(comm, first, nh_op_name(task->op));
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

/* "rank 2 (pid 71, after 3 rounds, last in ncclAllReduce)" for each that is missing, as far as there is room. */
static void name_missing(nh_task *task, char *text, size_t room)
{
  ncclComm_t comm = task->comm;
  size_t used = 0;
  text[0] = 0;
  for (int rank = 0; rank < comm->nranks; rank++) {
    if (!task->missing(task, rank)) continue;
    if (used + 400 > room) continue;
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
    used += nh_describe_elsewhere(comm, rank, text + used, room - used);
    used += (size_t)snprintf(text + used, room - used, ")");
  }
}

static ncclResult_t too_late(nh_task *task, double timeout)
{
  ncclComm_t comm = task->comm;
  char names[8192];
  int first = -1;
  for (int rank = 0; rank < comm->nranks && first < 0; rank++)
    if (task->missing(task, rank)) first = rank;
  if (first < 0) return ncclSuccess; /* it has come in this moment */
  name_missing(task, names, sizeof names);
  nh_error(ncclTimeout, nickelKindTimeout, "%s on rank %d of %d, call %lu: waited %.3g s for %s", nh_op_name(task->op), comm->rank, comm->nranks,
           (unsigned long)task->seq + 1, timeout, names);
  for (int rank = 0; rank < comm->nranks; rank++)
    if (task->missing(task, rank)) nh_error_rank(comm, rank);
  return give_up(task, (nh_failure){nickelKindTimeout, ncclTimeout, first, comm->rank}, ncclTimeout);
}

static void warn(nh_task *task)
{
  char names[2048];
  name_missing(task, names, sizeof names);
  nh_warn_always(task->comm->device, "%s on rank %d of %d, call %lu: waiting for %s since %.0f s", nh_op_name(task->op), task->comm->rank,
                 task->comm->nranks, (unsigned long)task->seq + 1, names, WARN_AFTER);
}

/* What can be seen in shared memory alone. */
static ncclResult_t look(nh_task *task)
{
  ncclComm_t comm = task->comm;
  if (held_back(task)) return ncclSuccess;
  if (nh_comm_revoked(comm) && task->op != NH_SPLIT && task->op != NH_SHRINK && task->op != NH_JOIN)
    return give_up(task, (nh_failure){nickelKindAborted, ncclRemoteError, comm->rank, comm->rank},
                   nh_error(ncclInvalidUsage, nickelKindAborted, "%s on rank %d of %d was ended by ncclCommRevoke", nh_op_name(task->op), comm->rank,
                            comm->nranks));
  if (nh_comm_aborted(comm))
    return give_up(task, (nh_failure){nickelKindRemote, ncclRemoteError, comm->rank, comm->rank},
                   nh_error(ncclInvalidUsage, nickelKindAborted, "%s on rank %d of %d was ended by ncclCommAbort", nh_op_name(task->op), comm->rank,
                            comm->nranks));
  if (task->op != NH_JOIN && task->phase != NH_MEETING) {
    nh_failure failure = nh_failed_with(comm);
    if (failure.kind) return give_up(task, failure, ncclSuccess);
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

/* What costs system calls. */
static ncclResult_t look_round(nh_task *task, double waited, bool interrupted)
{
  ncclComm_t comm = task->comm;
  if (held_back(task)) return ncclSuccess;
  for (int rank = 0; rank < comm->nranks; rank++)
    if ((task->op == NH_JOIN || task->missing(task, rank)) && !nh_alive(comm, rank)) return peer_gone(task, rank);
  if (interrupted)
    return give_up(task, (nh_failure){nickelKindInterrupted, ncclInvalidUsage, comm->rank, comm->rank},
                   nh_error(ncclInvalidUsage, nickelKindInterrupted, "%s on rank %d of %d was interrupted", nh_op_name(task->op), comm->rank, comm->nranks));
  double timeout = timeout_of(comm);
  if (timeout > 0 && waited >= timeout) return too_late(task, timeout);
  return ncclSuccess;
}


static ncclResult_t look_for_cycle(nh_task *task)
{
  ncclComm_t comm = task->comm;
  if (task->op == NH_JOIN || held_back(task) || !nh_in_cycle(comm)) return ncclSuccess;
  nh_failure failure = {nickelKindDeadlock, ncclInvalidUsage, comm->rank, comm->rank};
  return give_up(task, failure, ncclSuccess);
}


/* ---- the loop ---- */

typedef struct {
  nh_task *tasks, *pending;     /* pending: the first that is not finished */
  int npending;
  bool several;                 /* communicators wait */
  int spins;
  double start, looked;         /* 0: not yet */
  bool interrupted, warned;
  bool asleep;                  /* in nh_sleep, which needs the communicator: nothing is left until it has returned */
  bool published;               /* other ranks can see what this one waits for */
} nh_loop;

static void finish(nh_loop *loop, nh_task *task, ncclResult_t result)
{
  task->result = result;
  if (result != ncclSuccess) nh_error_hold(true);
  nh_trace(task);
  if (loop->published) nh_wait_over(task);
  if (!loop->asleep) nh_left(loop->tasks, task);
}

/* One step for each; true if any moved. */
static bool pass(nh_loop *loop)
{
  bool moved = false;
  loop->pending = NULL;
  loop->npending = 0;
  loop->several = false;
  for (nh_task *task = loop->tasks; task; task = task->next) {
    if (task->result != ncclInProgress) continue;
    ncclResult_t before = task->lane ? task->lane->result : ncclSuccess;
    ncclResult_t result = before;
    if (before == ncclSuccess) {
      task->moved = false;
      result = task->step(task);
      if (result == ncclSuccess && task->then) result = task->then(task);
      moved = moved || task->moved;
    }
    if (result != ncclInProgress) {
      finish(loop, task, result);
      moved = true;
      continue;
    }
    if (before == ncclInProgress) continue; /* the first of its lane is pending */
    loop->npending++;
    if (!loop->pending) loop->pending = task;
    else if (loop->pending->comm != task->comm) loop->several = true;
  }
  return moved;
}

static bool nothing_moves(void *argument)
{
  nh_loop *loop = argument;
  return !pass(loop) && loop->pending;
}

static void look_at_all(nh_loop *loop, bool round)
{
  double now = round ? nh_now() : 0;
  int (*check)(void) = nh_interrupt();
  if (round && check && check() != 0) loop->interrupted = true; /* asked once, kept until it has ended the wait */
  for (nh_task *task = loop->tasks; task; task = task->next) {
    if (task->result != ncclInProgress || (task->lane && task->lane->result == ncclInProgress)) continue;
    ncclResult_t result = look(task);
    if (result == ncclSuccess && round) result = look_round(task, now - loop->start, loop->interrupted);
    if (result == ncclSuccess && round) result = look_for_cycle(task);
    if (result != ncclSuccess) finish(loop, task, result);
    else if (round && !loop->warned && now - loop->start >= WARN_AFTER) {
      warn(task);
      loop->warned = true;
    }
  }
  if (round) {
    loop->looked = now;
    nh_wait_begins(loop->tasks);
    loop->published = true;
  }
}

static void leave_finished(nh_task *tasks)
{
  for (nh_task *task = tasks; task; task = task->next)
    if (task->result != ncclInProgress) nh_left(tasks, task);
}

static void relax(void)
{
#if defined __x86_64__
  __builtin_ia32_pause();
#endif
}

static void idle(nh_loop *loop, int turns)
{
  if (turns < loop->spins) {
    relax();
    return;
  }
  if (loop->start == 0) loop->start = loop->looked = nh_now();
  if (turns < loop->spins + YIELDS) {
    if (turns % LOOK_EVERY == 0) look_at_all(loop, false);
    sched_yield();
    return;
  }
  nh_task *first = loop->pending;
  loop->asleep = true;
  nh_sleep(first->comm, loop->npending > 1 ? NH_ON_ANY : first->await, nothing_moves, loop, loop->several ? SHORT_NAP : NAP);
  loop->asleep = false;
  leave_finished(loop->tasks);
  look_at_all(loop, nh_now() - loop->looked >= LOOK_ROUND);
}

ncclResult_t nh_run(nh_task *tasks)
{
  nh_loop loop = {.tasks = tasks, .spins = tasks->comm->spins};
  int turns = 0;
  leave_finished(tasks); /* sends to oneself are over before */
  for (;;) {
    bool moved = pass(&loop);
    if (!loop.pending) break;
    turns = moved ? 0 : turns + 1;
    if (moved) {
      loop.start = 0; /* deadlines are for waiting, not for work */
      for (nh_task *task = tasks; task && loop.published; task = task->next) nh_wait_over(task);
      loop.published = false;
    }
    if (turns) idle(&loop, turns - 1);
  }
  nh_error_hold(false);
  for (nh_task *task = tasks; task; task = task->next)
    if (task->result != ncclSuccess) return task->result;
  return ncclSuccess;
}
