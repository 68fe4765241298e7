/* What NCCL 2.18.1 added: splitting a communicator. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NCCL_2_18_1_H
#define NCCL_2_18_1_H
#include "types.h"

#define NCCL_SPLIT_NOCOLOR (-1)

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config);

#endif
