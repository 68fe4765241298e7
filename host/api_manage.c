/* The exported functions that ask and tell a communicator: queries, errors, registration, windows, operations, suspending. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <sched.h>
#include <string.h>

#include "api.h"

static ncclResult_t query(ncclComm_t comm, const char *function, const int *field, int *out)
{
  TRY(nh_comm_check_end(comm, function));
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

/* The state of the communicator becomes the thread's last error with it. An error after which the communicator can be used is told once. */
API(ncclResult_t, ncclCommGetAsyncError, ncclComm_t comm, ncclResult_t *error)
{
  ncclResult_t result = nh_comm_exists(comm, "ncclCommGetAsyncError");
  if (result != ncclSuccess) return result;
  if (!error) return nh_error(ncclInvalidArgument, nickelKindNone, "ncclCommGetAsyncError: the pointer to the error is NULL");
  *error = comm->settings.blocking ? ncclSuccess : nh_comm_async(comm);
  if (*error == ncclInProgress) {
    sched_yield(); /* programs poll without a pause, and there may be no core left for the thread that works */
    return ncclSuccess;
  }
  if (nh_comm_code(comm) != ncclSuccess) *error = nh_recall_error(comm);
  else if (*error != ncclSuccess) {
    nh_recall_error(comm);
    nh_comm_set_async(comm, ncclSuccess);
  } else if (nh_comm_is(comm, NH_READY) && !nh_comm_revoked(comm)) {
    nh_failure failure = nh_failed_with(comm);
    if (failure.kind) *error = nh_error_failure(comm, failure, "ncclCommGetAsyncError");
  } else if (!nh_comm_is(comm, NH_READY)) *error = ncclInProgress;
  return ncclSuccess;
}


/* ---- memory ---- */

API(ncclResult_t, ncclCommRegister, const ncclComm_t comm, void *buffer, size_t size, void **handle)
{
  TRY(nh_comm_check(comm, "ncclCommRegister"));
  ENSURE(handle && buffer && size, "ncclCommRegister: %s", !handle ? "the pointer to the handle is NULL" : !buffer ? "the buffer is NULL" : "the size is 0 bytes");
  return nh_group_note(nh_register(comm, buffer, size, handle));
}

API(ncclResult_t, ncclCommDeregister, const ncclComm_t comm, void *handle)
{
  TRY(nh_comm_check_end(comm, "ncclCommDeregister"));
  return handle ? nh_group_note(nh_deregister(comm, handle)) : ncclSuccess;
}

API(ncclResult_t, ncclCommWindowRegister, ncclComm_t comm, void *buffer, size_t size, ncclWindow_t *window, int flags)
{
  const int known = NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING | NCCL_WIN_GIN_ONLY | NCCL_WIN_CFT_COUNTED;
  TRY(nh_comm_check(comm, "ncclCommWindowRegister"));
  ENSURE(window, "ncclCommWindowRegister: the pointer to the window is NULL");
  *window = NULL;
  ENSURE(buffer && size, "ncclCommWindowRegister: %s", buffer ? "the size is 0 bytes" : "the buffer is NULL");
  ENSURE((flags & ~known) == 0, "ncclCommWindowRegister: flags are %d, which has unknown bits", flags);
  ENSURE((uintptr_t)buffer % NCCL_WIN_REQUIRED_ALIGNMENT == 0, "ncclCommWindowRegister: the buffer is at %p, must be at a multiple of %d", buffer,
         NCCL_WIN_REQUIRED_ALIGNMENT);
  return nh_still_running(nh_window_register(comm, buffer, size, window));
}

API(ncclResult_t, ncclCommWindowDeregister, ncclComm_t comm, ncclWindow_t window)
{
  TRY(nh_comm_check_end(comm, "ncclCommWindowDeregister"));
  return window ? nh_group_note(nh_window_deregister(comm, window)) : ncclSuccess;
}

API(ncclResult_t, ncclWinGetUserPtr, ncclComm_t comm, ncclWindow_t window, void **pointer)
{
  TRY(nh_comm_check_end(comm, "ncclWinGetUserPtr"));
  ENSURE(pointer, "ncclWinGetUserPtr: the pointer to the result is NULL");
  *pointer = window ? nh_window_pointer(comm, window) : NULL;
  ENSURE(*pointer || !window, "ncclWinGetUserPtr: %p is not a window of this communicator", (void *)window);
  return ncclSuccess;
}


/* ---- reduction operations ---- */

API(ncclResult_t, ncclRedOpCreatePreMulSum, ncclRedOp_t *op, void *scalar, ncclDataType_t datatype, ncclScalarResidence_t residence, ncclComm_t comm)
{
  TRY(nh_comm_check(comm, "ncclRedOpCreatePreMulSum"));
  ENSURE(op && scalar, "ncclRedOpCreatePreMulSum: the pointer to the %s is NULL", op ? "scalar" : "operation");
  ENSURE(datatype >= 0 && datatype < ncclNumTypes, "ncclRedOpCreatePreMulSum: data type %d is unknown, must be 0 to %d", datatype, ncclNumTypes - 1);
  ENSURE(residence == ncclScalarDevice || residence == ncclScalarHostImmediate,
         "ncclRedOpCreatePreMulSum: the residence is %d, must be ncclScalarDevice or ncclScalarHostImmediate", residence);
  return nh_group_note(nh_op_create(comm, op, scalar, datatype, residence == ncclScalarHostImmediate));
}

API(ncclResult_t, ncclRedOpDestroy, ncclRedOp_t op, ncclComm_t comm)
{
  TRY(nh_comm_check_end(comm, "ncclRedOpDestroy"));
  return nh_group_note(nh_op_destroy(comm, op));
}


/* ---- suspending, statistics, properties ---- */

API(ncclResult_t, ncclCommSuspend, ncclComm_t comm, int flags)
{
  TRY(nh_comm_check(comm, "ncclCommSuspend"));
  ENSURE(flags == NCCL_SUSPEND_MEM, "ncclCommSuspend: flags are %d, must be NCCL_SUSPEND_MEM", flags);
  nh_comm_set_condition(comm, NH_SUSPENDED, true);
  return ncclSuccess;
}

API(ncclResult_t, ncclCommResume, ncclComm_t comm)
{
  TRY(nh_comm_check_end(comm, "ncclCommResume"));
  if (!nh_comm_is(comm, NH_SUSPENDED)) FAIL(ncclInvalidUsage, nickelKindNone, "ncclCommResume: the communicator is not suspended");
  nh_comm_set_condition(comm, NH_SUSPENDED, false);
  return ncclSuccess;
}

/* There is no GPU memory; the total is the shared memory that this rank has reserved. */
API(ncclResult_t, ncclCommMemStats, ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value)
{
  TRY(nh_comm_check_end(comm, "ncclCommMemStats"));
  ENSURE(value, "ncclCommMemStats: the pointer to the value is NULL");
  ENSURE(stat >= ncclStatGpuMemSuspend && stat <= ncclStatGpuMemTotal, "ncclCommMemStats: statistic %d is unknown, must be %d to %d", stat,
         ncclStatGpuMemSuspend, ncclStatGpuMemTotal);
  uint64_t total = NH_PAGE + 2 * NH_INLINE + NH_SLOTS * NH_SLOT;
  for (int i = 0; i < 2 * comm->nranks; i++) total += comm->paired[i] ? NH_PAIR_SLOTS * NH_PAIR_SLOT : 0;
  *value = stat == ncclStatGpuMemSuspended ? nh_comm_is(comm, NH_SUSPENDED) : stat == ncclStatGpuMemSuspend ? 0 : total;
  return ncclSuccess;
}

API(ncclResult_t, ncclCommQueryProperties, ncclComm_t comm, ncclCommProperties_t *properties)
{
  TRY(nh_comm_check_end(comm, "ncclCommQueryProperties"));
  ENSURE(properties, "ncclCommQueryProperties: the pointer to the properties is NULL");
  unsigned version = properties->version;
  if (properties->magic != NCCL_API_MAGIC || version > NCCL_VERSION_CODE || version < 22902)
    FAIL(ncclInvalidUsage, nickelKindNone, "ncclCommQueryProperties: magic %#x, version %u: make it with NCCL_COMM_PROPERTIES_INITIALIZER of NCCL 2.29.2 to %d.%d.%d",
         properties->magic, version, NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);
  ncclCommProperties_t all = NCCL_COMM_PROPERTIES_INITIALIZER;
  all.size = properties->size;
  all.version = version;
  all.rank = comm->rank;
  all.nRanks = comm->nranks;
  all.cudaDev = all.nvmlDev = comm->device;
  all.nLsaTeams = comm->nranks;
  all.hostRmaSupport = true;
  if (comm->segment) memcpy(&all.commHash, comm->segment->nonce, sizeof all.commHash);
  size_t size = version < 22907 ? offsetof(ncclCommProperties_t, nLsaTeams) : version < 23102 ? offsetof(ncclCommProperties_t, commHash)
              : version < 23203 ? offsetof(ncclCommProperties_t, cftSupport) : sizeof all;
  memcpy(properties, &all, size);
  return ncclSuccess;
}
