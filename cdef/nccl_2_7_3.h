/* What NCCL 2.7.3 added: send and receive. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NCCL_2_7_3_H
#define NCCL_2_7_3_H
#include "types.h"

ncclResult_t ncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
    cudaStream_t stream);
ncclResult_t ncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
    cudaStream_t stream);

#endif
