/* Loops over half floats with vectors named outright: compilers leave the processor's conversions of half unused. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file that includes this defines KERNEL, vector (LANES floats), halves (as many half floats), widen and narrow. Widening is exact,
 * narrowing rounds to nearest even. The rules are those of reduce_loops.h.
 */
#include "reduce.h"
#include "reduce_float.h"

typedef int32_t mask __attribute__((vector_size(4 * LANES)));
typedef enum { SUM, PROD, MAX, MIN, SCALE, SCALED_SUM } step;
#define INLINE KERNEL static inline __attribute__((always_inline))

INLINE vector choose(mask which, vector yes, vector no)
{
  return (vector)((which & (mask)yes) | (~which & (mask)no));
}

INLINE halves clean(vector x)
{
  return narrow(choose(x == x, x, (vector)((mask){0} + (int32_t)NH_NAN_BITS)));
}

INLINE vector larger(vector a, vector b)
{
  return choose(a == b, (vector)((mask)a & (mask)b), choose((a > b) | (b != b), a, b));
}

INLINE vector smaller(vector a, vector b)
{
  return choose(a == b, (vector)((mask)a | (mask)b), choose((a < b) | (b != b), a, b));
}

INLINE halves combine(step s, halves x, halves y, float factor_x, float factor_y)
{
  vector a = widen(x), b = widen(y);
  switch (s) {
  case SUM: return clean(a + b);
  case PROD: return clean(a * b);
  case MAX: return clean(larger(a, b));
  case MIN: return clean(smaller(a, b));
  case SCALE: return clean(a * factor_x);
  default: return clean(widen(narrow(a * factor_x)) + widen(narrow(b * factor_y)));
  }
}

INLINE void loop(step s, char *out, char *out_too, const char *a, const char *b, size_t count, float factor_a, float factor_b)
{
  halves x, y;
  size_t bytes = 2 * count, at = 0;
  for (; at + sizeof x <= bytes; at += sizeof x) {
    memcpy(&x, a + at, sizeof x);
    memcpy(&y, b + at, sizeof y);
    x = combine(s, x, y, factor_a, factor_b);
    memcpy(out + at, &x, sizeof x);
    memcpy(out_too + at, &x, sizeof x);
  }
  if (at == bytes) return;
  memset(&x, 0, sizeof x);
  memset(&y, 0, sizeof y);
  memcpy(&x, a + at, bytes - at);
  memcpy(&y, b + at, bytes - at);
  x = combine(s, x, y, factor_a, factor_b);
  memcpy(out + at, &x, bytes - at);
  memcpy(out_too + at, &x, bytes - at);
}

#define HALF_LOOP(name, s)                                                                                                                \
  KERNEL static void name(void *target, void *also, const void *a, const void *b, size_t count)                                           \
  {                                                                                                                                       \
    loop(s, target, also, a, b, count, 1, 1);                                                                                             \
  }
HALF_LOOP(sum_f16, SUM)
HALF_LOOP(prod_f16, PROD)
HALF_LOOP(max_f16, MAX)
HALF_LOOP(min_f16, MIN)

KERNEL static void scale_f16(void *target, const void *a, size_t count, uint64_t scalar)
{
  loop(SCALE, target, target, a, a, count, nh_from_half((uint16_t)scalar), 1);
}

KERNEL static void scaled_sum_f16(void *target, void *also, const void *a, const void *b, size_t count, uint64_t scalar_a, uint64_t scalar_b)
{
  loop(SCALED_SUM, target, also, a, b, count, nh_from_half((uint16_t)scalar_a), nh_from_half((uint16_t)scalar_b));
}
