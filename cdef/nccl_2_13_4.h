/* What NCCL 2.13.4 added: the text of the last error. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NCCL_2_13_4_H
#define NCCL_2_13_4_H
#include "types.h"

/* ncclResult_t */
enum { ncclRemoteError = 6 };

const char *ncclGetLastError(ncclComm_t comm);

#endif
