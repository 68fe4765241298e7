/* The direct path: every rank works on its peers' buffers where they are. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * After "go" each rank does its share without waiting for anybody, then all wait until all are finished: only then may a buffer be
 * changed or freed. Shares never overlap: an element of a receive buffer is written by one rank, and an element of a send buffer that
 * somebody overwrites (in place) is read by that rank only.
 */
#include <string.h>

#include "host.h"

enum { BLOCK = 131072 };        /* bytes folded before they are copied to the peers: they are still in the nearest cache */

typedef struct { bool send_all, send_root, recv_all, recv_root; } nh_needs;

static nh_needs needs(nh_op op)
{
  switch (op) {
  case NH_ALL_REDUCE: return (nh_needs){.send_all = true, .recv_all = true};
  case NH_REDUCE:
  case NH_GATHER: return (nh_needs){.send_all = true, .recv_root = true};
  case NH_BROADCAST:
  case NH_SCATTER: return (nh_needs){.send_root = true};
  default: return (nh_needs){.send_all = true};
  }
}

bool nh_direct_possible(const nh_task *task)
{
  ncclComm_t comm = task->comm;
  if (comm->one_process) return true;
  nh_needs need = needs(task->op);
  for (int rank = 0; rank < comm->nranks; rank++) {
    const nh_call *call = &nh_rank_at(comm->head, rank)->call[task->round & 1];
    bool root = rank == task->root;
    if ((need.send_all || (need.send_root && root)) && !call->send.arena) return false;
    if ((need.recv_all || (need.recv_root && root)) && !call->recv.arena) return false;
  }
  return true;
}

/* Where the buffers of a rank are for this one; its own are where the caller said. */
static ncclResult_t reach(nh_task *task, int rank, bool send, size_t bytes, char **pointer)
{
  ncclComm_t comm = task->comm;
  const nh_call *call = &nh_rank_at(comm->head, rank)->call[task->round & 1];
  if (rank == comm->rank) {
    *pointer = send ? (char *)(uintptr_t)task->send : task->recv;
    return ncclSuccess;
  }
  return nh_arena_reach(comm, rank, send ? &call->send : &call->recv, bytes, pointer, nh_op_name(task->op));
}

/* This rank's share of count elements, in whole cache lines where that can be. */
static void share(const nh_task *task, size_t size, size_t *first, size_t *last)
{
  size_t line = 64 / size, lines = (task->count + line - 1) / line, n = (size_t)task->comm->nranks, rank = (size_t)task->comm->rank;
  *first = lines * rank / n * line;
  *last = lines * (rank + 1) / n * line;
  if (*first > task->count) *first = task->count;
  if (*last > task->count) *last = task->count;
}

static void fold_share(nh_task *task, char *const *sends, char *const *targets, int ntargets)
{
  size_t size = nh_type_size(task->type), first, last, step = BLOCK / size;
  const char *sources[NH_MAX_RANKS];
  uint64_t scalars[NH_MAX_RANKS];
  share(task, size, &first, &last);
  for (size_t at = first; at < last; at += step) {
    size_t count = last - at < step ? last - at : step;
    for (int rank = 0; rank < task->comm->nranks; rank++) sources[rank] = sends[rank] + at * size;
    nh_fold_both(targets[0] + at * size, targets[ntargets > 1] + at * size, sources, task->comm->nranks, count, task->type, task->redop,
                 nh_scalars(task, scalars));
    for (int i = 2; i < ntargets; i++) memcpy(targets[i] + at * size, targets[0] + at * size, count * size);
  }
}

static ncclResult_t all_reduce(nh_task *task, char *const *sends, size_t bytes)
{
  ncclComm_t comm = task->comm;
  char *targets[NH_MAX_RANKS];
  int n = 0;
  targets[n++] = task->recv;
  for (int i = 1; i < comm->nranks; i++) {
    ncclResult_t result = reach(task, (comm->rank + i) % comm->nranks, false, bytes, &targets[n++]);
    if (result != ncclSuccess) return result;
  }
  fold_share(task, sends, targets, n);
  return ncclSuccess;
}

static ncclResult_t reduce(nh_task *task, char *const *sends, size_t bytes)
{
  char *target;
  ncclResult_t result = reach(task, task->root, false, bytes, &target);
  if (result == ncclSuccess) fold_share(task, sends, &target, 1);
  return result;
}

/* Of what goes between the root and this rank, the first so many bytes are that rank's to copy and the others the root's, so that all
   copy as much. All see the same. */
static size_t ranks_share(const nh_task *task, int rank, size_t bytes)
{
  ncclComm_t comm = task->comm;
  const nh_call *call = &nh_rank_at(comm->head, rank)->call[task->round & 1];
  bool reachable = comm->one_process || (task->op == NH_GATHER ? call->send.arena : call->recv.arena);
  if (!reachable) return bytes;
  return bytes / (size_t)comm->nranks * (size_t)(comm->nranks - 1) / NH_PAGE * NH_PAGE;
}

/* The part of one rank: between its buffer and its place in the root's. */
static void copy_part(const nh_task *task, char *target, const char *source, int rank, size_t bytes)
{
  size_t first = ranks_share(task, rank, bytes);
  if (target == source) return;
  bool beyond = nh_beyond_caches(bytes, task->comm->nranks);
  if (rank == task->root) nh_copy(target, source, bytes, beyond);
  else if (rank == task->comm->rank) nh_copy(target, source, first, beyond);
  else nh_copy(target + first, source + first, bytes - first, beyond);
}

/* Broadcast, scatter, gather: the root with everybody, the others with the root. */
static ncclResult_t with_root(nh_task *task, char *const *sends, size_t bytes)
{
  ncclComm_t comm = task->comm;
  bool gather = task->op == NH_GATHER, parts = task->op != NH_BROADCAST;
  char *big = NULL, *target;
  ncclResult_t result = gather ? reach(task, task->root, false, bytes * (size_t)comm->nranks, &big) : ncclSuccess;
  for (int i = 0; i < comm->nranks && result == ncclSuccess; i++) {
    int rank = (comm->rank + i) % comm->nranks;
    if (rank != comm->rank && (comm->rank != task->root || ranks_share(task, rank, bytes) == bytes)) continue;
    if (gather) {
      copy_part(task, big + (size_t)rank * bytes, sends[rank], rank, bytes);
      continue;
    }
    result = reach(task, rank, false, bytes, &target);
    if (result == ncclSuccess) copy_part(task, target, sends[task->root] + (parts ? (size_t)rank * bytes : 0), rank, bytes);
  }
  return result;
}

static void from_all(nh_task *task, char *const *sends, size_t bytes)
{
  ncclComm_t comm = task->comm;
  const char *sources[NH_MAX_RANKS];
  uint64_t scalars[NH_MAX_RANKS];
  size_t mine = task->op == NH_ALL_GATHER ? 0 : (size_t)comm->rank * bytes;
  for (int rank = 0; rank < comm->nranks; rank++) sources[rank] = sends[rank] + mine;
  if (task->op == NH_REDUCE_SCATTER) {
    nh_fold(task->recv, sources, comm->nranks, task->count, task->type, task->redop, nh_scalars(task, scalars));
    return;
  }
  for (int i = 0; i < comm->nranks; i++) {
    int rank = (comm->rank + i) % comm->nranks;
    char *target = (char *)task->recv + (size_t)rank * bytes;
    if (target != sources[rank]) nh_copy(target, sources[rank], bytes, nh_beyond_caches(bytes * ((size_t)comm->nranks + 1), comm->nranks));
  }
}

static ncclResult_t work(nh_task *task)
{
  ncclComm_t comm = task->comm;
  nh_needs need = needs(task->op);
  size_t bytes = task->count * nh_type_size(task->type), n = (size_t)comm->nranks;
  size_t send_bytes = task->op == NH_REDUCE_SCATTER || task->op == NH_ALL_TO_ALL || task->op == NH_SCATTER ? bytes * n : bytes;
  char *sends[NH_MAX_RANKS];
  for (int rank = 0; rank < comm->nranks; rank++) {
    if (!need.send_all && rank != task->root) continue;
    ncclResult_t result = reach(task, rank, true, send_bytes, &sends[rank]);
    if (result != ncclSuccess) return result;
  }
  if (need.recv_all) return all_reduce(task, sends, bytes);
  if (task->op == NH_REDUCE) return reduce(task, sends, bytes);
  if (need.recv_root || need.send_root) return with_root(task, sends, bytes);
  from_all(task, sends, bytes);
  return ncclSuccess;
}

/* Whatever comes of it, this rank says that it is finished: its peers' memory is theirs again. Memory that cannot be reached has made the
   communicator fail. */
void nh_direct_run(nh_task *task)
{
  ncclComm_t comm = task->comm;
  ncclResult_t result = work(task);
  if (result != ncclSuccess) {
    nh_fail(comm, (nh_failure){nh_error_kind(), result, comm->rank, comm->rank});
    nh_comm_failed(comm, result);
  }
  nh_finish_direct(comm, ++comm->directs, result != ncclSuccess);
}
