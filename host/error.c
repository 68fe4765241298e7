/* What went wrong: the last error of each thread, with its kind and the ranks it is about. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host.h"

enum { TEXT = 32768, NAMED = 1024 };

struct nh_record {
  int kind, named;
  int ranks[NAMED], pids[NAMED];
  char text[TEXT];
};

/* Per thread; ncclGetLastError hands out the text, which therefore lives until the thread's next error. */
static _Thread_local nh_record last, other; /* other: what comes while the last one is held */
static _Thread_local bool held; /* the first error of several stays the thread's; later ones are still their communicators' */

static nh_record *current(void)
{
  return held ? &other : &last;
}

const char *nh_result_text(int code)
{
  static const char *const texts[ncclNumResults] = {
    "no error", "unhandled cuda error", "unhandled system error", "internal error", "invalid argument", "invalid usage",
    "remote process exited or there was a network error", "operation in progress", "operation timed out",
  };
  return code >= 0 && code < ncclNumResults ? texts[code] : "unknown result code";
}

void nh_error_hold(bool hold)
{
  held = hold;
}

void nh_error_prefer(void)
{
  if (held) last = other;
}

nh_record *nh_error_keep(void)
{
  nh_record *kept = malloc(sizeof *kept);
  if (kept) memcpy(kept, current(), sizeof *kept);
  return kept;
}

ncclResult_t nh_error_told(ncclResult_t code, const nh_record *kept)
{
  if (!kept) return nh_error(code, nickelKindNone, "%s", nh_result_text(code));
  memcpy(current(), kept, sizeof *kept);
  return code;
}

ncclResult_t nh_error(ncclResult_t code, int kind, const char *format, ...)
{
  nh_record *record = current();
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(record->text, sizeof record->text, format, arguments);
  va_end(arguments);
  record->kind = kind;
  record->named = 0;
  nh_warn(0, "%s", record->text);
  return code;
}

void nh_error_rank(ncclComm_t comm, int rank)
{
  nh_record *record = current();
  int pid = 0;
  if (record->named == NAMED) return;
  if (comm) nh_rank_life(comm->head, rank, &pid, NULL);
  record->ranks[record->named] = rank;
  record->pids[record->named++] = pid;
}

const char *nh_last_error(void)
{
  return last.text;
}

int nh_last_kind(void)
{
  return last.kind;
}

int nh_error_kind(void)
{
  return current()->kind;
}

int nh_last_ranks(int *ranks, int *pids, int capacity)
{
  for (int i = 0; i < last.named && i < capacity; i++) {
    ranks[i] = last.ranks[i];
    pids[i] = last.pids[i];
  }
  return last.named;
}

/* A deadline of another rank: whom it has named, or without that the one in the failure itself. */
static ncclResult_t too_late(ncclComm_t comm, nh_failure failure, const char *doing)
{
  const nh_header *head = comm->head;
  char names[4096];
  size_t used = 0;
  int n = nh_reason_is_by(comm, failure.by) ? head->nlate : 0;
  for (int i = 0; i < (n ? n : 1) && used + 40 < sizeof names; i++) {
    int pid, rank = n ? head->late[i] : failure.rank;
    nh_rank_life(comm->head, rank, &pid, NULL);
    used += (size_t)snprintf(names + used, sizeof names - used, "%srank %d (pid %d)", i ? ", " : "", rank, pid);
  }
  ncclResult_t code = nh_error((ncclResult_t)failure.code, failure.kind, "%s on rank %d of %d: rank %d gave up waiting for %s at its deadline; the communicator has failed",
                               doing, comm->rank, comm->nranks, failure.by, names);
  for (int i = 0; i < (n ? n : 1); i++) nh_error_rank(comm, n ? head->late[i] : failure.rank);
  return code;
}

/* The text of a failure that some rank has declared for all. */
ncclResult_t nh_error_failure(ncclComm_t comm, nh_failure failure, const char *doing)
{
  int pid = 0;
  nh_life life = nh_rank_life(comm->head, failure.rank, &pid, NULL);
  ncclResult_t code = (ncclResult_t)failure.code;
  if (failure.rank == comm->rank && failure.by == comm->rank) {
    const char *by = failure.kind == nickelKindInterrupted ? "was interrupted" : failure.kind == nickelKindAborted ? "was ended by ncclCommRevoke"
                   : failure.kind == nickelKindRemote && nh_comm_aborted(comm) ? "was ended by ncclCommAbort" : NULL;
    int kind = failure.kind == nickelKindInterrupted ? nickelKindInterrupted : nickelKindAborted;
    if (by) return nh_error(ncclInvalidUsage, kind, "%s on rank %d of %d %s", doing, comm->rank, comm->nranks, by);
  }
  if (failure.kind == nickelKindTimeout) return too_late(comm, failure, doing);
  bool aborted = life == NH_ABORTED || failure.by == failure.rank; /* declared by who aborts, before it has left */
  const char *end = aborted ? "has aborted its communicator" : life == NH_CLOSED ? "has closed its communicator" : "has ended";
  if (failure.kind == nickelKindRemote)
    code = nh_error(code, failure.kind, "%s on rank %d of %d: rank %d (pid %d) %s; the communicator has failed: abort it and make a new one",
                    doing, comm->rank, comm->nranks, failure.rank, pid, end);
  else if (failure.kind == nickelKindMismatch)
    code = nh_error(code, failure.kind,
                    "%s on rank %d of %d: rank %d passed count 0 to this call and went on without waiting, as NCCL does, while other ranks "
                    "passed more; the communicator has failed: pass the same count on every rank",
                    doing, comm->rank, comm->nranks, failure.rank);
  else if (failure.kind == nickelKindAborted)
    code = nh_error(ncclRemoteError, nickelKindRemote, "%s on rank %d of %d: rank %d (pid %d) has revoked the communicator", doing, comm->rank,
                    comm->nranks, failure.rank, pid);
  else if (failure.kind == nickelKindDeadlock)
    code = nh_error(code, failure.kind, "%s on rank %d of %d: ranks of this communicator wait for each other: %s; the communicator has failed", doing,
                    comm->rank, comm->nranks, comm->head->cycle);
  else if (failure.kind == nickelKindInterrupted)
    code = nh_error(ncclRemoteError, nickelKindRemote, "%s on rank %d of %d: rank %d (pid %d) was interrupted in a call; the communicator has failed",
                    doing, comm->rank, comm->nranks, failure.rank, pid);
  else
    code = nh_error(code, failure.kind, "%s on rank %d of %d: rank %d (pid %d) failed (%s); the communicator has failed", doing, comm->rank,
                    comm->nranks, failure.rank, pid, nh_result_text(failure.code));
  nh_error_rank(comm, failure.rank);
  return code;
}

void nh_record_error(ncclComm_t comm)
{
  if (!comm->record) comm->record = malloc(sizeof last);
  if (comm->record) memcpy(comm->record, current(), sizeof last);
}

/* Without memory for the record the code is all that is kept. */
ncclResult_t nh_recall_error(ncclComm_t comm)
{
  ncclResult_t code = nh_comm_code(comm);
  if (code == ncclSuccess) code = nh_comm_async(comm);
  if (comm->record) memcpy(current(), comm->record, sizeof last);
  else nh_error(code, nickelKindNone, "%s", nh_result_text(code));
  return code;
}

const char *nh_recorded_text(ncclComm_t comm)
{
  return comm->record ? comm->record->text : "";
}

void nh_comm_failed(ncclComm_t comm, ncclResult_t code)
{
  if (nh_comm_code(comm) != ncclSuccess) return;
  nh_record_error(comm);
  nh_comm_set_code(comm, code);
}

ncclResult_t nh_error_again(ncclComm_t comm)
{
  const nh_record *was = comm->record;
  int kind = was ? was->kind : nickelKindNone;
  nh_error(nh_comm_code(comm), kind == nickelKindInterrupted ? nickelKindClosed : kind,
           "this communicator failed before, abort it and make a new one; it was: %s", nh_recorded_text(comm));
  for (int i = 0; was && i < was->named; i++) nh_error_rank(comm, was->ranks[i]);
  return nh_comm_code(comm);
}

const char *nh_op_name(int op)
{
  static const char *const names[] = {
    [NH_ALL_REDUCE] = "ncclAllReduce", [NH_BROADCAST] = "ncclBroadcast", [NH_REDUCE] = "ncclReduce", [NH_ALL_GATHER] = "ncclAllGather",
    [NH_REDUCE_SCATTER] = "ncclReduceScatter", [NH_ALL_TO_ALL] = "ncclAlltoAll", [NH_GATHER] = "ncclGather", [NH_SCATTER] = "ncclScatter",
    [NH_FINALIZE] = "ncclCommFinalize", [NH_SPLIT] = "ncclCommSplit", [NH_GROW] = "ncclCommGrow", [NH_WINDOW] = "ncclCommWindowRegister",
    [NH_PUT] = "ncclPutSignal", [NH_WAIT] = "ncclWaitSignal", [NH_SHRINK] = "ncclCommShrink", [NH_SEND] = "ncclSend", [NH_RECV] = "ncclRecv", [NH_JOIN] = "ncclCommInitRank",
  };
  return op >= 0 && op <= NH_JOIN ? names[op] : "unknown call";
}

const char *nh_type_name(int type)
{
  static const char *const names[ncclNumTypes] = {"int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64",
                                                  "bfloat16", "float8e4m3", "float8e5m2"};
  return type >= 0 && type < ncclNumTypes ? names[type] : "-";
}

const char *nh_redop_name(int redop)
{
  static const char *const names[NH_PREMULSUM + 1] = {"sum", "prod", "max", "min", "avg", "premulsum"};
  return redop >= 0 && redop <= NH_PREMULSUM ? names[redop] : "-";
}
