/* Windows: memory of all ranks that each can write to, and signals that say what is there. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registering is a round in which the ranks tell each other where their memory is; then each maps all of it; a second round says that all have,
 * since whoever returns may free its memory. It works on ncclMemAlloc memory
 * (any memory, with ranks as threads of one process); elsewhere it succeeds without a window, as NCCL does where it cannot make one. A put
 * writes at once; the signal after it is a counter per pair of ranks, index and direction, which the receiver waits for and counts down.
 */
#include <stdlib.h>
#include <string.h>

#include "host.h"

typedef struct { nh_place place; uint64_t size, address; } nh_told;

typedef struct nh_window nh_window;
struct nh_window {
  nh_window *next;              /* of the same communicator, which frees it in the end */
  void *own;
  struct { char *base; uint64_t size; } rank[];
};

typedef struct {
  ncclWindow_t *out;
  nh_window *window;
  ncclResult_t mapped;          /* what came of this rank's mapping; told in the second round */
  nh_record *why;               /* and its text; owned */
  nh_told mine;
  nh_told all[];
} nh_registering;

static void end(nh_task *task)
{
  nh_registering *more = task->more;
  if (task->result != ncclSuccess) {
    free(more->window);
    *more->out = NULL;
  }
  free(more->why);
  free(more);
}

static bool reachable(const nh_task *task, const nh_registering *more)
{
  ncclComm_t comm = task->comm;
  for (int rank = 0; rank < comm->nranks && !comm->one_process; rank++)
    if (!more->all[rank].place.arena) return false;
  return true;
}

static ncclResult_t finish(nh_task *task)
{
  ncclComm_t comm = task->comm;
  nh_registering *more = task->more;
  const ncclResult_t *told = (const ncclResult_t *)(void *)more->all;
  for (int rank = 0; rank < comm->nranks; rank++)
    if (told[rank] != ncclSuccess && rank != comm->rank)
      return nh_error(told[rank], nickelKindNone, "ncclCommWindowRegister on rank %d of %d: rank %d could not map the windows (%s)", comm->rank, comm->nranks, rank,
                      nh_result_text(told[rank]));
  if (more->mapped != ncclSuccess) return nh_error_told(more->mapped, more->why);
  more->window->next = comm->windows;
  comm->windows = more->window;
  *more->out = (ncclWindow_t)(void *)more->window;
  return ncclSuccess;
}

static ncclResult_t map_peers(nh_task *task)
{
  ncclComm_t comm = task->comm;
  nh_registering *more = task->more;
  nh_window *window = more->window;
  for (int rank = 0; rank < comm->nranks; rank++) {
    window->rank[rank].size = more->all[rank].size;
    if (rank == comm->rank) window->rank[rank].base = window->own;
    else {
      ncclResult_t result = nh_arena_reach(comm, rank, &more->all[rank].place, more->all[rank].size, &window->rank[rank].base, "ncclCommWindowRegister");
      if (result != ncclSuccess) return result;
    }
  }
  return ncclSuccess;
}

static ncclResult_t map_all(nh_task *task)
{
  nh_registering *more = task->more;
  if (!reachable(task, more)) {
    free(more->window);
    more->window = NULL;
    *more->out = NULL;
    return ncclSuccess;
  }
  more->mapped = map_peers(task);
  if (more->mapped != ncclSuccess) more->why = nh_error_keep();
  task->send = &more->mapped;
  task->count = sizeof more->mapped;
  task->phase = NH_START;
  task->then = finish;
  nh_collective_prepare(task);
  return ncclInProgress;
}

ncclResult_t nh_window_register(ncclComm_t comm, void *buffer, size_t size, ncclWindow_t *out)
{
  size_t n = (size_t)comm->nranks;
  nh_registering *more = calloc(1, sizeof *more + n * sizeof more->all[0]);
  nh_window *window = calloc(1, sizeof *window + n * sizeof window->rank[0]);
  if (!more || !window) {
    free(more);
    free(window);
    return nh_error(ncclSystemError, nickelKindMemory, "no memory for a window");
  }
  window->own = buffer;
  more->out = out;
  more->window = window;
  nh_arena_place(buffer, size, &more->mine.place);
  more->mine.size = size;
  nh_task task = {.comm = comm, .serial = comm->serial, .op = NH_WINDOW, .send = &more->mine, .recv = more->all, .count = sizeof more->mine, .type = ncclInt8,
                  .then = map_all, .end = end, .more = more};
  nh_collective_prepare(&task);
  return nh_submit(&task);
}

static nh_window **find(ncclComm_t comm, ncclWindow_t handle)
{
  nh_window **at = &comm->windows;
  while (*at && (void *)*at != (void *)handle) at = &(*at)->next;
  return at;
}

ncclResult_t nh_window_deregister(ncclComm_t comm, ncclWindow_t handle)
{
  nh_window **at = find(comm, handle), *window = *at;
  if (!window)
    return nh_error(ncclInvalidArgument, nickelKindNone, "ncclCommWindowDeregister: %p is not a window of this communicator", (void *)handle);
  *at = window->next;
  free(window);
  return ncclSuccess;
}

/* NULL: not a window of this communicator. */
void *nh_window_pointer(ncclComm_t comm, ncclWindow_t handle)
{
  nh_window *window = *find(comm, handle);
  return window ? window->own : NULL;
}

void nh_windows_free(ncclComm_t comm)
{
  while (comm->windows) {
    nh_window *window = comm->windows;
    comm->windows = window->next;
    free(window);
  }
}


/* ---- one-sided ---- */

static ncclResult_t reserve(ncclComm_t comm, int from, int to)
{
  int peer = from == comm->rank ? to : from;
  bool *paired = &comm->paired[2 * peer + (from == comm->rank ? 0 : 1)];
  if (*paired) return ncclSuccess;
  ncclResult_t result = nh_segment_reserve_pair(comm->segment, comm->nranks, from, to);
  *paired = result == ncclSuccess;
  return result;
}

/* root: the peer; recv: where to; redop: the signal's index, below 0: none. */
static ncclResult_t put_step(nh_task *task)
{
  ncclComm_t comm = task->comm;
  task->moved = true;
  task->seq = comm->onesided++;
  ncclResult_t result = reserve(comm, comm->rank, task->root);
  if (result != ncclSuccess) return result;
  if (task->count) memcpy(task->recv, task->send, task->count);
  nh_signal(comm, nh_pair_at(comm->head, comm->nranks, comm->rank, task->root), task->redop);
  return ncclSuccess;
}

static bool nobody(nh_task *task, int rank)
{
  (void)task;
  (void)rank;
  return false;
}

ncclResult_t nh_put(ncclComm_t comm, const void *local, size_t bytes, int peer, ncclWindow_t handle, size_t offset, int signal)
{
  nh_window *window = *find(comm, handle);
  char *to = NULL;
  if (bytes) {
    if (!window)
      return nh_error(ncclInvalidArgument, nickelKindNone, "ncclPutSignal: %p is not a window of this communicator", (void *)handle);
    if (offset > window->rank[peer].size || bytes > window->rank[peer].size - offset)
      return nh_error(ncclInvalidArgument, nickelKindNone, "ncclPutSignal: %zu bytes at offset %zu do not fit into the window of rank %d, %zu bytes", bytes, offset, peer,
                      (size_t)window->rank[peer].size);
    to = window->rank[peer].base + offset;
  }
  nh_task task = {.comm = comm, .serial = comm->serial, .op = NH_PUT, .step = put_step, .missing = nobody, .result = ncclInProgress, .send = local, .recv = to,
                  .count = bytes, .type = ncclInt8, .root = peer, .redop = signal};
  return nh_submit(&task);
}

/* Index and number of signals in one word, for whoever looks whether the wait is over. */
uint64_t nh_signal_number(int index, uint64_t signals)
{
  return (uint64_t)index << NH_SIGNAL_BITS | (signals & ((UINT64_C(1) << NH_SIGNAL_BITS) - 1));
}

/* root: the peer; redop: the signal's index; count: how many. */
static ncclResult_t wait_step(nh_task *task)
{
  ncclComm_t comm = task->comm;
  uint64_t *taken = &comm->waited[task->root * NH_SIGNALS + task->redop];
  if (task->phase == NH_START) {
    task->moved = true;
    task->phase = NH_POSTED;
    task->seq = comm->onesided++;
    task->round = nh_signal_number(task->redop, *taken + task->count);
    ncclResult_t result = reserve(comm, task->root, comm->rank);
    if (result != ncclSuccess) return result;
  }
  if (nh_signals(nh_pair_at(comm->head, comm->nranks, task->root, comm->rank), task->redop) < *taken + task->count)
    return nh_wait_for(task, NH_ON_RANK + task->root);
  *taken += task->count;
  task->moved = true;
  return ncclSuccess;
}

static bool not_signalled(nh_task *task, int rank)
{
  ncclComm_t comm = task->comm;
  if (rank != task->root || task->phase != NH_POSTED) return false;
  return nh_signals(nh_pair_at(comm->head, comm->nranks, rank, comm->rank), task->redop) < comm->waited[rank * NH_SIGNALS + task->redop] + task->count;
}

/* One task per description, in one group. */
ncclResult_t nh_wait_signals(ncclComm_t comm, int n, const ncclWaitSignalDesc_t *descriptions)
{
  nh_group_start();
  for (int i = 0; i < n; i++) {
    nh_task task = {.comm = comm, .serial = comm->serial, .op = NH_WAIT, .step = wait_step, .missing = not_signalled, .result = ncclInProgress,
                    .count = (size_t)descriptions[i].opCnt, .type = ncclInt8, .root = descriptions[i].peer, .redop = descriptions[i].sigIdx};
    nh_group_note(nh_submit(&task));
  }
  return nh_group_end();
}
