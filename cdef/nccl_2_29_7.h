/* What NCCL 2.29.7 added: suspending a communicator, and its memory statistics. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NCCL_2_29_7_H
#define NCCL_2_29_7_H
#include "types.h"

/* ncclCommMemStat_t: bytes, but for ...Suspended, which is 0 or 1 */
enum {
  ncclStatGpuMemSuspend = 0, ncclStatGpuMemSuspended = 1, ncclStatGpuMemPersist = 2, ncclStatGpuMemTotal = 3
};

#define NCCL_WIN_STRICT_ORDERING 2 /* winFlags */
#define NCCL_SUSPEND_MEM 1         /* flags of ncclCommSuspend */
#define NCCL_GIN_MAX_CONNECTIONS 4

/* ncclGinConnectionType_t */
enum { NCCL_GIN_CONNECTION_NONE = 0, NCCL_GIN_CONNECTION_FULL = 1, NCCL_GIN_CONNECTION_RAIL = 2 };

/* Life of a communicator */
ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags);
ncclResult_t ncclCommResume(ncclComm_t comm);

/* Queries */
ncclResult_t ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value);

/* Teams and devices */
ncclResult_t ncclGinOutboxCreateRequirement(int nBlocks, int size_log2, ncclGinOutboxHandle_t *outHandle,
    ncclDevResourceRequirements_t *outReq);
ncclResult_t ncclGinInboxA2ACreateRequirement(ncclTeam_t peers, int nBlocks, int size_log2,
    ncclGinInboxA2AHandle_t *outHandle, ncclDevResourceRequirements_t *outReq);

#endif
