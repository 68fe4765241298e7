/* The exported functions that need no communicator, and this library's own. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "api.h"

enum { HOST_VERSION = 100 };    /* 0.1.0, coded as NCCL codes 2.9 and later: X*10000 + Y*100 + Z */

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
  if (!*nh_last_error() && nh_comm_valid(comm)) return nh_recorded_text(comm);
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

/* The magic of ncclSimInfo_t has no name of its own. */
API(ncclResult_t, ncclGroupSimulateEnd, ncclSimInfo_t *info)
{
  ncclSimInfo_t whole = NCCL_SIM_INFO_INITIALIZER;
  const unsigned magic = whole.magic;
  size_t size = info && info->size < sizeof whole ? info->size : sizeof whole;
  double seconds;
  whole.magic = 0;
  if (info) memcpy(&whole, info, size);
  ncclResult_t result = nh_group_drop(&seconds);
  if (result != ncclSuccess || !info) return result;
  if (whole.magic != magic)
    return nh_error(ncclInvalidArgument, nickelKindNone, "ncclGroupSimulateEnd: the info was not made with NCCL_SIM_INFO_INITIALIZER; the group is closed");
  whole.estimatedTime = (float)(1e6 * seconds);
  memcpy(info, &whole, size);
  return ncclSuccess;
}

API(void, ncclResetDebugInit, void)
{
  nh_log_reset();
}

EXPORT void ncclResetDebugInitInternal(void);
void ncclResetDebugInitInternal(void)
{
  nh_log_reset();
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

EXPORT ncclResult_t nickelCommCome(ncclComm_t comm, int wait, int *all)
{
  ENSURE(all, "nickelCommCome: the pointer to the answer is NULL");
  ENSURE(wait >= -1 && wait <= 1, "nickelCommCome: wait is %d, must be -1, 0 or 1", wait);
  ncclResult_t result = nh_comm_exists(comm, "nickelCommCome");
  return result == ncclSuccess ? nh_come(comm, wait, all) : result;
}

EXPORT void nickelSetInterruptCheck(int (*check)(void))
{
  nh_set_interrupt(check);
}
