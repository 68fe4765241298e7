/* What NCCL 2.22.3 added: an estimate of what a group would take. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NCCL_2_22_3_H
#define NCCL_2_22_3_H
#include "types.h"

#define NCCL_UNDEF_FLOAT (-1.0f)

ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *simInfo);

#endif
