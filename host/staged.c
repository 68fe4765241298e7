/* The staged path: pieces through a few slots per rank, for buffers that peers cannot reach. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every rank that has something to show fills its slots piece by piece and counts in FILLED; every rank that wants something takes it out
 * and counts in DRAINED. A slot is filled again when all that take have drained the piece that was in it. All-reduce has a step between:
 * of each piece rank r folds part r, from its own buffer and the peers' slots, puts the result where part r of its own slot is (nobody
 * else needs that place) and counts in REDUCED; then everybody takes part r from rank r.
 * At the start of an operation all counters are equal on all ranks (`comm->pieces`) and everything is drained: its verdict says that all
 * have left the operation before. So a rank may leave while others still read its slots.
 */
#include <string.h>

#include "host.h"

enum { LEAST = 32768 };         /* bytes of a piece, where there are so many: less is all waiting */

static bool is_parts(nh_op op)
{
  return op == NH_REDUCE_SCATTER || op == NH_ALL_TO_ALL || op == NH_SCATTER;
}

/* Does this rank put anything into its slots; does it take anything out of others'? A root's own data does not travel. */
static bool gives(const nh_task *task, int rank)
{
  if (task->op == NH_BROADCAST || task->op == NH_SCATTER) return rank == task->root;
  if (task->op == NH_REDUCE || task->op == NH_GATHER) return rank != task->root;
  return true;
}

static bool takes(const nh_task *task, int rank)
{
  if (task->op == NH_BROADCAST || task->op == NH_SCATTER) return rank != task->root;
  if (task->op == NH_REDUCE || task->op == NH_GATHER) return rank == task->root;
  return true;
}

static bool beyond(const nh_task *task)
{
  size_t n = (size_t)task->comm->nranks, bytes = task->count * nh_type_size(task->type);
  return nh_beyond_caches(task->op == NH_BROADCAST || task->op == NH_SCATTER ? bytes : task->op == NH_ALL_TO_ALL ? 2 * n * bytes : (n + 1) * bytes, (int)n);
}

/* What a rank keeps from its own buffer; the rest comes through slots. */
static void keep_own(nh_task *task)
{
  ncclComm_t comm = task->comm;
  size_t bytes = task->count * nh_type_size(task->type), rank = (size_t)comm->rank;
  const char *from = task->send;
  char *to = task->recv;
  if ((task->op == NH_BROADCAST || task->op == NH_SCATTER || task->op == NH_GATHER) && comm->rank != task->root) return;
  if (task->op == NH_SCATTER || task->op == NH_ALL_TO_ALL) from += rank * bytes;
  if (task->op == NH_GATHER || task->op == NH_ALL_GATHER || task->op == NH_ALL_TO_ALL) to += rank * bytes;
  if (task->op == NH_ALL_REDUCE || task->op == NH_REDUCE || task->op == NH_REDUCE_SCATTER || from == to) return;
  nh_copy(to, from, bytes, beyond(task));
}

void nh_staged_start(nh_task *task)
{
  size_t size = nh_type_size(task->type), n = (size_t)task->comm->nranks;
  size_t most = NH_SLOT / size / (is_parts(task->op) ? n : 1);
  size_t even = (task->count + 1) / 2, least = LEAST / size;
  task->piece_count = even < least ? least : even;
  if (task->piece_count > most) task->piece_count = most;
  task->pieces = (task->count + task->piece_count - 1) / task->piece_count;
  task->filled = task->reduced = task->drained = 0;
  memset(task->known, 0, sizeof task->known);
  keep_own(task);
  if (!gives(task, task->comm->rank)) task->filled = task->pieces;
  if (!takes(task, task->comm->rank)) task->drained = task->pieces;
  if (task->op != NH_ALL_REDUCE) task->reduced = task->pieces;
}

static size_t piece_length(const nh_task *task, uint64_t piece)
{
  size_t left = task->count - (size_t)piece * task->piece_count;
  return left < task->piece_count ? left : task->piece_count;
}

/* Have all ranks that matter reached this number of pieces? Ranks below known[] are known to; -1 or the first that has not. */
static int first_behind(nh_task *task, nh_counter which, uint64_t pieces, bool (*matters)(const nh_task *, int))
{
  ncclComm_t comm = task->comm;
  while (task->known[which] < comm->nranks) {
    int rank = task->known[which];
    if (rank != comm->rank && matters(task, rank) && !nh_reached(comm, rank, which, comm->pieces + pieces)) return rank;
    task->known[which]++;
  }
  return -1;
}

static void fill(nh_task *task)
{
  ncclComm_t comm = task->comm;
  size_t size = nh_type_size(task->type), length = piece_length(task, task->filled) * size;
  char *slot = nh_slot(comm->head, comm->nranks, comm->rank, comm->pieces + task->filled);
  const char *from = (const char *)task->send + (size_t)task->filled * task->piece_count * size;
  if (!is_parts(task->op)) memcpy(slot, from, length);
  else
    for (int rank = 0; rank < comm->nranks; rank++)
      if (rank != comm->rank) memcpy(slot + (size_t)rank * length, from + (size_t)rank * task->count * size, length);
  task->known[NH_DRAINED] = 0;
  nh_advance(comm, NH_FILLED, comm->pieces + ++task->filled);
}

/* Part `rank` of a piece of an all-reduce. */
static void part(const nh_task *task, uint64_t piece, int rank, size_t *first, size_t *length)
{
  size_t all = piece_length(task, piece), n = (size_t)task->comm->nranks;
  *first = all * (size_t)rank / n;
  *length = all * ((size_t)rank + 1) / n - *first;
}

static void sources_of(nh_task *task, uint64_t piece, size_t slot_offset, const char *own, const char **sources)
{
  ncclComm_t comm = task->comm;
  for (int rank = 0; rank < comm->nranks; rank++)
    sources[rank] = rank == comm->rank ? own : nh_slot(comm->head, comm->nranks, rank, comm->pieces + piece) + slot_offset;
}

static void reduce(nh_task *task)
{
  ncclComm_t comm = task->comm;
  size_t size = nh_type_size(task->type), first, length;
  const char *sources[NH_MAX_RANKS];
  uint64_t scalars[NH_MAX_RANKS];
  part(task, task->reduced, comm->rank, &first, &length);
  size_t at = ((size_t)task->reduced * task->piece_count + first) * size;
  sources_of(task, task->reduced, first * size, (const char *)task->send + at, sources);
  char *result = nh_slot(comm->head, comm->nranks, comm->rank, comm->pieces + task->reduced) + first * size;
  nh_fold_both(result, (char *)task->recv + at, sources, comm->nranks, length, task->type, task->redop, nh_scalars(task, scalars));
  task->known[NH_FILLED] = 0;
  nh_advance(comm, NH_REDUCED, comm->pieces + ++task->reduced);
}

static void take_all_reduce(nh_task *task)
{
  ncclComm_t comm = task->comm;
  size_t size = nh_type_size(task->type), first, length;
  char *target = (char *)task->recv + (size_t)task->drained * task->piece_count * size;
  for (int rank = 0; rank < comm->nranks; rank++) {
    if (rank == comm->rank) continue;
    part(task, task->drained, rank, &first, &length);
    memcpy(target + first * size, nh_slot(comm->head, comm->nranks, rank, comm->pieces + task->drained) + first * size, length * size);
  }
}

static void take(nh_task *task)
{
  ncclComm_t comm = task->comm;
  size_t size = nh_type_size(task->type), count = piece_length(task, task->drained), bytes = task->count * size;
  size_t at = (size_t)task->drained * task->piece_count * size, mine = is_parts(task->op) ? (size_t)comm->rank * count * size : 0;
  char *target = (char *)task->recv + at;
  const char *sources[NH_MAX_RANKS];
  uint64_t scalars[NH_MAX_RANKS];
  sources_of(task, task->drained, mine, (const char *)task->send + at + (task->op == NH_REDUCE_SCATTER ? (size_t)comm->rank * bytes : 0), sources);
  if (task->op == NH_REDUCE || task->op == NH_REDUCE_SCATTER) nh_fold(target, sources, comm->nranks, count, task->type, task->redop, nh_scalars(task, scalars));
  else if (task->op == NH_BROADCAST || task->op == NH_SCATTER) nh_copy(target, sources[task->root], count * size, beyond(task));
  else
    for (int rank = 0; rank < comm->nranks; rank++)
      if (rank != comm->rank) nh_copy(target + (size_t)rank * bytes, sources[rank], count * size, beyond(task));
}

static bool try_drain(nh_task *task, int *behind)
{
  bool fold = task->op == NH_ALL_REDUCE;
  if (task->drained == task->pieces) return false;
  *behind = first_behind(task, fold ? NH_REDUCED : NH_FILLED, task->drained + 1, gives);
  if (*behind >= 0 || (fold && task->reduced <= task->drained)) return false;
  if (fold) take_all_reduce(task);
  else take(task);
  task->known[fold ? NH_REDUCED : NH_FILLED] = 0;
  nh_advance(task->comm, NH_DRAINED, task->comm->pieces + ++task->drained);
  return true;
}

static bool try_reduce(nh_task *task, int *behind)
{
  if (task->reduced == task->pieces) return false;
  *behind = first_behind(task, NH_FILLED, task->reduced + 1, gives);
  if (*behind >= 0 || task->filled <= task->reduced) return false;
  reduce(task);
  return true;
}

static bool try_fill(nh_task *task, int *behind)
{
  if (task->filled == task->pieces) return false;
  if (task->filled >= NH_SLOTS) {
    if (task->op == NH_ALL_REDUCE && task->drained + NH_SLOTS <= task->filled) return false;
    *behind = first_behind(task, NH_DRAINED, task->filled + 1 - NH_SLOTS, takes);
    if (*behind >= 0) return false;
  }
  fill(task);
  return true;
}

static void level(nh_task *task)
{
  ncclComm_t comm = task->comm;
  comm->pieces += task->pieces;
  for (nh_counter which = 0; which < NH_COUNTERS; which++) nh_advance(comm, which, comm->pieces);
}

ncclResult_t nh_staged_step(nh_task *task)
{
  int drain = -1, fold = -1, fill_ = -1;
  while (try_drain(task, &drain) || try_reduce(task, &fold) || try_fill(task, &fill_)) {
    task->moved = true;
    drain = fold = fill_ = -1;
  }
  if (task->drained == task->pieces && task->filled == task->pieces && task->reduced == task->pieces) {
    level(task);
    return ncclSuccess;
  }
  int one = drain >= 0 ? drain : fold >= 0 ? fold : fill_;
  bool same = (drain < 0 || drain == one) && (fold < 0 || fold == one) && (fill_ < 0 || fill_ == one) && one >= 0;
  return nh_wait_for(task, same ? NH_ON_RANK + one : NH_ON_ANY);
}

/* What the next piece needs of this rank and has not got: which counter has to reach how much. */
bool nh_staged_missing(nh_task *task, int rank, nh_counter *which, uint64_t *pieces)
{
  ncclComm_t comm = task->comm;
  if (rank == comm->rank) return false;
  *which = task->op == NH_ALL_REDUCE ? NH_REDUCED : NH_FILLED;
  *pieces = comm->pieces + task->drained + 1;
  if (task->drained < task->pieces && gives(task, rank) && !nh_reached(comm, rank, *which, *pieces)) return true;
  *which = NH_DRAINED;
  *pieces = comm->pieces + task->filled + 1 - NH_SLOTS;
  return task->filled < task->pieces && task->filled >= NH_SLOTS && takes(task, rank) && !nh_reached(comm, rank, *which, *pieces);
}
