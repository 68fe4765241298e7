/* What NCCL 2.17.1 added: the values that leave a setting to the library. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NCCL_2_17_1_H
#define NCCL_2_17_1_H
#include "types.h"

#define NCCL_COMM_NULL NULL
#define NCCL_CONFIG_UNDEF_INT (-2147483647 - 1)
#define NCCL_CONFIG_UNDEF_PTR NULL

#endif
