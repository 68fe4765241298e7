/* What NCCL 2.10.3 added: bfloat16 and averages. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NCCL_2_10_3_H
#define NCCL_2_10_3_H
#include "types.h"

/* ncclRedOp_t */
enum { ncclAvg = 4 };

/* ncclDataType_t */
enum { ncclBfloat16 = 9 };

#endif
