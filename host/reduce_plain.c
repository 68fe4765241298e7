/* The loops for any processor: the reference that the others agree with, bit by bit. */
/* SPDX-License-Identifier: Apache-2.0 */
#define KERNEL
#define KERNELS nh_kernels_plain
#define KERNELS_NAME "plain"
#include "reduce_loops.h"
