/* What NCCL 2.28.7 added: revoking a communicator. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NCCL_2_28_7_H
#define NCCL_2_28_7_H
#include "types.h"

#define NCCL_REVOKE_DEFAULT 0

/* Life of a communicator */
ncclResult_t ncclCommRevoke(ncclComm_t comm, int revokeFlags);

/* Teams and devices */
ncclResult_t ncclGinBarrierCreateRequirement(ncclComm_t comm, ncclTeam_t team, int nBarriers,
    ncclGinBarrierHandle_t *outHandle, ncclDevResourceRequirements_t *outReq);

#endif
