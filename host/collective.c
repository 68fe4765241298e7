/* The collectives as tasks: post the call, wait for the verdict, then move data by the shortest path that all ranks can take. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which path follows from the calls alone, which all ranks see alike after the verdict:
 *   inline   what each rank shows fits beside its call: it is there with the post, and after "go" everybody takes what it needs. One wait.
 *   direct   all buffers in question can be reached (threads of one process, or ncclMemAlloc memory): direct.c. Two waits.
 *   staged   pieces through slots of the segment: staged.c.
 */
#include <string.h>

#include "host.h"

/* Bytes that a rank shows to others: the same number on all, whether or not a rank has any. */
static size_t contribution(const nh_task *task)
{
  size_t bytes = task->count * nh_type_size(task->type);
  bool parts = task->op == NH_REDUCE_SCATTER || task->op == NH_ALL_TO_ALL || task->op == NH_SCATTER;
  return parts ? bytes * (size_t)task->comm->nranks : bytes;
}

static char *shown(nh_task *task, int rank)
{
  ncclComm_t comm = task->comm;
  if (contribution(task) <= NH_SMALL && task->redop != NH_PREMULSUM) return nh_rank_at(comm->head, rank)->call[task->round & 1].small;
  return nh_inline_slot(comm->head, comm->nranks, rank, task->round);
}

static bool is_inline(const nh_task *task)
{
  return contribution(task) <= NH_INLINE;
}

/* A scalar in device memory is read now, when the collective runs. */
static void post_scalar(nh_task *task, nh_call *call)
{
  if (task->device_scalar) memcpy(&task->scalar, task->device_scalar, nh_type_size(task->type));
  memcpy(call->small, &task->scalar, sizeof task->scalar);
}

const uint64_t *nh_scalars(const nh_task *task, uint64_t *scalars)
{
  ncclComm_t comm = task->comm;
  if (task->redop != NH_PREMULSUM) return NULL;
  for (int rank = 0; rank < comm->nranks; rank++)
    memcpy(&scalars[rank], nh_rank_at(comm->head, rank)->call[task->round & 1].small, sizeof scalars[rank]);
  return scalars;
}

static void post(nh_task *task)
{
  ncclComm_t comm = task->comm;
  size_t bytes = task->count * nh_type_size(task->type), n = (size_t)comm->nranks;
  task->round = ++comm->round;
  nh_call *call = &nh_rank_at(comm->head, comm->rank)->call[task->round & 1];
  nh_describe(task, call);
  if (task->redop == NH_PREMULSUM) post_scalar(task, call);
  bool rooted = task->op == NH_BROADCAST || task->op == NH_SCATTER;
  if (is_inline(task)) {
    if (task->send && (!rooted || task->root == comm->rank)) memcpy(shown(task, comm->rank), task->send, contribution(task));
  } else {
    bool send_parts = contribution(task) != bytes, recv_parts = task->op == NH_ALL_GATHER || task->op == NH_ALL_TO_ALL || task->op == NH_GATHER;
    nh_arena_place(task->send, send_parts ? bytes * n : bytes, &call->send);
    nh_arena_place(task->recv, recv_parts ? bytes * n : bytes, &call->recv);
  }
  bool last;
  nh_post(comm, task->round, &last);
  if (last) nh_decide(comm, task->round, nh_calls_match(comm, task->round) ? NH_GO : NH_MISMATCH);
}

static void take_inline(nh_task *task)
{
  ncclComm_t comm = task->comm;
  size_t bytes = task->count * nh_type_size(task->type);
  char *recv = task->recv;
  const char *sources[NH_MAX_RANKS];
  uint64_t scalars[NH_MAX_RANKS];
  size_t mine = task->op == NH_REDUCE_SCATTER || task->op == NH_ALL_TO_ALL || task->op == NH_SCATTER ? (size_t)comm->rank * bytes : 0;
  if ((task->op == NH_REDUCE || task->op == NH_GATHER) && task->root != comm->rank) return;
  if (task->op == NH_FINALIZE) return;
  if (task->op == NH_BROADCAST || task->op == NH_SCATTER) {
    memcpy(recv, shown(task, task->root) + mine, bytes);
    return;
  }
  for (int rank = 0; rank < comm->nranks; rank++) sources[rank] = shown(task, rank) + mine;
  if (task->op == NH_ALL_REDUCE || task->op == NH_REDUCE || task->op == NH_REDUCE_SCATTER)
    nh_fold(recv, sources, comm->nranks, task->count, task->type, task->redop, nh_scalars(task, scalars));
  else
    for (int rank = 0; rank < comm->nranks; rank++) memcpy(recv + (size_t)rank * bytes, sources[rank], bytes);
}

static ncclResult_t start(nh_task *task)
{
  ncclComm_t comm = task->comm;
  task->seq = comm->seq++;
  if (task->count == 0 && task->op != NH_FINALIZE) {
    nh_post_zero(comm, task->seq);
    return ncclSuccess;
  }
  post(task);
  task->phase = NH_POSTED;
  return ncclInProgress;
}

static ncclResult_t after_go(nh_task *task)
{
  if (is_inline(task)) {
    task->path = "inline";
    take_inline(task);
    return ncclSuccess;
  }
  if (nh_direct_possible(task)) {
    task->path = "direct";
    nh_direct_run(task);
    task->phase = NH_DIRECT_END;
    return ncclInProgress;
  }
  task->path = "staged";
  nh_staged_start(task);
  task->phase = NH_STAGED;
  return ncclInProgress;
}

static ncclResult_t step(nh_task *task)
{
  ncclComm_t comm = task->comm;
  ncclResult_t result = ncclInProgress;
  if (task->phase == NH_START) {
    task->moved = true;
    if ((result = start(task)) != ncclInProgress) return result;
  }
  if (task->phase == NH_POSTED) {
    nh_verdict verdict = nh_verdict_of(comm, task->round);
    if (verdict == NH_UNDECIDED) return nh_wait_for(task, NH_ON_VERDICT);
    task->moved = true;
    if (verdict == NH_MISMATCH) return nh_mismatch(task);
    if (verdict == NH_FAILED) return nh_round_failed(task);
    if ((result = after_go(task)) != ncclInProgress) return result;
  }
  if (task->phase == NH_DIRECT_END) {
    if (!task->all_done && !nh_finished(comm, comm->directs)) return nh_wait_for(task, NH_ON_VERDICT);
    if (nh_comm_code(comm) != ncclSuccess) return nh_recall_error(comm);
    return nh_spoiled(comm, comm->directs) ? nh_round_failed(task) : ncclSuccess;
  }
  return nh_staged_step(task);
}

static bool missing(nh_task *task, int rank)
{
  ncclComm_t comm = task->comm;
  nh_counter which;
  uint64_t pieces;
  if (task->phase == NH_POSTED) return !nh_posted(comm, rank, task->round);
  if (task->phase == NH_DIRECT_END) return !nh_finished_rank(comm, rank, comm->directs);
  return task->phase == NH_STAGED && nh_staged_missing(task, rank, &which, &pieces);
}

/* The last to arrive decides, and the last to finish counts; if it was killed just before that, everybody else can do it. */
static void nobody_missing(nh_task *task)
{
  if (task->phase == NH_POSTED) nh_decide(task->comm, task->round, nh_calls_match(task->comm, task->round) ? NH_GO : NH_MISMATCH);
  if (task->phase == NH_DIRECT_END) task->all_done = true;
}

static nh_verdict give_up(nh_task *task)
{
  return task->phase == NH_POSTED ? nh_decide(task->comm, task->round, NH_FAILED) : NH_FAILED;
}

/* Alone, a rank copies; a floating average of one multiplies by one. */
static ncclResult_t alone(nh_task *task)
{
  const char *source = task->send;
  task->seq = task->comm->seq++;
  task->moved = true;
  if (task->count == 0 || task->op == NH_FINALIZE) return ncclSuccess;
  size_t bytes = task->count * nh_type_size(task->type);
  task->path = "alone";
  if (task->device_scalar) memcpy(&task->scalar, task->device_scalar, nh_type_size(task->type));
  if (task->redop == NH_PREMULSUM) nh_scale(task->recv, source, task->count, task->type, task->scalar);
  else if (task->send != task->recv) memmove(task->recv, source, bytes);
  return ncclSuccess;
}

void nh_collective_prepare(nh_task *task)
{
  task->step = task->comm->nranks == 1 ? alone : step;
  task->missing = missing;
  task->nobody_missing = nobody_missing;
  task->give_up = give_up;
  task->result = ncclInProgress;
}
