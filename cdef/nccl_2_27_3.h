/* What NCCL 2.27.3 added: shrinking a communicator, and memory windows. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NCCL_2_27_3_H
#define NCCL_2_27_3_H
#include "types.h"

/* winFlags, bits */
#define NCCL_WIN_DEFAULT 0
#define NCCL_WIN_COLL_SYMMETRIC 1

/* CTAPolicy, bits */
#define NCCL_CTA_POLICY_DEFAULT 0
#define NCCL_CTA_POLICY_EFFICIENCY 1

/* shrinkFlags */
#define NCCL_SHRINK_DEFAULT 0
#define NCCL_SHRINK_ABORT 1

/* Life of a communicator */
ncclResult_t ncclCommShrink(ncclComm_t comm, int *excludeRanksList, int excludeRanksCount, ncclComm_t *newcomm,
    ncclConfig_t *config, int shrinkFlags);

/* Registration */
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int winFlags);
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win);

#endif
