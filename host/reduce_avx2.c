/* The loops for x86 processors with AVX2 and F16C. */
/* SPDX-License-Identifier: Apache-2.0 */
#if defined __x86_64__
#include <immintrin.h>

#include "reduce_float.h"

#define KERNEL __attribute__((target("avx2,f16c")))
#define KERNELS nh_kernels_avx2
#define KERNELS_NAME "avx2"
#define LANES 8

typedef __m256 vector;
typedef __m128i halves;

KERNEL static inline vector widen(halves x)
{
  return _mm256_cvtph_ps(x);
}

KERNEL static inline halves narrow(vector x)
{
  return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
}

#include "reduce_half.h"
#include "reduce_loops.h"
#endif
