/* What NCCL 2.23.4 added: init from several unique ids. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NCCL_2_23_4_H
#define NCCL_2_23_4_H
#include "types.h"

ncclResult_t ncclCommInitRankScalable(ncclComm_t *newcomm, int nranks, int myrank, int nId, ncclUniqueId *commIds,
    ncclConfig_t *config);

#endif
