/* The functions that libnccl exports, as far as this library has them: check the arguments, hand over. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pncclX is the function, ncclX its weak alias, as in NVIDIA's library; nothing in here is called from inside. The checks come in NCCL's
 * order and give NCCL's codes; unlike NCCL, null buffers that would be touched are refused.
 */
#include <limits.h>
#include <string.h>

#include "host.h"

#define EXPORT __attribute__((visibility("default")))
#define API(result, name, ...)                                                                                                            \
  EXPORT result p##name(__VA_ARGS__);                                                                                                     \
  extern __typeof__(p##name) name __attribute__((weak, alias("p" #name), visibility("default")));                                         \
  result p##name(__VA_ARGS__)

enum { HOST_VERSION = 100 };    /* 0.1.0, coded as NCCL codes 2.9 and later: X*10000 + Y*100 + Z */

#define ENSURE(condition, ...)                                                                                                            \
  do                                                                                                                                      \
    if (!(condition)) return nh_group_note(nh_error(ncclInvalidArgument, nickelKindNone, __VA_ARGS__));                                   \
  while (0)


/* ---- what needs no communicator ---- */

API(ncclResult_t, ncclGetVersion, int *version)
{
  ENSURE(version, "ncclGetVersion: the pointer to the version is NULL");
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

API(const char *, ncclGetErrorString, ncclResult_t result)
{
  return nh_result_text(result);
}

API(const char *, ncclGetLastError, ncclComm_t comm)
{
  if (!*nh_last_error() && nh_comm_valid(comm)) return comm->failed_text;
  return nh_last_error();
}

API(ncclResult_t, ncclGetUniqueId, ncclUniqueId *id)
{
  ENSURE(id, "ncclGetUniqueId: the pointer to the id is NULL");
  return nh_segment_make(id);
}

API(ncclResult_t, ncclMemAlloc, void **pointer, size_t size)
{
  ENSURE(pointer && size, "ncclMemAlloc: %s", pointer ? "the size is 0 bytes" : "the pointer to the memory is NULL");
  return nh_arena_make(pointer, size);
}

API(ncclResult_t, ncclMemFree, void *pointer)
{
  return pointer ? nh_arena_free(pointer) : ncclSuccess;
}

API(ncclResult_t, ncclGroupStart, void)
{
  return nh_group_start();
}

API(ncclResult_t, ncclGroupEnd, void)
{
  return nh_group_end();
}


/* ---- communicators ---- */

static ncclResult_t init_rank(ncclComm_t *comm, int nranks, const ncclUniqueId *id, int rank, int device)
{
  nh_task task;
  ENSURE(comm, "ncclCommInitRank: the pointer to the communicator is NULL");
  *comm = NULL;
  ENSURE(nranks >= 1 && nranks <= NH_MAX_RANKS, "ncclCommInitRank: nranks is %d, must be 1 to %d", nranks, NH_MAX_RANKS);
  ENSURE(rank >= 0 && rank < nranks, "ncclCommInitRank: rank is %d, must be 0 to %d", rank, nranks - 1);
  ncclResult_t result = nh_comm_new(&task, comm, nranks, (const uint8_t *)id->internal, rank, device);
  if (result == ncclSuccess) result = nh_submit(&task);
  return nh_group_note(result);
}

API(ncclResult_t, ncclCommInitRank, ncclComm_t *comm, int nranks, ncclUniqueId id, int rank)
{
  return init_rank(comm, nranks, &id, rank, 0);
}

API(ncclResult_t, ncclCommInitRankConfig, ncclComm_t *comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
  if (config) {
    ENSURE(config->size >= 20 && config->magic == NCCL_API_MAGIC, "ncclCommInitRankConfig: the config was not made with NCCL_CONFIG_INITIALIZER");
    int blocking = config->blocking;
    ENSURE(blocking == 0 || blocking == 1 || blocking == NCCL_CONFIG_UNDEF_INT, "ncclCommInitRankConfig: blocking is %d, must be 0 or 1", blocking);
    if (blocking == 0)
      return nh_group_note(nh_error(ncclInvalidUsage, nickelKindNone, "ncclCommInitRankConfig: this version of the CPU library has blocking communicators only: leave blocking at 1"));
  }
  return init_rank(comm, nranks, &id, rank, 0);
}

API(ncclResult_t, ncclCommInitAll, ncclComm_t *comms, int ndev, const int *devices)
{
  ENSURE(comms && ndev >= 1 && ndev <= NH_MAX_RANKS, "ncclCommInitAll: %s", comms ? "the number of devices must be 1 or more" : "the pointer to the communicators is NULL");
  for (int i = 0; devices && i < ndev; i++) {
    ENSURE(devices[i] >= 0, "ncclCommInitAll: device %d is %d, must be 0 or more", i, devices[i]);
    for (int j = 0; j < i; j++)
      if (devices[i] == devices[j])
        return nh_group_note(nh_error(ncclInvalidUsage, nickelKindNone, "ncclCommInitAll: device %d is in the list twice", devices[i]));
  }
  ncclUniqueId id;
  ncclResult_t result = nh_segment_make(&id);
  if (result != ncclSuccess) return nh_group_note(result);
  nh_group_start();
  for (int i = 0; i < ndev; i++) init_rank(&comms[i], ndev, &id, i, devices ? devices[i] : i);
  return nh_group_end();
}

API(ncclResult_t, ncclCommFinalize, ncclComm_t comm)
{
  if (!comm) return ncclSuccess;
  ncclResult_t result = nh_comm_check(comm, "ncclCommFinalize");
  if (result != ncclSuccess) return nh_group_note(result);
  nh_task task = {.comm = comm, .serial = comm->serial, .op = NH_FINALIZE, .type = ncclInt8};
  nh_collective_prepare(&task);
  result = nh_submit(&task);
  if (result == ncclSuccess) comm->finalized = true;
  return nh_group_note(result);
}

API(ncclResult_t, ncclCommDestroy, ncclComm_t comm)
{
  if (!comm) return ncclSuccess;
  ncclResult_t result = nh_comm_exists(comm, "ncclCommDestroy");
  return nh_group_note(result == ncclSuccess ? nh_comm_destroy(comm) : result);
}

API(ncclResult_t, ncclCommAbort, ncclComm_t comm)
{
  if (!comm) return ncclSuccess;
  ncclResult_t result = nh_comm_exists(comm, "ncclCommAbort");
  return nh_group_note(result == ncclSuccess ? nh_comm_abort(comm) : result);
}

API(ncclResult_t, ncclCommGetAsyncError, ncclComm_t comm, ncclResult_t *error)
{
  ncclResult_t result = nh_comm_exists(comm, "ncclCommGetAsyncError");
  if (result != ncclSuccess) return result;
  ENSURE(error, "ncclCommGetAsyncError: the pointer to the error is NULL");
  *error = comm->failed != ncclSuccess ? comm->failed : comm->ready ? (ncclResult_t)nh_failed_with(comm).code : ncclInProgress;
  return ncclSuccess;
}

static ncclResult_t query(ncclComm_t comm, const char *function, const int *field, int *out)
{
  ncclResult_t result = nh_comm_exists(comm, function);
  if (result != ncclSuccess) return nh_group_note(result);
  ENSURE(out, "%s: the pointer to the result is NULL", function);
  *out = *field;
  return ncclSuccess;
}

API(ncclResult_t, ncclCommCount, const ncclComm_t comm, int *count)
{
  return query(comm, "ncclCommCount", comm ? &comm->nranks : NULL, count);
}

API(ncclResult_t, ncclCommUserRank, const ncclComm_t comm, int *rank)
{
  return query(comm, "ncclCommUserRank", comm ? &comm->rank : NULL, rank);
}

API(ncclResult_t, ncclCommCuDevice, const ncclComm_t comm, int *device)
{
  return query(comm, "ncclCommCuDevice", comm ? &comm->device : NULL, device);
}


/* ---- calls that move data ---- */

static ncclResult_t check_numbers(const nh_task *task, const char *name)
{
  int n = task->comm->nranks;
  ENSURE(task->root >= 0 && task->root < n, "%s: %s is %d, must be 0 to %d", name, task->op >= NH_SEND ? "the peer" : "root", task->root, n - 1);
  ENSURE(task->type >= 0 && task->type < ncclNumTypes, "%s: data type %d is unknown, must be 0 to %d", name, task->type, ncclNumTypes - 1);
  ENSURE(task->redop >= 0 && task->redop < ncclNumOps, "%s: reduction operation %d is unknown, must be 0 to %d", name, task->redop, ncclNumOps - 1);
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

static ncclResult_t check_buffers(const nh_task *task, const char *name)
{
  ENSURE(task->send || !uses_send(task), "%s: the send buffer is NULL, with count %zu", name, task->count);
  ENSURE(task->recv || !uses_recv(task), "%s: the receive buffer is NULL, with count %zu", name, task->count);
  if (task->op == NH_ALL_TO_ALL && task->send == task->recv && task->comm->nranks > 1)
    return nh_group_note(nh_error(ncclInvalidArgument, nickelKindOverlap, "%s has no in-place form: send and receive buffer must differ", name));
  return ncclSuccess;
}

static ncclResult_t submit(nh_task task)
{
  const char *name = nh_op_name(task.op);
  bool p2p = task.op >= NH_SEND, reduces = task.op == NH_ALL_REDUCE || task.op == NH_REDUCE || task.op == NH_REDUCE_SCATTER;
  ncclResult_t result = nh_comm_check(task.comm, name);
  if (result != ncclSuccess) return nh_group_note(result);
  task.serial = task.comm->serial;
  if ((result = check_numbers(&task, name)) != ncclSuccess) return result;
  if (task.count && (result = check_buffers(&task, name)) != ncclSuccess) return result;
  ENSURE(!reduces || nh_reducible(task.type), "%s: this version of the CPU library does not reduce %s, it only copies it", name, nh_type_name(task.type));
  if (p2p && task.root == task.comm->rank && !nh_grouped())
    return nh_error(ncclInvalidUsage, nickelKindDeadlock, "%s to itself on rank %d: the send and the receive must be in one group", name, task.comm->rank);
  if (p2p) nh_p2p_prepare(&task);
  else nh_collective_prepare(&task);
  return nh_group_note(nh_submit(&task));
}

#define TASK(operation, ...) ((nh_task){.op = operation, .comm = comm, .count = count, .type = datatype, __VA_ARGS__})

API(ncclResult_t, ncclAllReduce, const void *send, void *recv, size_t count, ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
  (void)stream;
  return submit(TASK(NH_ALL_REDUCE, .send = send, .recv = recv, .redop = op));
}

API(ncclResult_t, ncclBroadcast, const void *send, void *recv, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream)
{
  (void)stream;
  return submit(TASK(NH_BROADCAST, .send = send, .recv = recv, .root = root));
}

API(ncclResult_t, ncclBcast, void *buffer, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream)
{
  (void)stream;
  return submit(TASK(NH_BROADCAST, .send = buffer, .recv = buffer, .root = root));
}

API(ncclResult_t, ncclReduce, const void *send, void *recv, size_t count, ncclDataType_t datatype, ncclRedOp_t op, int root, ncclComm_t comm,
    cudaStream_t stream)
{
  (void)stream;
  return submit(TASK(NH_REDUCE, .send = send, .recv = recv, .redop = op, .root = root));
}

API(ncclResult_t, ncclAllGather, const void *send, void *recv, size_t count, ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream)
{
  (void)stream;
  return submit(TASK(NH_ALL_GATHER, .send = send, .recv = recv));
}

API(ncclResult_t, ncclReduceScatter, const void *send, void *recv, size_t count, ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
    cudaStream_t stream)
{
  (void)stream;
  return submit(TASK(NH_REDUCE_SCATTER, .send = send, .recv = recv, .redop = op));
}

API(ncclResult_t, ncclAlltoAll, const void *send, void *recv, size_t count, ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream)
{
  (void)stream;
  return submit(TASK(NH_ALL_TO_ALL, .send = send, .recv = recv));
}

API(ncclResult_t, ncclGather, const void *send, void *recv, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream)
{
  (void)stream;
  return submit(TASK(NH_GATHER, .send = send, .recv = recv, .root = root));
}

API(ncclResult_t, ncclScatter, const void *send, void *recv, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream)
{
  (void)stream;
  return submit(TASK(NH_SCATTER, .send = send, .recv = recv, .root = root));
}

API(ncclResult_t, ncclSend, const void *send, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm, cudaStream_t stream)
{
  (void)stream;
  return submit(TASK(NH_SEND, .send = send, .root = peer));
}

API(ncclResult_t, ncclRecv, void *recv, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm, cudaStream_t stream)
{
  (void)stream;
  return submit(TASK(NH_RECV, .recv = recv, .root = peer));
}


/* ---- this library's own: nickel.h ---- */

EXPORT ncclResult_t nickelHostVersion(int *version)
{
  ENSURE(version, "nickelHostVersion: the pointer to the version is NULL");
  *version = HOST_VERSION;
  return ncclSuccess;
}

EXPORT int nickelErrorKind(ncclComm_t comm)
{
  (void)comm;
  return nh_last_kind();
}

EXPORT int nickelErrorRanks(ncclComm_t comm, int *ranks, int *pids, int capacity)
{
  (void)comm;
  return nh_last_ranks(ranks, pids, capacity);
}

EXPORT ncclResult_t nickelCommSetTimeout(ncclComm_t comm, double seconds)
{
  ENSURE(seconds == seconds, "nickelCommSetTimeout: the timeout is not a number");
  if (!comm) {
    nh_set_timeout(seconds);
    return ncclSuccess;
  }
  ncclResult_t result = nh_comm_exists(comm, "nickelCommSetTimeout");
  if (result == ncclSuccess) comm->timeout = seconds;
  return result;
}

EXPORT void nickelSetInterruptCheck(int (*check)(void))
{
  nh_set_interrupt(check);
}
