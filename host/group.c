/* Groups: calls between ncclGroupStart and ncclGroupEnd are queued per thread and run together at the outermost end. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tasks of one lane run one after the other, lanes side by side: the collectives of a communicator are a lane, and so are the sends to
 * and the receives from each peer. The first error inside a group is the group's: its end returns it and launches nothing.
 */
#include <sched.h>
#include <stdlib.h>

#include "host.h"

static _Thread_local struct {
  int depth;
  nh_task *first, *last;
  ncclResult_t error;
} group;

bool nh_grouped(void)
{
  return group.depth > 0;
}

ncclResult_t nh_group_note(ncclResult_t code)
{
  if (group.depth > 0 && group.error == ncclSuccess && code != ncclSuccess) {
    group.error = code;
    nh_error_hold(true);
  }
  return code;
}

/* Is the handle still the communicator that the call was checked for? */
static ncclResult_t same_comm(const nh_task *task)
{
  if (nh_comm_valid(task->home) && task->home->serial == task->serial) return ncclSuccess;
  return nh_error(ncclInvalidUsage, nickelKindClosed, "%s: the communicator was destroyed or aborted before the call could start", nh_op_name(task->op));
}

static void end_of(nh_task *task)
{
  if (task->end) task->end(task);
  task->end = NULL;
}

/* What came of one communicator's tasks: the first error, or success; ncclInProgress while one is not over. */
static ncclResult_t result_of(const nh_task *tasks, ncclComm_t home)
{
  ncclResult_t first = ncclSuccess;
  for (const nh_task *task = tasks; task; task = task->next) {
    if (task->home != home) continue;
    if (task->result == ncclInProgress) return ncclInProgress;
    if (first == ncclSuccess) first = task->result;
  }
  return first;
}

/* A communicator is left as soon as its own work is over, not when the whole group is: somebody may wait to abort it. A failed blocking init
   ends with its handle, so that is left first. Nothing of the communicator is touched after it has been left. */
void nh_left(nh_task *tasks, nh_task *over)
{
  ncclComm_t home = over->home;
  if (!home) return;
  ncclResult_t result = result_of(tasks, home);
  if (result == ncclInProgress) return;
  bool blocking = home->settings.blocking;
  for (nh_task *task = tasks; task; task = task->next)
    if (task->home == home && (task->op != NH_JOIN || task->comm != home || !blocking)) end_of(task);
  if (!blocking) nh_comm_set_async(home, result);
  if (home->coming) nh_come_over(home);
  nh_comm_leave(home, tasks);
  for (nh_task *task = tasks; task; task = task->next) {
    if (task->home != home) continue;
    end_of(task);
    task->home = NULL;
  }
}

/* The thread of a non-blocking communicator says that it is done and then leaves: who has seen the one waits for the other. */
static bool enter(ncclComm_t comm, const void *token)
{
  while (!nh_comm_enter(comm, token)) {
    if (comm->settings.blocking || nh_comm_async(comm) == ncclInProgress || nh_comm_aborted(comm) || !nh_comm_valid(comm)) return false;
    sched_yield();
  }
  return true;
}

static nh_task *copy_of(const nh_task *task)
{
  nh_task *copy = malloc(sizeof *copy);
  if (!copy) return NULL;
  *copy = *task;
  copy->next = copy->lane = NULL;
  return copy;
}

/* For a task that never ran. */
static ncclResult_t refuse(nh_task *task, ncclResult_t result)
{
  task->result = result;
  end_of(task);
  return result;
}

static ncclResult_t submit_now(nh_task *task)
{
  ncclComm_t comm = task->comm;
  nh_task *copy = comm->settings.blocking ? task : copy_of(task);
  if (!copy) return refuse(task, nh_error(ncclSystemError, nickelKindMemory, "no memory for a call"));
  copy->next = copy->lane = NULL;
  ncclResult_t result = enter(comm, copy) ? same_comm(copy) : nh_comm_busy(comm);
  if (result == ncclSuccess) return copy == task ? nh_run(copy) : nh_work_later(copy);
  nh_comm_leave(comm, copy);
  refuse(copy, result);
  if (copy != task) free(copy);
  return result;
}

ncclResult_t nh_submit(nh_task *task)
{
  task->home = task->comm;
  task->called = task->op;
  if (nh_tracing()) task->started = nh_now();
  if (!group.depth) return submit_now(task);
  nh_task *copy = copy_of(task);
  if (!copy) return refuse(task, nh_error(ncclSystemError, nickelKindMemory, "no memory for a call in a group"));
  if (group.last) group.last->next = copy;
  else group.first = copy;
  group.last = copy;
  return ncclSuccess;
}

ncclResult_t nh_group_start(void)
{
  group.depth++;
  return ncclSuccess;
}

/* Where the last task of this one's lane is noted; NULL for a join, which is alone. */
static nh_task **lane_of(const nh_task *task)
{
  if (task->op == NH_JOIN) return NULL;
  int place = task->op >= NH_SEND && task->op <= NH_WAIT ? 1 + 4 * task->root + ((int)task->op - NH_SEND) : 0;
  return &task->comm->last[place];
}

static bool to_self(const nh_task *task)
{
  return (task->op == NH_SEND || task->op == NH_RECV) && task->root == task->comm->rank;
}

/* Enters every communicator of the group. */
static ncclResult_t enter_all(void)
{
  for (nh_task *task = group.first; task; task = task->next) {
    if (task->home->settings.blocking != group.first->home->settings.blocking)
      return nh_error(ncclInvalidArgument, nickelKindNone, "blocking and non-blocking communicators cannot be in one group: end the group between them");
    if (!enter(task->home, group.first)) return nh_comm_busy(task->home);
    ncclResult_t result = same_comm(task);
    if (result != ncclSuccess) return result;
  }
  return ncclSuccess;
}

static void link_lanes(void)
{
  for (nh_task *task = group.first; task; task = task->next) {
    nh_task **last = lane_of(task);
    if (!last || to_self(task)) continue;
    task->lane = *last;
    *last = task;
  }
  for (nh_task *task = group.first; task; task = task->next) {
    nh_task **last = lane_of(task);
    if (last) *last = NULL;
  }
}

/* Sends to oneself go to the receives from oneself, in order; all must have their partner in the group. */
static ncclResult_t match_self(void)
{
  for (nh_task *send = group.first; send; send = send->next) {
    if (!to_self(send) || send->op != NH_SEND) continue;
    nh_task *recv = group.first;
    while (recv && !(recv->op == NH_RECV && recv->comm == send->comm && to_self(recv) && recv->result == ncclInProgress)) recv = recv->next;
    if (!recv) break;
    ncclResult_t result = nh_copy_to_self(send, recv);
    if (result != ncclSuccess) return result;
    send->path = recv->path = "self";
    nh_trace(send);
    nh_trace(recv);
  }
  for (nh_task *task = group.first; task; task = task->next)
    if (to_self(task) && task->result == ncclInProgress)
      return nh_error(ncclInvalidUsage, nickelKindDeadlock, "rank %d of %d: %s to itself has no partner in its group: put the send and the receive into one group",
                      task->comm->rank, task->comm->nranks, nh_op_name(task->op));
  return ncclSuccess;
}

void nh_free_tasks(nh_task *tasks)
{
  while (tasks) {
    nh_task *task = tasks;
    tasks = task->next;
    free(task);
  }
}

/* Takes the queue out of the group: what an end of a task calls may open a group of its own. */
static nh_task *take_queue(void)
{
  nh_task *tasks = group.first;
  group.first = group.last = NULL;
  return tasks;
}

static ncclResult_t launch(void)
{
  ncclResult_t result = enter_all();
  if (result == ncclSuccess) result = match_self();
  if (result != ncclSuccess) {
    for (nh_task *task = group.first; task; task = task->next) nh_comm_leave(task->home, group.first);
    return result;
  }
  link_lanes();
  if (!group.first->home->settings.blocking) return nh_work_later(take_queue());
  nh_task *tasks = take_queue();
  result = nh_run(tasks);
  nh_free_tasks(tasks);
  return result;
}

/* Of a group that was not launched. */
static void drop_queue(ncclResult_t result)
{
  nh_task *tasks = take_queue();
  nh_error_hold(true);
  for (nh_task *task = tasks; task; task = task->next) refuse(task, result);
  nh_free_tasks(tasks);
  nh_error_hold(false);
}

/* In a forked child: what its thread had queued belongs to its parent's communicators. */
void nh_group_forked(void)
{
  group.depth = 0;
  group.first = group.last = NULL;
  group.error = ncclSuccess;
  nh_error_hold(false);
}

static ncclResult_t no_group(const char *function)
{
  return nh_error(ncclInvalidUsage, nickelKindNone, "%s without ncclGroupStart in this thread", function);
}

ncclResult_t nh_group_end(void)
{
  if (!group.depth) return no_group("ncclGroupEnd");
  if (--group.depth) return ncclSuccess;
  ncclResult_t result = group.error;
  group.error = ncclSuccess;
  nh_error_hold(false);
  if (result == ncclSuccess && group.first) result = launch();
  drop_queue(result);
  return result;
}

/* The estimate is crude: a microsecond per call and the bytes at 10 GB/s. */
ncclResult_t nh_group_drop(double *seconds)
{
  if (!group.depth) return no_group("ncclGroupSimulateEnd");
  *seconds = 0;
  for (const nh_task *task = group.first; task; task = task->next) *seconds += 1e-6 + 1e-10 * (double)(task->count * nh_type_size(task->type));
  if (--group.depth) return ncclSuccess;
  ncclResult_t result = group.error;
  group.error = ncclSuccess;
  nh_error_hold(false);
  drop_queue(ncclInvalidUsage);
  return result;
}
