/* What NCCL 2.4.2 added: errors that happen between calls, and a way out of a stuck call. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NCCL_2_4_2_H
#define NCCL_2_4_2_H
#include "types.h"

/* Life of a communicator */
ncclResult_t ncclCommAbort(ncclComm_t comm);

/* Errors */
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError);

#endif
