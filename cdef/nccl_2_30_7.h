/* What NCCL 2.30.7 added: one more kind of network transport started by the GPU. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NCCL_2_30_7_H
#define NCCL_2_30_7_H
#include "types.h"

/* ncclGinType_t */
enum { NCCL_GIN_TYPE_GPI = 4 };

#endif
