/* What NCCL 2.3.4 added: the library tells its version. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NCCL_2_3_4_H
#define NCCL_2_3_4_H
#include "types.h"

ncclResult_t ncclGetVersion(int *version);

#endif
