/* What NCCL 2.24.3 added: the two 8-bit floating point types. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NCCL_2_24_3_H
#define NCCL_2_24_3_H
#include "types.h"

/* ncclDataType_t */
enum { ncclFloat8e4m3 = 10, ncclFloat8e5m2 = 11 };

/* Deprecated since 2.28.3 */
void ncclResetDebugInit(void);

#endif
