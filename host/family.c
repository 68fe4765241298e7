/* Communicators made from communicators: split, shrink, grow. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each is a chain of tasks in one: the ranks tell each other what they need (a round of the parent, or a meeting where the parent has failed
 * or is meant to lose ranks), the first rank of each new communicator makes its unique id and tells that, and then they join it like any
 * other. The handle is handed out when all of it is done.
 */
#include <stdlib.h>
#include <string.h>

#include "host.h"

typedef struct {
  ncclComm_t parent, child, *out;
  nh_settings settings;
  bool meet;                    /* the parent cannot have a round */
  nh_meet_kind kind;
  const bool *excluded;         /* by rank of the parent; NULL: nobody. Owned */
  int nranks, rank, leader;     /* of the new communicator; leader is its rank 0 in the parent */
  int mine[2];                  /* color and key */
  ncclUniqueId id;
  size_t size;                  /* bytes that each rank tells at this stage */
  char *all;                    /* what all have told */
} nh_family;

static bool takes_part(const nh_family *family, int rank)
{
  return !family->excluded || !family->excluded[rank];
}

static void end(nh_task *task)
{
  nh_family *family = task->more;
  if (task->op == NH_JOIN) {
    ncclResult_t result = task->result;
    if (result == ncclSuccess) *family->out = family->child;
    else nh_comm_dispose(family->child);
  }
  free((bool *)family->excluded);
  free(family->all);
  free(family);
}


/* ---- telling each other ---- */

static ncclResult_t meet_step(nh_task *task)
{
  ncclComm_t comm = task->comm;
  nh_family *family = task->more;
  if (task->phase == NH_START) {
    task->moved = true;
    task->round = ++comm->meetings[family->kind];
    nh_meet(comm, family->kind, task->round, task->send, family->size);
    task->phase = NH_MEETING;
  }
  for (int rank = 0; rank < comm->nranks; rank++)
    if (takes_part(family, rank) && !nh_met(comm, rank, family->kind, task->round)) return nh_wait_for(task, NH_ON_ANY);
  for (int rank = 0; rank < comm->nranks; rank++)
    if (takes_part(family, rank)) memcpy(family->all + (size_t)rank * family->size, nh_met(comm, rank, family->kind, task->round), family->size);
  task->moved = true;
  return ncclSuccess;
}

static bool not_met(nh_task *task, int rank)
{
  nh_family *family = task->more;
  return task->phase == NH_MEETING && takes_part(family, rank) && !nh_met(task->comm, rank, family->kind, task->round);
}

static void tell(nh_task *task, const void *data, size_t size, ncclResult_t (*then)(nh_task *))
{
  nh_family *family = task->more;
  family->size = size;
  task->send = data;
  task->recv = family->all;
  task->count = size;
  task->type = ncclInt8;
  task->phase = NH_START;
  task->then = then;
  if (!family->meet) {
    nh_collective_prepare(task);
    return;
  }
  task->step = meet_step;
  task->missing = not_met;
  task->give_up = NULL;
  task->nobody_missing = NULL;
  task->result = ncclInProgress;
}


/* ---- and then ---- */

/* The task becomes the joining of the new communicator. */
static ncclResult_t join(nh_task *task)
{
  nh_family *family = task->more;
  nh_task next;
  memcpy(&family->id, family->all + (size_t)family->leader * family->size, sizeof family->id);
  ncclResult_t result =
    nh_comm_new(&next, &family->child, family->nranks, (const uint8_t *)family->id.internal, family->rank, family->parent->device, family->settings);
  if (result != ncclSuccess) return result;
  family->child->timeout = family->parent->timeout;
  next.home = task->home;
  next.next = task->next;
  next.lane = task->lane;
  next.more = family;
  next.end = end;
  next.moved = true;
  *task = next;
  return ncclInProgress;
}

static ncclResult_t tell_id(nh_task *task)
{
  nh_family *family = task->more;
  memset(&family->id, 0, sizeof family->id);
  if (family->leader == task->comm->rank) {
    ncclResult_t result = nh_segment_make(&family->id);
    if (result != ncclSuccess) return result;
  }
  tell(task, &family->id, sizeof family->id, join);
  return ncclInProgress;
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
  tell(task, &family->id, sizeof family->id, color == NCCL_SPLIT_NOCOLOR ? NULL : join);
  memset(&family->id, 0, sizeof family->id);
  if (family->leader == comm->rank) {
    ncclResult_t result = nh_segment_make(&family->id);
    if (result != ncclSuccess) return result;
  }
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
  return join(task);
}

static ncclResult_t start(ncclComm_t comm, nh_op op, nh_task *task, ncclComm_t *out, nh_settings settings)
{
  nh_family *family = calloc(1, sizeof *family);
  if (family) family->all = calloc((size_t)comm->nranks, sizeof family->id);
  if (!family || !family->all) {
    free(family);
    return nh_error(ncclSystemError, nickelKindMemory, "no memory for a communicator");
  }
  family->parent = comm;
  family->out = out;
  family->settings = settings;
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
  family->kind = NH_MEET_ALL;
  tell(&task, family->mine, sizeof family->mine, sort_colors);
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
  family->kind = NH_MEET_SOME;
  family->leader = -1;
  for (int rank = 0; rank < comm->nranks; rank++) {
    if (!takes_part(family, rank)) continue;
    if (family->leader < 0) family->leader = rank;
    if (rank < comm->rank) family->rank++;
    family->nranks++;
  }
  result = tell_id(&task);
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
  tell(&task, &family->id, sizeof family->id, find_id);
  return nh_submit(&task);
}
