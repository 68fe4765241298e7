/* What NCCL 2.3.5 added: the version as one number. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NCCL_2_3_5_H
#define NCCL_2_3_5_H
#include "types.h"

#define NCCL_VERSION_CODE 23203

#endif
