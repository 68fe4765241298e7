/* Do the ranks' calls fit together? One comparison for all, and the table that shows where they do not. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "host.h"

static bool reduces(int op)
{
  return op == NH_ALL_REDUCE || op == NH_REDUCE || op == NH_REDUCE_SCATTER;
}

static bool has_root(int op)
{
  return op == NH_BROADCAST || op == NH_REDUCE || op == NH_GATHER || op == NH_SCATTER;
}

void nh_describe(nh_task *task, nh_call *call)
{
  call->seq = task->seq;
  call->count = task->count;
  call->op = (int16_t)task->op;
  call->type = (int16_t)task->type;
  call->redop = reduces(task->op) ? task->redop : -1;
  call->root = has_root(task->op) ? task->root : -1;
  call->unused = 0;
}

static bool same(const nh_call *a, const nh_call *b)
{
  return a->seq == b->seq && a->count == b->count && a->op == b->op && a->type == b->type && a->redop == b->redop && a->root == b->root;
}

static const nh_call *call_of(ncclComm_t comm, int rank, uint64_t round)
{
  return &nh_rank_at(comm->head, rank)->call[round & 1];
}

bool nh_calls_match(ncclComm_t comm, uint64_t round)
{
  const nh_call *first = call_of(comm, 0, round);
  for (int rank = 1; rank < comm->nranks; rank++)
    if (!same(first, call_of(comm, rank, round))) return false;
  return true;
}

/* The call that most ranks made: what the others are marked against. */
static const nh_call *usual(ncclComm_t comm, uint64_t round)
{
  const nh_call *best = NULL;
  int most = 0;
  for (int rank = 0; rank < comm->nranks; rank++) {
    int votes = 0;
    for (int other = 0; other < comm->nranks; other++) votes += same(call_of(comm, rank, round), call_of(comm, other, round));
    if (votes > most) {
      most = votes;
      best = call_of(comm, rank, round);
    }
  }
  return best;
}

static void cell(char *text, size_t room, bool differs, int width, const char *value)
{
  snprintf(text, room, "  %*s%s", width, value, differs ? "*" : " ");
}

static size_t row(char *text, size_t room, int rank, int pid, const nh_call *call, const nh_call *model)
{
  char cells[6][48], number[6][24];
  snprintf(number[0], sizeof number[0], "%lu", (unsigned long)call->seq + 1);
  snprintf(number[1], sizeof number[1], "%lu", (unsigned long)call->count);
  snprintf(number[2], sizeof number[2], call->root < 0 ? "-" : "%d", call->root);
  cell(cells[0], sizeof cells[0], call->seq != model->seq, 8, number[0]);
  cell(cells[1], sizeof cells[1], call->op != model->op, 17, nh_op_name(call->op));
  cell(cells[2], sizeof cells[2], call->count != model->count, 12, number[1]);
  cell(cells[3], sizeof cells[3], call->type != model->type, 10, nh_type_name(call->type));
  cell(cells[4], sizeof cells[4], call->redop != model->redop, 4, nh_redop_name(call->redop));
  cell(cells[5], sizeof cells[5], call->root != model->root, 4, number[2]);
  int wrote = snprintf(text, room, "\n%6d %8d%s%s%s%s%s%s", rank, pid, cells[0], cells[1], cells[2], cells[3], cells[4], cells[5]);
  return wrote < 0 ? 0 : (size_t)wrote < room ? (size_t)wrote : room;
}

static const char *const HEADING = "\n  rank      pid      call           operation         count       type    op   root";

static bool same_number(ncclComm_t comm, uint64_t round)
{
  for (int rank = 1; rank < comm->nranks; rank++)
    if (call_of(comm, rank, round)->seq != call_of(comm, 0, round)->seq) return false;
  return true;
}

ncclResult_t nh_mismatch(nh_task *task)
{
  ncclComm_t comm = task->comm;
  char table[24576];
  size_t used = 0;
  const nh_call *model = usual(comm, task->round);
  for (int rank = 0; rank < comm->nranks && used + 128 < sizeof table; rank++) {
    int pid;
    nh_rank_life(comm->head, rank, &pid, NULL);
    used += row(table + used, sizeof table - used, rank, pid, call_of(comm, rank, task->round), model);
  }
  nh_error(ncclInvalidUsage, nickelKindMismatch,
           "%s on rank %d of %d: the ranks' calls do not fit together (* marks what differs from most); nothing was written%s%s%s", nh_op_name(task->op),
           comm->rank, comm->nranks, HEADING, table,
           same_number(comm, task->round) ? "" : "\nthe ranks have made different numbers of calls, since one passed count 0 where others did not; the communicator has failed");
  int astray = -1;
  for (int rank = 0; rank < comm->nranks; rank++) {
    if (!same(model, call_of(comm, rank, task->round))) nh_error_rank(comm, rank);
    if (call_of(comm, rank, task->round)->seq != call_of(comm, 0, task->round)->seq) astray = rank;
  }
  if (astray >= 0) { /* the ranks count differently for ever, all of them see that */
    nh_fail(comm, (nh_failure){nickelKindMismatch, ncclInvalidUsage, astray, comm->rank});
    nh_comm_failed(comm, ncclInvalidUsage);
  }
  return ncclInvalidUsage;
}

bool nh_pair_matches(const nh_call *send, const nh_call *recv)
{
  return send->count == recv->count && send->type == recv->type;
}

ncclResult_t nh_pair_mismatch(nh_task *task, const nh_call *send, const nh_call *recv)
{
  ncclComm_t comm = task->comm;
  int from = task->op == NH_SEND ? comm->rank : task->root, to = task->op == NH_SEND ? task->root : comm->rank, from_pid, to_pid;
  char table[512];
  nh_call model = *recv;
  model.op = send->op;
  model.seq = send->seq;
  nh_rank_life(comm->head, from, &from_pid, NULL);
  nh_rank_life(comm->head, to, &to_pid, NULL);
  size_t used = row(table, sizeof table, from, from_pid, send, &model);
  model.op = recv->op;
  model.seq = recv->seq;
  row(table + used, sizeof table - used, to, to_pid, recv, &model);
  nh_error(ncclInvalidUsage, nickelKindMismatch,
           "%s on rank %d of %d: send and receive do not fit together (* marks what differs); nothing was received%s%s", nh_op_name(task->op), comm->rank,
           comm->nranks, HEADING, table);
  nh_error_rank(comm, task->root);
  return ncclInvalidUsage;
}
