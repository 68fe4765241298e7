/* The loops for x86 processors with AVX-512 (F, BW, DQ, VL). */
/* SPDX-License-Identifier: Apache-2.0 */
#if defined __x86_64__
#include <immintrin.h>

#include "reduce_float.h"

#define KERNEL __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define KERNELS nh_kernels_avx512
#define KERNELS_NAME "avx512"
#define LANES 16

typedef __m512 vector;
typedef __m256i halves;

KERNEL static inline vector widen(halves x)
{
  return _mm512_cvtph_ps(x);
}

KERNEL static inline halves narrow(vector x)
{
  return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
}

#include "reduce_half.h"
#include "reduce_loops.h"
#endif
