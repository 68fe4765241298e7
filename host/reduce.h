/* What the arithmetic is made of: loops over elements for each type, in one version for each instruction set. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NH_REDUCE_H
#define NH_REDUCE_H
#include <stddef.h>
#include <stdint.h>

#include "../cdef/all.h"

/* Element i of what is written depends on elements i alone, so a target may be one of the sources. No buffer needs an alignment. What is
   written to target is written to `also` as well, which may be target itself. Scalars are the bits of an element, in the low bytes. */
typedef void nh_binary(void *target, void *also, const void *a, const void *b, size_t count);
typedef void nh_scaling(void *target, const void *a, size_t count, uint64_t scalar);
typedef void nh_scaled_sum(void *target, void *also, const void *a, const void *b, size_t count, uint64_t scalar_a, uint64_t scalar_b);
typedef void nh_division(void *target, const void *a, size_t count, int divisor);

typedef struct {
  nh_binary *binary[4];         /* by ncclSum, ncclProd, ncclMax, ncclMin */
  nh_scaling *scale;            /* a * scalar */
  nh_scaled_sum *scaled_sum;    /* a * scalar_a + b * scalar_b, each product rounded */
  nh_division *divide;          /* truncates toward zero; integers only */
} nh_arithmetic;

typedef struct {
  const char *name;
  nh_arithmetic arithmetic[ncclNumTypes]; /* without the floats of 8 bits */
} nh_kernels;

extern const nh_kernels nh_kernels_plain;
#if defined __x86_64__
extern const nh_kernels nh_kernels_avx2, nh_kernels_avx512;
#endif

/* reduce_float8.c */
const nh_arithmetic *nh_float8(int type);

#endif
