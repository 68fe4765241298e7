/* Running tasks: the loop over steps. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A task is an operation of one rank cut into steps that never wait. nh_run steps all tasks of a call or a group in turn until all are
 * finished; when nothing moves it polls, then yields, then sleeps, and looks whether there is a reason to stop waiting (look.c).
 */
#define _GNU_SOURCE
#include <sched.h>

#include "host.h"

enum { YIELDS = 200, LOOK_EVERY = 32, LONG_YIELDS = 2 };
static const long NAP = 50000000, SHORT_NAP = 200000;   /* ns: one communicator waits; several do, and one bell rings for one only */
static const double LOOK_ROUND = 0.1, WARN_AFTER = 30;     /* seconds */
static const double YIELD_FOR = 0.01;           /* seconds: on a busy machine each yield gives away a time slice of everybody else */
static const double LONG_YIELD = 0.001, NO_YIELDS = 0.5; /* seconds: others had the core for so long; no yields for so long, then */
static const double STAY_AWAKE = 0.002;         /* seconds, where each rank has a core: to wake one costs as much as a small operation, or moves it */

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

ncclResult_t nh_wait_for(nh_task *task, int await)
{
  task->await = await;
  return ncclInProgress;
}


/* ---- the loop ---- */

typedef struct nh_loop nh_loop;
struct nh_loop {
  nh_loop *outer;               /* of this thread: a signal handler may call the library in the middle of a call */
  ncclComm_t doomed;            /* ended by such a handler, in the call of the thread itself; a list by `next` */
  nh_task *tasks, *pending;     /* pending: the first that is not finished */
  const nh_task *told;          /* whose error is the thread's */
  int npending;
  bool several;                 /* communicators wait */
  int spins;
  int long_yields;              /* in this call, short ones between them or not */
  bool here;                    /* a rank that is waited for needs this core */
  double start, looked;         /* 0: not yet */
  bool interrupted, warned;
  bool moved;                   /* in the look before the sleep */
  bool asleep;                  /* in nh_sleep, which needs the communicator: nothing is left until it has returned */
  bool published;               /* other ranks can see what this one waits for */
};

static _Thread_local nh_loop *innermost;

static bool failed(const nh_task *task)
{
  return task->result != ncclSuccess && task->result != ncclInProgress;
}

/*
 * The thread's error is that of the first call of the group that fails, in the order of the calls, whichever fails first in time; the text then
 * belongs to the code that nh_run returns. So it is with the error of a non-blocking communicator, which is kept for who asks it, unless the
 * communicator itself has failed.
 */
static void note_error(nh_loop *loop, nh_task *failing)
{
  bool first = !loop->told, first_here = !failing->home->settings.blocking && nh_comm_code(failing->home) == ncclSuccess;
  for (const nh_task *task = loop->tasks; task != failing; task = task->next)
    if (failed(task) && task->home == failing->home) first_here = false;
  for (const nh_task *task = failing->next; task; task = task->next)
    if (task == loop->told) first = true;
  if (first_here) nh_record_error(failing->home);
  if (first && loop->told) nh_error_prefer();
  if (first) loop->told = failing;
  nh_error_hold(true);
}

static void finish(nh_loop *loop, nh_task *task, ncclResult_t result)
{
  if (result != ncclSuccess) note_error(loop, task);
  task->result = result;
  if (task->corrupt && result == ncclSuccess) nh_fault_corrupt(task);
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
  bool moved = pass(loop);
  loop->moved = loop->moved || moved;
  return !moved && loop->pending;
}

static void look_at_all(nh_loop *loop, bool round)
{
  double now = round ? nh_now() : 0;
  int (*check)(void) = nh_interrupt();
  if (round && check && check() != 0) loop->interrupted = true; /* asked once, kept until it has ended the wait */
  for (nh_task *task = loop->tasks; task; task = task->next) {
    if (task->result != ncclInProgress || task->phase == NH_START) continue; /* who has not begun waits for nobody, maybe has no segment yet */
    ncclResult_t result = nh_look(task);
    if (result == ncclSuccess && round) result = nh_look_around(task, now - loop->start, loop->interrupted);
    if (result == ncclSuccess && round) result = nh_look_for_cycle(task);
    if (result != ncclSuccess) finish(loop, task, result);
    else if (round && !loop->warned && now - loop->start >= WARN_AFTER) {
      nh_look_warn(task, WARN_AFTER);
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

/* Is somebody who is waited for on this very core? Then polling keeps away what is polled for. */
static bool waits_for_here(nh_task *task)
{
  ncclComm_t comm = task->comm;
  for (int i = 1; i < comm->nranks; i++) {
    int rank = (comm->rank + i) % comm->nranks;
    if (nh_core_of(comm, rank) == comm->core && task->missing(task, rank)) return true;
  }
  return false;
}

/* Is it too early to sleep? */
static bool goes_on_yielding(const nh_loop *loop, int turns)
{
  double now = nh_now(), waited = now - loop->start;
  if (now < loop->pending->comm->yields_from) return false;
  if (loop->pending->comm->roomy && waited < STAY_AWAKE) return true;
  return turns < loop->spins + YIELDS && waited < YIELD_FOR;
}

void nh_sleep_early(ncclComm_t comm)
{
  comm->yields_from = nh_now() + NO_YIELDS;
}

/*
 * Where others compute on all cores, a yield gives one of them a whole time slice, which is longer than most operations; who sleeps is
 * woken when it can go on, and then comes before them. One such yield says little: another thread of this process may have had the core.
 * Nor do they where the ranks outnumber the cores: who has the core then is the peer that is waited for.
 */
static void yield(nh_loop *loop)
{
  double before = nh_now();
  sched_yield();
  double after = nh_now();
  if (after - before > LONG_YIELD) loop->long_yields++;
  if (loop->long_yields >= LONG_YIELDS && loop->pending->comm->roomy) nh_sleep_early(loop->pending->comm);
}

static void idle(nh_loop *loop, int turns)
{
  loop->here = (turns == 0 || loop->here) && loop->pending->comm->head && waits_for_here(loop->pending);
  if (turns < loop->spins && !loop->here) {
    nh_relax();
    return;
  }
  if (loop->start == 0) {
    loop->start = loop->looked = nh_now();
    if (loop->here && loop->pending->comm->roomy) nh_move_on(loop->pending->comm);
  }
  if (goes_on_yielding(loop, turns)) {
    if (turns % LOOK_EVERY == 0) look_at_all(loop, false);
    if (loop->pending->result == ncclInProgress) yield(loop); /* else its communicator may have been left */
    return;
  }
  nh_task *first = loop->pending;
  loop->asleep = true;
  nh_sleep(first->comm, loop->npending > 1 ? NH_ON_ANY : first->await, nothing_moves, loop, loop->several ? SHORT_NAP : NAP);
  loop->asleep = false;
  if (first->comm->coming) nh_come_slept(first->comm);
  leave_finished(loop->tasks);
  if (!loop->moved) look_at_all(loop, nh_now() - loop->looked >= LOOK_ROUND); /* else the wait is over, and what comes next has not waited */
}

bool nh_end_after_this(ncclComm_t comm)
{
  for (nh_loop *loop = innermost; loop; loop = loop->outer)
    for (nh_task *task = loop->tasks; task; task = task->next)
      if (task->home == comm) {
        comm->next = loop->doomed;
        loop->doomed = comm;
        return true;
      }
  return false;
}

static void end_doomed(nh_loop *loop)
{
  while (loop->doomed) {
    ncclComm_t comm = loop->doomed;
    loop->doomed = comm->next;
    nh_comm_abort(comm);
  }
}

ncclResult_t nh_run(nh_task *tasks)
{
  nh_loop loop = {.outer = innermost, .tasks = tasks, .spins = tasks->comm->spins};
  innermost = &loop;
  int turns = 0, core = sched_getcpu();
  for (nh_task *task = tasks; task; task = task->next) {
    nh_note_core(task->comm, core);
    if (task->comm->come > task->comm->seq && task->op >= NH_SEND) nh_stay(task->comm);
  }
  leave_finished(tasks); /* sends to oneself are over before */
  for (;;) {
    bool moved = pass(&loop) || loop.moved;
    loop.moved = false;
    if (!loop.pending) break;
    turns = moved ? 0 : turns + 1;
    if (moved) {
      loop.start = 0; /* deadlines are for waiting, not for work */
      for (nh_task *task = tasks; task && loop.published; task = task->next) nh_wait_over(task);
      loop.published = false;
    }
    if (turns) idle(&loop, turns - 1);
  }
  innermost = loop.outer;
  end_doomed(&loop);
  nh_error_hold(false);
  for (nh_task *task = tasks; task; task = task->next)
    if (task->result != ncclSuccess) return task->result;
  return ncclSuccess;
}
