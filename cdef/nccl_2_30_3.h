/* What NCCL 2.30.3 added: a result for deadlines. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NCCL_2_30_3_H
#define NCCL_2_30_3_H
#include "types.h"

/* ncclResult_t */
enum { ncclTimeout = 8 };

#endif
