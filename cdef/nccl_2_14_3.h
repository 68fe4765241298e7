/* What NCCL 2.14.3 added: configured and nonblocking communicators. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NCCL_2_14_3_H
#define NCCL_2_14_3_H
#include "types.h"

/* ncclResult_t: nonblocking communicators only */
enum { ncclInProgress = 7 };

/* Making communicators */
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank,
    ncclConfig_t *config);

/* Life of a communicator */
ncclResult_t ncclCommFinalize(ncclComm_t comm);

#endif
