/* Groups: calls between ncclGroupStart and ncclGroupEnd are queued per thread and run together at the outermost end. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tasks of one lane run one after the other, lanes side by side: the collectives of a communicator are a lane, and so are the sends to
 * and the receives from each peer. The first error inside a group is the group's: its end returns it and launches nothing.
 */
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

static ncclResult_t busy(ncclComm_t comm)
{
  return nh_error(ncclInvalidUsage, nickelKindBusy, "rank %d of %d: another thread is inside this communicator: one thread at a time may use it", comm->rank,
                  comm->nranks);
}

/* Is the handle still the communicator that the call was checked for? */
static ncclResult_t same_comm(const nh_task *task)
{
  if (nh_comm_valid(task->comm) && task->comm->serial == task->serial) return ncclSuccess;
  return nh_error(ncclInvalidUsage, nickelKindClosed, "%s: the communicator was destroyed or aborted before the call could start", nh_op_name(task->op));
}

static void after(nh_task *task)
{
  if (task->op == NH_JOIN && task->result != ncclSuccess) nh_comm_not_joined(task);
}

ncclResult_t nh_submit(nh_task *task)
{
  if (!group.depth) {
    ncclComm_t comm = task->comm;
    if (!nh_comm_enter(comm)) return busy(comm);
    task->next = task->lane = NULL;
    ncclResult_t result = same_comm(task);
    if (result == ncclSuccess) result = nh_run(task);
    nh_comm_leave(comm);
    after(task);
    return result;
  }
  nh_task *copy = malloc(sizeof *copy);
  if (!copy) return nh_group_note(nh_error(ncclSystemError, nickelKindMemory, "no memory for a call in a group"));
  *copy = *task;
  copy->next = copy->lane = NULL;
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
  int place = task->op == NH_SEND ? 1 + 2 * task->root : task->op == NH_RECV ? 2 + 2 * task->root : 0;
  return &task->comm->last[place];
}

static bool to_self(const nh_task *task)
{
  return (task->op == NH_SEND || task->op == NH_RECV) && task->root == task->comm->rank;
}

/* Enters every communicator of the group once; leave_all leaves those that were entered. */
static ncclResult_t enter_all(void)
{
  for (nh_task *task = group.first; task; task = task->next) {
    if (task->comm->grouped) continue;
    if (!nh_comm_enter(task->comm)) return busy(task->comm);
    task->comm->grouped = true;
    ncclResult_t result = same_comm(task);
    if (result != ncclSuccess) return result;
  }
  return ncclSuccess;
}

static void leave_all(void)
{
  for (nh_task *task = group.first; task; task = task->next) {
    if (!task->comm->grouped) continue;
    task->comm->grouped = false;
    nh_comm_leave(task->comm);
  }
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
  }
  for (nh_task *task = group.first; task; task = task->next)
    if (to_self(task) && task->result == ncclInProgress)
      return nh_error(ncclInvalidUsage, nickelKindDeadlock, "rank %d of %d: %s to itself has no partner in its group: put the send and the receive into one group",
                      task->comm->rank, task->comm->nranks, nh_op_name(task->op));
  return ncclSuccess;
}

static ncclResult_t run(void)
{
  ncclResult_t result = enter_all();
  if (result == ncclSuccess) result = match_self();
  if (result == ncclSuccess) {
    link_lanes();
    result = nh_run(group.first);
  }
  leave_all();
  return result;
}

static void drop_all(ncclResult_t result)
{
  while (group.first) {
    nh_task *task = group.first;
    group.first = task->next;
    if (result != ncclSuccess && task->result == ncclInProgress) task->result = result;
    after(task);
    free(task);
  }
  group.last = NULL;
}

ncclResult_t nh_group_end(void)
{
  if (!group.depth) return nh_error(ncclInvalidUsage, nickelKindNone, "ncclGroupEnd without ncclGroupStart in this thread");
  if (--group.depth) return ncclSuccess;
  ncclResult_t result = group.error;
  nh_error_hold(false);
  if (result == ncclSuccess && group.first) result = run();
  nh_error_hold(true);
  drop_all(result);
  nh_error_hold(false);
  group.error = ncclSuccess;
  return result;
}
