/* The exported functions that move data: collectives, send and receive, put and signal. */
/* SPDX-License-Identifier: Apache-2.0 */
/* The checks come in NCCL's order and give NCCL's codes; unlike NCCL, null and overlapping buffers that would be touched are refused. */
#include "api.h"

static ncclResult_t check_numbers(const nh_task *task, const char *name)
{
  int n = task->comm->nranks;
  ENSURE(task->root >= 0 && task->root < n, "%s: %s is %d, must be 0 to %d", name, task->op >= NH_SEND ? "the peer" : "root", task->root, n - 1);
  ENSURE(task->type >= 0 && task->type < ncclNumTypes, "%s: data type %d is unknown, must be 0 to %d", name, task->type, ncclNumTypes - 1);
  ENSURE(task->count <= SIZE_MAX / 8 / (size_t)n, "%s: count %zu is more than memory can hold", name, task->count);
  return ncclSuccess;
}

static bool uses_send(const nh_task *task)
{
  bool root = task->root == task->comm->rank;
  return task->op == NH_BROADCAST || task->op == NH_SCATTER ? root : task->op != NH_RECV;
}

static bool uses_recv(const nh_task *task)
{
  bool root = task->root == task->comm->rank;
  return task->op == NH_REDUCE || task->op == NH_GATHER ? root : task->op != NH_SEND;
}

/* Buffers are apart, or in the one place that is the in-place form. */
static ncclResult_t check_overlap(const nh_task *task, const char *name)
{
  size_t bytes = task->count * nh_type_size(task->type), n = (size_t)task->comm->nranks, rank = (size_t)task->comm->rank;
  bool send_all = task->op == NH_REDUCE_SCATTER || task->op == NH_SCATTER || task->op == NH_ALL_TO_ALL;
  bool recv_all = task->op == NH_ALL_GATHER || task->op == NH_GATHER || task->op == NH_ALL_TO_ALL;
  uintptr_t send = (uintptr_t)task->send, recv = (uintptr_t)task->recv;
  if (send + (send_all ? n * bytes : bytes) <= recv || recv + (recv_all ? n * bytes : bytes) <= send || n == 1) return ncclSuccess;
  if (send_all && recv_all) FAIL(ncclInvalidArgument, nickelKindOverlap, "%s has no in-place form: send %p and receive %p overlap", name, task->send, task->recv);
  uintptr_t place = recv_all ? recv + rank * bytes : send_all ? send + rank * bytes : recv;
  if ((recv_all ? send : send_all ? recv : send) == place) return ncclSuccess;
  FAIL(ncclInvalidArgument, nickelKindOverlap, "%s on rank %zu: send %p and receive %p overlap; in place the %s buffer is at %p", name, rank, task->send, task->recv,
       send_all ? "receive" : "send", (void *)place);
}

static ncclResult_t check_buffers(const nh_task *task, const char *name)
{
  ENSURE(task->send || !uses_send(task), "%s: the send buffer is NULL, with count %zu", name, task->count);
  ENSURE(task->recv || !uses_recv(task), "%s: the receive buffer is NULL, with count %zu", name, task->count);
  return uses_send(task) && uses_recv(task) ? check_overlap(task, name) : ncclSuccess;
}

static bool reduces(const nh_task *task)
{
  return task->op == NH_ALL_REDUCE || task->op == NH_REDUCE || task->op == NH_REDUCE_SCATTER;
}

/* A number from ncclRedOpCreatePreMulSum becomes what it stands for. */
static ncclResult_t check_reduction(nh_task *task, const char *name)
{
  if (!reduces(task)) return ncclSuccess;
  if (task->redop >= 0 && task->redop < ncclNumOps) return ncclSuccess;
  const nh_user_op *op = nh_op_find(task->comm, task->redop);
  ENSURE(op, "%s: reduction operation %d is unknown: it is 0 to %d or one that was made on this communicator and not destroyed", name, task->redop, ncclNumOps - 1);
  ENSURE(op->type == task->type || !task->count, "%s: the reduction operation was made for %s, the call is of %s", name, nh_type_name(op->type), nh_type_name(task->type));
  task->redop = NH_PREMULSUM;
  task->scalar = op->scalar;
  task->device_scalar = op->device;
  return ncclSuccess;
}

static ncclResult_t submit(nh_task task, const ncclCollConfig_t *config)
{
  const char *name = nh_op_name(task.op);
  bool p2p = task.op >= NH_SEND;
  ncclResult_t result = nh_check_call_config(config, name);
  if (result != ncclSuccess) return result; /* before the group's bookkeeping, as in NCCL */
  TRY(nh_comm_check(task.comm, name));
  task.serial = task.comm->serial;
  if ((result = check_numbers(&task, name)) != ncclSuccess) return result;
  if ((result = check_reduction(&task, name)) != ncclSuccess) return result;
  if (task.count && (result = check_buffers(&task, name)) != ncclSuccess) return result;
  if (p2p && task.root == task.comm->rank && !nh_grouped())
    return nh_error(ncclInvalidUsage, nickelKindDeadlock, "%s to itself on rank %d: the send and the receive must be in one group", name, task.comm->rank);
  TRY(nh_fault(task.comm, name, &task.corrupt));
  task.corrupt = task.corrupt && uses_recv(&task); /* elsewhere it may be any address */
  if (p2p) nh_p2p_prepare(&task);
  else nh_collective_prepare(&task);
  return nh_group_note(nh_submit(&task));
}

#define CALL(operation, ...) ((nh_task){.op = operation, .comm = comm, .count = count, .type = datatype, __VA_ARGS__})

/* A collective and its twin with a configuration: task, then what both take before the communicator. */
#define COLLECTIVE(name, task, ...)                                                                                                       \
  API(ncclResult_t, name, const void *send, void *recv, size_t count, ncclDataType_t datatype, __VA_ARGS__ ncclComm_t comm, cudaStream_t stream)        \
  {                                                                                                                                       \
    (void)stream;                                                                                                                         \
    return submit(task, NULL);                                                                                                            \
  }                                                                                                                                       \
  API(ncclResult_t, name##Config, const void *send, void *recv, size_t count, ncclDataType_t datatype, __VA_ARGS__ ncclComm_t comm,       \
      cudaStream_t stream, const ncclCollConfig_t *config)                                                                                \
  {                                                                                                                                       \
    (void)stream;                                                                                                                         \
    return submit(task, config);                                                                                                          \
  }
#define BOTH .send = send, .recv = recv
#define OP ncclRedOp_t op,
#define ROOT int root,

COLLECTIVE(ncclAllReduce, CALL(NH_ALL_REDUCE, BOTH, .redop = op), OP)
COLLECTIVE(ncclBroadcast, CALL(NH_BROADCAST, BOTH, .root = root), ROOT)
COLLECTIVE(ncclReduce, CALL(NH_REDUCE, BOTH, .redop = op, .root = root), OP ROOT)
COLLECTIVE(ncclAllGather, CALL(NH_ALL_GATHER, BOTH), )
COLLECTIVE(ncclReduceScatter, CALL(NH_REDUCE_SCATTER, BOTH, .redop = op), OP)
COLLECTIVE(ncclAlltoAll, CALL(NH_ALL_TO_ALL, BOTH), )
COLLECTIVE(ncclGather, CALL(NH_GATHER, BOTH, .root = root), ROOT)
COLLECTIVE(ncclScatter, CALL(NH_SCATTER, BOTH, .root = root), ROOT)

API(ncclResult_t, ncclBcast, void *buffer, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream)
{
  (void)stream;
  return submit(CALL(NH_BROADCAST, .send = buffer, .recv = buffer, .root = root), NULL);
}

API(ncclResult_t, ncclSend, const void *send, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm, cudaStream_t stream)
{
  (void)stream;
  return submit(CALL(NH_SEND, .send = send, .root = peer), NULL);
}

API(ncclResult_t, ncclRecv, void *recv, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm, cudaStream_t stream)
{
  (void)stream;
  return submit(CALL(NH_RECV, .recv = recv, .root = peer), NULL);
}


/* ---- one-sided ---- */

/* What put, signal and wait have in common. */
static ncclResult_t check_signal(ncclComm_t comm, const char *name, int peer, int index, int context, unsigned flags)
{
  TRY(nh_comm_check(comm, name));
  ENSURE(flags == 0, "%s: flags are %u, must be 0", name, flags);
  ENSURE(peer >= 0 && peer < comm->nranks, "%s: the peer is %d, must be 0 to %d", name, peer, comm->nranks - 1);
  ENSURE(index >= 0 && index < comm->settings.signals, "%s: the signal index is %d, must be 0 to %d (numRmaSig in the config)", name, index, comm->settings.signals - 1);
  ENSURE(context == 0, "%s: the context is %d, this library has context 0 only", name, context);
  return ncclSuccess;
}

API(ncclResult_t, ncclPutSignal, const void *local, size_t count, ncclDataType_t datatype, int peer, ncclWindow_t window, size_t offset, int index,
    int context, unsigned int flags, ncclComm_t comm, cudaStream_t stream)
{
  (void)stream;
  ncclResult_t result = check_signal(comm, "ncclPutSignal", peer, index, context, flags);
  if (result != ncclSuccess) return result;
  ENSURE(datatype >= 0 && datatype < ncclNumTypes, "ncclPutSignal: data type %d is unknown, must be 0 to %d", datatype, ncclNumTypes - 1);
  ENSURE(!count || (local && window), "ncclPutSignal: the %s is NULL, with count %zu", local ? "window" : "local buffer", count);
  ENSURE(count <= SIZE_MAX / 8, "ncclPutSignal: count %zu is more than memory can hold", count);
  TRY(nh_fault(comm, "ncclPutSignal", &(bool){false})); /* what it puts is not this rank's to spoil */
  return nh_group_note(nh_put(comm, local, count * nh_type_size(datatype), peer, window, offset, index));
}

API(ncclResult_t, ncclSignal, int peer, int index, int context, unsigned int flags, ncclComm_t comm, cudaStream_t stream)
{
  (void)stream;
  ncclResult_t result = check_signal(comm, "ncclSignal", peer, index, context, flags);
  if (result != ncclSuccess) return result;
  TRY(nh_fault(comm, "ncclSignal", &(bool){false}));
  return nh_group_note(nh_put(comm, NULL, 0, peer, NULL, 0, index));
}

API(ncclResult_t, ncclWaitSignal, int n, ncclWaitSignalDesc_t *descriptions, ncclComm_t comm, cudaStream_t stream)
{
  (void)stream;
  TRY(nh_comm_check(comm, "ncclWaitSignal"));
  ENSURE(n > 0 && descriptions, "ncclWaitSignal: %s", descriptions ? "the number of descriptions must be 1 or more" : "the descriptions are NULL");
  for (int i = 0; i < n; i++) {
    ncclResult_t result = check_signal(comm, "ncclWaitSignal", descriptions[i].peer, descriptions[i].sigIdx, descriptions[i].ctx, 0);
    if (result != ncclSuccess) return result;
    ENSURE(descriptions[i].opCnt > 0, "ncclWaitSignal: description %d waits for %d signals, must be 1 or more", i, descriptions[i].opCnt);
  }
  TRY(nh_fault(comm, "ncclWaitSignal", &(bool){false}));
  return nh_group_note(nh_wait_signals(comm, n, descriptions));
}
