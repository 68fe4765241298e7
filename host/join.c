/* Joining: claim a place, reserve its memory, arrive, wait until all have arrived. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "host.h"

/* Polls before the first yield, which polls as well and gives way; a poll takes about 40 ns. With more ranks than cores 300 of them (12 us) are
   spent only on a rank that runs on another core. 10 would make an all-reduce of 4 ranks on 2 cores a tenth faster, but a message of 8 bytes five
   times as slow: who gives way once has to wait for its turn. */
enum { SPINS = 30, SPINS_CROWDED = 300 };

static ncclResult_t declare_failed(nh_task *task, int kind, ncclResult_t code)
{
  ncclComm_t comm = task->comm;
  nh_state_set(comm->head, nh_failure_pack((nh_failure){kind, code, comm->rank, comm->rank}));
  nh_wake(comm, NH_ON_ANY);
  return code;
}

static ncclResult_t place_taken(nh_task *task)
{
  ncclComm_t comm = task->comm;
  int pid;
  uint64_t state = nh_state(comm->head);
  nh_rank_life(comm->head, comm->rank, &pid, NULL);
  if (state != NH_OPEN)
    return nh_error(ncclInvalidUsage, nickelKindIdReused,
                    "rank %d of %d: this unique id has been used, a communicator was made from it or failed to be; make a new id for every communicator",
                    comm->rank, comm->nranks);
  declare_failed(task, nickelKindDuplicateRank, ncclInvalidUsage);
  return nh_error(ncclInvalidUsage, nickelKindDuplicateRank,
                  "two callers say that they are rank %d of %d (pid %d and pid %d): give every process or thread its own rank", comm->rank, comm->nranks,
                  pid, getpid());
}

/* What those who wait in init are told. Of a communicator made from another the ranks are named as there. */
ncclResult_t nh_join_failed(nh_task *task, nh_failure failure)
{
  ncclComm_t comm = task->comm;
  ncclResult_t lost = task->lost && failure.kind == nickelKindRemote ? task->lost(task, failure.rank) : ncclSuccess;
  if (lost != ncclSuccess) return lost;
  int other, set = nh_join_sizes(comm->head, &other), pid;
  nh_rank_life(comm->head, failure.rank, &pid, NULL);
  if (failure.kind == nickelKindWorldSize)
    return nh_error(ncclInvalidUsage, failure.kind, "rank %d was told that there are %d ranks, another was told %d: pass the same nranks everywhere, and make a new id",
                    comm->rank, set, other);
  if (failure.kind == nickelKindDuplicateRank)
    return nh_error(ncclInvalidUsage, failure.kind, "rank %d of %d: two callers said that they are rank %d: give every process or thread its own rank", comm->rank,
                    comm->nranks, failure.rank);
  return nh_error_failure(comm, failure, "ncclCommInitRank");
}

static ncclResult_t join(nh_task *task)
{
  ncclComm_t comm = task->comm;
  ncclResult_t result = nh_segment_open(task->id, comm->nranks, comm->rank, &comm->segment);
  if (result != ncclSuccess) return result;
  nh_header *head = comm->segment->head;
  nh_lock();
  comm->head = head;
  nh_unlock();
  if (!nh_join_claim(head, comm->rank, comm->segment->fd)) {
    result = place_taken(task);
    nh_comm_detach(comm);
    return result;
  }
  nh_failure failure = nh_failure_unpack(nh_state(head));
  if (failure.kind) return nh_join_failed(task, failure);
  result = nh_segment_reserve_rank(comm->segment, comm->nranks, comm->rank);
  if (result != ncclSuccess) return declare_failed(task, nickelKindMemory, result);
  nh_rank_at(head, comm->rank)->device = comm->device;
  nh_rank_at(head, comm->rank)->version = NCCL_VERSION_CODE;
  nh_rank_at(head, comm->rank)->start = nh_start_time(getpid());
  nh_tell_cores(nh_rank_at(head, comm->rank));
  if (nh_join_arrive(head, comm->nranks, comm->rank, comm->segment->fd)) nh_wake(comm, NH_ON_ANY);
  task->phase = NH_POSTED;
  return ncclInProgress;
}

static void complete(ncclComm_t comm)
{
  comm->one_process = true;
  for (int rank = 0; rank < comm->nranks; rank++) {
    int pid;
    nh_rank_life(comm->head, rank, &pid, NULL);
    comm->one_process = comm->one_process && pid == getpid();
  }
  int cores = nh_cores(comm);
  bool crowded = comm->nranks > cores;
  comm->spins = crowded ? SPINS_CROWDED : SPINS;
  comm->roomy = !crowded && comm->settings.blocking;
  comm->tight = cores < 2 * comm->nranks;
  nh_lock(); /* for nh_comm_revoke */
  nh_comm_set_condition(comm, NH_READY, true);
  nh_unlock();
}

static ncclResult_t join_step(nh_task *task)
{
  ncclComm_t comm = task->comm;
  if (task->phase == NH_START) {
    task->moved = true;
    ncclResult_t result = join(task);
    if (result != ncclInProgress) return result;
  }
  uint64_t state = nh_state(comm->head);
  if (state == NH_OPEN) return nh_wait_for(task, NH_ON_ANY);
  task->moved = true;
  if (state != NH_COMPLETE) return nh_join_failed(task, nh_failure_unpack(state));
  complete(comm);
  return ncclSuccess;
}

static bool not_joined(nh_task *task, int rank)
{
  return task->phase == NH_POSTED && nh_rank_life(task->comm->head, rank, NULL, NULL) < NH_JOINED;
}

/* The last to arrive completes it; if that one was stopped or killed just before, everybody else can. */
static void all_joined(nh_task *task)
{
  if (task->phase == NH_POSTED) nh_state_set(task->comm->head, NH_COMPLETE);
}

void nh_join_prepare(nh_task *task)
{
  task->op = NH_JOIN;
  task->step = join_step;
  task->missing = not_joined;
  task->nobody_missing = all_joined;
  task->result = ncclInProgress;
}
