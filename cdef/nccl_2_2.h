/* What NCCL 2.2 added: a broadcast with two buffers. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NCCL_2_2_H
#define NCCL_2_2_H
#include "types.h"

ncclResult_t ncclBroadcast(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
    ncclComm_t comm, cudaStream_t stream);

#endif
