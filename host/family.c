/* Communicators made from communicators: split, shrink, grow. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each is a chain of tasks in one: the ranks tell each other what they need (a round of the parent, or a meeting where the parent has failed
 * or is meant to lose ranks), the first rank of each new communicator makes its unique id and tells that, and then they join it like any
 * other. The handle is handed out when all of it is done.
 */
#include <stdlib.h>
#include <string.h>

#include "family.h"

/* The rank of the parent that is the reason why this one could not join: who is late to the new communicator finds only this rank's word. */
static int at_fault(const nh_family *family)
{
  ncclComm_t child = family->child;
  nh_failure failure = child && child->head ? nh_failure_unpack(nh_state(child->head)) : (nh_failure){0};
  bool says_who = failure.kind == nickelKindTimeout || failure.kind == nickelKindWorldSize; /* has given up, was told another number */
  if (family->at_fault >= 0 && !says_who) return family->at_fault;
  int rank = says_who ? failure.by : failure.rank;
  return failure.kind && rank < family->nmembers ? family->members[rank] : family->parent->rank;
}

static void end(nh_task *task)
{
  nh_family *family = task->more;
  if (task->result != ncclSuccess && family->mark && family->parent->head) nh_set_not_joined(family->parent, family->mark, at_fault(family));
  if (task->op == NH_JOIN && task->result == ncclSuccess) *family->out = family->child;
  else if (task->op == NH_JOIN) nh_comm_dispose(family->child);
  free((bool *)family->excluded);
  free(family->members);
  free(family->why);
  free(family->all);
  free(family);
}

/* at_fault: the rank that is the reason; NULL: just asks. */
static bool could_not_join(const nh_family *family, int member, int *at_fault)
{
  int by;
  bool could_not = nh_not_joined(family->parent, member, &by) == family->mark && family->mark;
  if (could_not && at_fault) *at_fault = by;
  return could_not;
}

/* `how` it is gone says less than that it could not join before; and that was another one's fault if it could not because of that one. */
static ncclResult_t lost(nh_family *family, int member, const char *how)
{
  int pid;
  if (could_not_join(family, member, &member)) how = "could not join the new one";
  family->at_fault = member;
  nh_rank_life(family->parent->head, member, &pid, NULL);
  nh_error(ncclRemoteError, nickelKindRemote, "rank %d (pid %d) of the communicator that was split, shrunk or grown %s; the new one of %d ranks cannot be made", member,
           pid, how, family->nranks);
  nh_error_rank(family->parent, member);
  return ncclRemoteError;
}

/* A rank that has not come into the new communicator is looked for in the parent. */
ncclResult_t nh_family_lost(nh_task *task, int rank)
{
  nh_family *family = task->more;
  if (rank >= family->nmembers || !family->parent->head || nh_rank_life(task->comm->head, rank, NULL, NULL) != NH_EMPTY) return ncclSuccess;
  int member = family->members[rank];
  if (nh_rank_life(family->parent->head, member, NULL, NULL) >= NH_CLOSED) return lost(family, member, "has closed it");
  return nh_alive(family->parent, member) && !could_not_join(family, member, NULL) ? ncclSuccess : lost(family, member, "has ended");
}

/* Or just going: then its descriptors may still be there. */
static bool gone(ncclComm_t comm, int rank)
{
  int pid;
  nh_rank_life(comm->head, rank, &pid, NULL);
  return !nh_alive(comm, rank) || nh_start_time(pid) == 0;
}

/* An id that leads nowhere because its maker is gone, or has given up. */
static ncclResult_t join_step(nh_task *task)
{
  nh_family *family = task->more;
  ncclResult_t result = family->join(task);
  bool led_nowhere = result != ncclSuccess && result != ncclInProgress && (nh_error_kind() == nickelKindIdStale || nh_error_kind() == nickelKindIdReused);
  bool leads_no_more = led_nowhere && (could_not_join(family, family->leader, NULL) || gone(family->parent, family->leader));
  return leads_no_more ? lost(family, family->leader, "has ended") : result;
}

/* The task becomes the joining of the new communicator. */
static ncclResult_t join(nh_task *task)
{
  nh_family *family = task->more;
  nh_task next;
  static const ncclUniqueId none;
  memcpy(&family->id, family->all + (size_t)family->leader * family->size, sizeof family->id);
  if (memcmp(&family->id, &none, sizeof none) == 0)
    return family->leader == task->comm->rank ? nh_error_told(family->refused, family->why) : lost(family, family->leader, "could not make its unique id");
  family->mark = family->meet ? task->round : task->round << 1 | 1;
  if (!family->members) return nh_family_no_memory();
  ncclResult_t result =
    nh_comm_new(&next, &family->child, family->nranks, (const uint8_t *)family->id.internal, family->rank, family->parent->device, family->settings);
  if (result != ncclSuccess) return result;
  family->child->timeout = family->parent->timeout;
  next.home = task->home;
  next.called = task->called;
  next.seq = task->seq;
  next.started = task->started;
  next.next = task->next;
  next.lane = task->lane;
  next.more = family;
  next.end = end;
  family->join = next.step;
  next.step = join_step;
  next.lost = nh_family_lost;
  next.moved = true;
  *task = next;
  return ncclInProgress;
}

/* The leader makes it; if it cannot it tells so, by none, as the others would wait for it. */
static void make_id(nh_family *family)
{
  memset(&family->id, 0, sizeof family->id);
  if (family->leader != family->parent->rank) return;
  family->refused = nh_family_id(family);
  if (family->refused == ncclSuccess) return;
  family->why = nh_error_keep();
  memset(&family->id, 0, sizeof family->id);
}

static ncclResult_t tell_id(nh_task *task)
{
  nh_family *family = task->more;
  make_id(family);
  nh_tell(task, &family->id, sizeof family->id, join);
  return ncclInProgress;
}

/* The place of each rank of this color: how many come before it. Without memory the rank says, in time, that it cannot join. */
static void note_members(nh_family *family, const int (*told)[2])
{
  int n = family->parent->nranks;
  family->members = calloc((size_t)family->nranks, sizeof *family->members);
  if (!family->members) return;
  family->nmembers = family->nranks;
  for (int rank = 0; rank < n; rank++) {
    int before = 0;
    if (told[rank][0] != family->mine[0]) continue;
    for (int other = 0; other < n; other++)
      if (told[other][0] == told[rank][0] && (told[other][1] < told[rank][1] || (told[other][1] == told[rank][1] && other < rank))) before++;
    family->members[before] = rank;
  }
}

/* Ranks of one color by key, ties by their rank in the parent. */
static ncclResult_t sort_colors(nh_task *task)
{
  ncclComm_t comm = task->comm;
  nh_family *family = task->more;
  const int (*told)[2] = (const int (*)[2])(void *)family->all;
  int color = family->mine[0], key = family->mine[1];
  family->nranks = family->rank = 0;
  family->leader = comm->rank;
  for (int rank = 0; rank < comm->nranks; rank++) {
    if (told[rank][0] != color) continue;
    family->nranks++;
    if (told[rank][1] < key || (told[rank][1] == key && rank < comm->rank)) family->rank++;
    int first = told[family->leader][1];
    if (told[rank][1] < first || (told[rank][1] == first && rank < family->leader)) family->leader = rank;
  }
  if (color == NCCL_SPLIT_NOCOLOR) family->leader = -1;
  else note_members(family, told);
  make_id(family);
  nh_tell(task, &family->id, sizeof family->id, color == NCCL_SPLIT_NOCOLOR ? NULL : join);
  return ncclInProgress;
}

/* The first rank that told an id. */
static ncclResult_t find_id(nh_task *task)
{
  nh_family *family = task->more;
  static const char none[sizeof family->id];
  family->leader = -1;
  for (int rank = task->comm->nranks - 1; rank >= 0; rank--)
    if (memcmp(family->all + (size_t)rank * family->size, none, sizeof none) != 0) family->leader = rank;
  if (family->leader < 0)
    return nh_error(ncclInvalidArgument, nickelKindNone, "ncclCommGrow: no rank has passed a unique id: one that belongs to the communicator gets it by ncclCommGetUniqueId");
  family->members = calloc((size_t)task->comm->nranks, sizeof *family->members);
  for (int rank = 0; rank < task->comm->nranks && family->members; rank++) family->members[family->nmembers++] = rank;
  return join(task);
}

static ncclResult_t start(ncclComm_t comm, nh_op op, nh_task *task, ncclComm_t *out, nh_settings settings)
{
  nh_family *family = calloc(1, sizeof *family);
  if (family) family->all = calloc((size_t)comm->nranks, sizeof family->id);
  if (!family || !family->all) {
    free(family);
    return nh_family_no_memory();
  }
  family->parent = comm;
  family->out = out;
  family->settings = settings;
  family->at_fault = -1;
  *task = (nh_task){.comm = comm, .serial = comm->serial, .op = op, .more = family, .end = end};
  return ncclSuccess;
}

ncclResult_t nh_split(ncclComm_t comm, int color, int key, ncclComm_t *out, nh_settings settings)
{
  nh_task task;
  ncclResult_t result = start(comm, NH_SPLIT, &task, out, settings);
  if (result != ncclSuccess) return result;
  nh_family *family = task.more;
  family->mine[0] = color;
  family->mine[1] = key;
  family->meet = nh_comm_revoked(comm);
  nh_tell(&task, family->mine, sizeof family->mine, sort_colors);
  return nh_submit(&task);
}

ncclResult_t nh_shrink(ncclComm_t comm, const bool *excluded, ncclComm_t *out, nh_settings settings)
{
  nh_task task;
  ncclResult_t result = start(comm, NH_SHRINK, &task, out, settings);
  if (result != ncclSuccess) {
    free((bool *)excluded);
    return result;
  }
  nh_family *family = task.more;
  family->excluded = excluded;
  family->meet = true;
  family->leader = -1;
  family->members = calloc((size_t)comm->nranks, sizeof *family->members);
  for (int rank = 0; rank < comm->nranks && family->members; rank++) {
    if (!nh_takes_part(family, rank)) continue;
    if (family->leader < 0) family->leader = rank;
    if (rank < comm->rank) family->rank++;
    family->members[family->nranks++] = rank;
  }
  family->nmembers = family->nranks;
  result = family->members ? tell_id(&task) : nh_family_no_memory();
  if (result == ncclInProgress) return nh_submit(&task);
  task.result = result;
  end(&task);
  return result;
}

ncclResult_t nh_grow(ncclComm_t comm, int nranks, const ncclUniqueId *id, ncclComm_t *out, nh_settings settings)
{
  nh_task task;
  ncclResult_t result = start(comm, NH_GROW, &task, out, settings);
  if (result != ncclSuccess) return result;
  nh_family *family = task.more;
  family->nranks = nranks;
  family->rank = comm->rank;
  if (id) family->id = *id;
  nh_tell(&task, &family->id, sizeof family->id, find_id);
  return nh_submit(&task);
}
