/* Send and receive as tasks: both sides post, one verdict per message, then the shortest way for the data. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A send is finished when its receiver has matched it and the data has left the buffer; nothing is sent ahead, so a program that relies on
 * buffering shows it here. Paths: inline (the data is in a slot before the post), direct (the receiver copies from the sender's buffer, the
 * sender into the receiver's, or each one half), staged (pieces through the pair's slots). The inline slot goes by parity of the message; a staged sender
 * waits until all is drained, so the slots are free again for the next message.
 */
#include <string.h>

#include "host.h"

static nh_pair *pair_of(const nh_task *task)
{
  ncclComm_t comm = task->comm;
  bool sender = task->op == NH_SEND;
  return nh_pair_at(comm->head, comm->nranks, sender ? comm->rank : task->root, sender ? task->root : comm->rank);
}

static char *slot_of(const nh_task *task, uint64_t piece)
{
  ncclComm_t comm = task->comm;
  bool sender = task->op == NH_SEND;
  return nh_pair_slot(comm->head, comm->nranks, sender ? comm->rank : task->root, sender ? task->root : comm->rank, piece);
}

static size_t bytes_of(const nh_task *task)
{
  return task->count * nh_type_size(task->type);
}

static ncclResult_t reserve(const nh_task *task)
{
  ncclComm_t comm = task->comm;
  bool sender = task->op == NH_SEND;
  bool *paired = &comm->paired[2 * task->root + (sender ? 0 : 1)];
  if (*paired) return ncclSuccess;
  ncclResult_t result =
    nh_segment_reserve_pair(comm->segment, comm->nranks, sender ? comm->rank : task->root, sender ? task->root : comm->rank);
  *paired = result == ncclSuccess;
  return result;
}

static ncclResult_t post(nh_task *task)
{
  ncclComm_t comm = task->comm;
  bool sender = task->op == NH_SEND;
  ncclResult_t result = reserve(task);
  if (result != ncclSuccess) {
    nh_fail(comm, (nh_failure){nh_error_kind(), result, comm->rank, comm->rank});
    nh_comm_failed(comm, result);
    return result;
  }
  task->round = sender ? ++comm->sent[task->root] : ++comm->received[task->root];
  task->seq = task->round - 1;
  nh_pair *pair = pair_of(task);
  nh_call *call = sender ? &pair->send[task->round & 1] : &pair->recv[task->round & 1];
  nh_describe(task, call);
  if (bytes_of(task) > NH_PAIR_SLOT) nh_arena_place(sender ? task->send : task->recv, bytes_of(task), sender ? &call->send : &call->recv);
  else if (sender && task->count) memcpy(slot_of(task, task->round & 1), task->send, bytes_of(task));
  nh_pair_post(comm, pair, sender, task->round);
  task->phase = NH_POSTED;
  return ncclInProgress;
}

/* ncclSuccess: go. */
static ncclResult_t verdict_of(nh_task *task)
{
  nh_pair *pair = pair_of(task);
  const nh_call *send = &pair->send[task->round & 1], *recv = &pair->recv[task->round & 1];
  nh_verdict verdict = nh_pair_verdict(pair, task->round);
  if (verdict == NH_UNDECIDED) {
    if (!nh_pair_posted(pair, task->op != NH_SEND, task->round)) return nh_wait_for(task, NH_ON_RANK + task->root);
    verdict = nh_pair_decide(task->comm, pair, task->round, nh_pair_matches(send, recv) ? NH_GO : NH_MISMATCH);
  }
  task->moved = true;
  if (verdict == NH_MISMATCH) return nh_pair_mismatch(task, send, recv);
  return verdict == NH_FAILED ? nh_round_failed(task) : ncclSuccess;
}

/* The receiver copies the first so many bytes out of the sender's buffer, the sender the others into the receiver's: both see the same. */
static size_t receivers_share(const nh_task *task)
{
  ncclComm_t comm = task->comm;
  const nh_pair *pair = pair_of(task);
  bool can_pull = comm->one_process || pair->send[task->round & 1].send.arena, can_push = comm->one_process || pair->recv[task->round & 1].recv.arena;
  if (can_pull && can_push) return bytes_of(task) / 2 / NH_PAGE * NH_PAGE;
  return can_pull ? bytes_of(task) : 0;
}

static bool has_share(const nh_task *task, bool sender)
{
  return sender ? receivers_share(task) < bytes_of(task) : receivers_share(task) > 0;
}

static ncclResult_t copy_share(nh_task *task)
{
  char *other;
  bool sender = task->op == NH_SEND;
  const nh_pair *pair = pair_of(task);
  const nh_place *place = sender ? &pair->recv[task->round & 1].recv : &pair->send[task->round & 1].send;
  size_t bytes = bytes_of(task), first = receivers_share(task);
  ncclResult_t result = nh_arena_reach(task->comm, task->root, place, bytes, &other, nh_op_name(task->op));
  if (result != ncclSuccess) return result;
  bool beyond = nh_beyond_caches(bytes, 2);
  if (sender) nh_copy(other + first, (const char *)task->send + first, bytes - first, beyond);
  else nh_copy(task->recv, other, first, beyond);
  return ncclSuccess;
}

/* Who has a share copies it and says so; then both wait for the other's, whatever came of the own one. */
static ncclResult_t start_direct(nh_task *task)
{
  ncclComm_t comm = task->comm;
  bool sender = task->op == NH_SEND;
  task->phase = NH_DIRECT_END;
  if (!has_share(task, sender)) return ncclInProgress;
  ncclResult_t result = copy_share(task);
  if (result != ncclSuccess) {
    nh_fail(comm, (nh_failure){nh_error_kind(), result, comm->rank, comm->rank});
    nh_comm_failed(comm, result);
  }
  nh_pair_copied(comm, pair_of(task), sender, task->round, result != ncclSuccess);
  task->moved = true;
  return ncclInProgress;
}

static bool direct_is_over(const nh_task *task)
{
  bool sender = task->op == NH_SEND;
  return !has_share(task, !sender) || nh_pair_has_copied(pair_of(task), !sender, task->round);
}

static ncclResult_t after_go(nh_task *task)
{
  ncclComm_t comm = task->comm;
  nh_pair *pair = pair_of(task);
  task->path = bytes_of(task) <= NH_PAIR_SLOT ? "inline" : "direct";
  if (bytes_of(task) <= NH_PAIR_SLOT) {
    if (task->op == NH_RECV && task->count) memcpy(task->recv, slot_of(task, task->round & 1), bytes_of(task));
    return ncclSuccess;
  }
  if (comm->one_process || pair->send[task->round & 1].send.arena || pair->recv[task->round & 1].recv.arena) return start_direct(task);
  task->pieces = (bytes_of(task) + NH_PAIR_SLOT - 1) / NH_PAIR_SLOT;
  task->filled = task->drained = 0;
  task->phase = NH_STAGED;
  task->path = "staged";
  return ncclInProgress;
}

static size_t piece_length(const nh_task *task, uint64_t piece)
{
  size_t left = bytes_of(task) - (size_t)piece * NH_PAIR_SLOT;
  return left < NH_PAIR_SLOT ? left : NH_PAIR_SLOT;
}

static ncclResult_t staged_send(nh_task *task)
{
  ncclComm_t comm = task->comm;
  nh_pair *pair = pair_of(task);
  uint64_t *base = &comm->sent_pieces[task->root];
  task->drained = nh_pair_pieces(pair, false) - *base;
  while (task->filled < task->pieces && task->filled < task->drained + NH_PAIR_SLOTS) {
    memcpy(slot_of(task, *base + task->filled), (const char *)task->send + (size_t)task->filled * NH_PAIR_SLOT, piece_length(task, task->filled));
    nh_pair_advance(comm, pair, true, *base + ++task->filled);
    task->moved = true;
  }
  if (task->drained < task->pieces) return nh_wait_for(task, NH_ON_RANK + task->root);
  *base += task->pieces;
  return ncclSuccess;
}

static ncclResult_t staged_recv(nh_task *task)
{
  ncclComm_t comm = task->comm;
  nh_pair *pair = pair_of(task);
  uint64_t *base = &comm->received_pieces[task->root];
  task->filled = nh_pair_pieces(pair, true) - *base;
  while (task->drained < task->filled) {
    nh_copy((char *)task->recv + (size_t)task->drained * NH_PAIR_SLOT, slot_of(task, *base + task->drained), piece_length(task, task->drained),
            nh_beyond_caches(bytes_of(task), 2));
    nh_pair_advance(comm, pair, false, *base + ++task->drained);
    task->moved = true;
  }
  if (task->drained < task->pieces) return nh_wait_for(task, NH_ON_RANK + task->root);
  *base += task->pieces;
  return ncclSuccess;
}

static ncclResult_t step(nh_task *task)
{
  ncclResult_t result = ncclInProgress;
  if (task->phase == NH_START) {
    task->moved = true;
    if ((result = post(task)) != ncclInProgress) return result;
  }
  if (task->phase == NH_POSTED) {
    if ((result = verdict_of(task)) != ncclSuccess) return result;
    if ((result = after_go(task)) != ncclInProgress) return result;
  }
  if (task->phase == NH_DIRECT_END) {
    if (!direct_is_over(task)) return nh_wait_for(task, NH_ON_RANK + task->root);
    if (nh_comm_code(task->comm) != ncclSuccess) return nh_recall_error(task->comm);
    return nh_pair_is_spoiled(pair_of(task), task->round) ? nh_round_failed(task) : ncclSuccess;
  }
  return task->op == NH_SEND ? staged_send(task) : staged_recv(task);
}

static bool missing(nh_task *task, int rank)
{
  if (rank != task->root || task->phase == NH_START) return false;
  nh_pair *pair = pair_of(task);
  if (task->phase == NH_POSTED) return !nh_pair_posted(pair, task->op != NH_SEND, task->round);
  if (task->phase == NH_DIRECT_END) return !direct_is_over(task);
  if (task->op == NH_SEND) return nh_pair_pieces(pair, false) < task->comm->sent_pieces[rank] + task->pieces;
  return nh_pair_pieces(pair, true) < task->comm->received_pieces[rank] + task->pieces;
}

static nh_verdict give_up(nh_task *task)
{
  if (task->phase != NH_POSTED) return NH_FAILED;
  return nh_pair_decide(task->comm, pair_of(task), task->round, NH_FAILED);
}

void nh_p2p_prepare(nh_task *task)
{
  task->step = step;
  task->missing = missing;
  task->give_up = give_up;
  task->result = ncclInProgress;
}

/* A rank's send to itself and the receive that goes with it, both in one group. */
ncclResult_t nh_copy_to_self(nh_task *send, nh_task *recv)
{
  nh_call from, to;
  nh_describe(send, &from);
  nh_describe(recv, &to);
  if (!nh_pair_matches(&from, &to)) return nh_pair_mismatch(send, &from, &to);
  if (send->count && send->send != recv->recv) memmove(recv->recv, send->send, bytes_of(send));
  send->result = recv->result = ncclSuccess;
  return ncclSuccess;
}
