/* The arithmetic: left folds in rank order, rounded to the element type after each step, the same bits on every path. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Integers wrap: sums and products are made in the unsigned type. Maximum and minimum of floats are fmax and fmin: a NaN loses against a
 * number. ncclAvg multiplies each floating input by 1/n rounded to the type and adds; for integers it divides the wrapped sum, truncating
 * toward zero. Kernels are cloned for AVX2 and AVX-512; -ffp-contract=off keeps their bits equal.
 */
#pragma GCC optimize("O3")
#include <string.h>

#include "host.h"

#if defined __x86_64__ && !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
#define CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define CLONES
#endif

enum { BLOCK = 4096 };          /* bytes of an intermediate result */

typedef void nh_binary(void *target, const void *a, const void *b, size_t count);
typedef void nh_scaler(void *target, const void *a, size_t count, int nranks);

/* target may be a or b itself: element i depends on elements i alone. */
#define BINARY(name, T, expression)                                                                                                       \
  CLONES static void name(void *target, const void *left, const void *right, size_t count)                                                \
  {                                                                                                                                       \
    T *out = target;                                                                                                                      \
    const T *first = left, *second = right;                                                                                               \
    _Pragma("GCC ivdep") for (size_t i = 0; i < count; i++)                                                                              \
    {                                                                                                                                     \
      T a = first[i], b = second[i];                                                                                                      \
      out[i] = (T)(expression);                                                                                                           \
    }                                                                                                                                     \
  }

/* U is unsigned and at least as wide as int, so that nothing overflows. */
#define INTEGER(suffix, T, U)                                                                                                             \
  BINARY(sum_##suffix, T, (U)a + (U)b)                                                                                                    \
  BINARY(prod_##suffix, T, (U)a * (U)b)                                                                                                   \
  BINARY(max_##suffix, T, a > b ? a : b)                                                                                                  \
  BINARY(min_##suffix, T, a < b ? a : b)                                                                                                  \
  static void avg_##suffix(void *target, const void *source, size_t count, int nranks)                                                    \
  {                                                                                                                                       \
    T *out = target;                                                                                                                      \
    const T *in = source;                                                                                                                 \
    for (size_t i = 0; i < count; i++) out[i] = (T)((U)0 - 1 > 0 && (T)-1 > 0 ? (T)((unsigned long long)in[i] / (unsigned long long)nranks) : (T)((long long)in[i] / nranks));                                             \
  }

#define FLOATING(suffix, T)                                                                                                               \
  BINARY(sum_##suffix, T, a + b)                                                                                                          \
  BINARY(prod_##suffix, T, a * b)                                                                                                         \
  BINARY(max_##suffix, T, a >= b || b != b ? a : b)                                                                                       \
  BINARY(min_##suffix, T, a <= b || b != b ? a : b)                                                                                       \
  static void avg_##suffix(void *target, const void *source, size_t count, int nranks)                                                    \
  {                                                                                                                                       \
    T *out = target, factor = (T)1 / (T)nranks;                                                                                           \
    const T *in = source;                                                                                                                 \
    for (size_t i = 0; i < count; i++) out[i] = in[i] * factor;                                                                           \
  }

INTEGER(i8, int8_t, unsigned)
INTEGER(u8, uint8_t, unsigned)
INTEGER(i32, int32_t, uint32_t)
INTEGER(u32, uint32_t, uint32_t)
INTEGER(i64, int64_t, uint64_t)
INTEGER(u64, uint64_t, uint64_t)
FLOATING(f32, float)
FLOATING(f64, double)

typedef struct {
  size_t size;
  bool floating;
  nh_binary *binary[4];         /* by ncclSum, ncclProd, ncclMax, ncclMin; NULL: this type is only copied */
  nh_scaler *average;
} nh_type;

#define TYPE(T, floating, suffix) {sizeof(T), floating, {sum_##suffix, prod_##suffix, max_##suffix, min_##suffix}, avg_##suffix}

static const nh_type types[ncclNumTypes] = {
  [ncclInt8] = TYPE(int8_t, false, i8),       [ncclUint8] = TYPE(uint8_t, false, u8),
  [ncclInt32] = TYPE(int32_t, false, i32),    [ncclUint32] = TYPE(uint32_t, false, u32),
  [ncclInt64] = TYPE(int64_t, false, i64),    [ncclUint64] = TYPE(uint64_t, false, u64),
  [ncclFloat32] = TYPE(float, true, f32),     [ncclFloat64] = TYPE(double, true, f64),
  [ncclFloat16] = {.size = 2},                [ncclBfloat16] = {.size = 2},
  [ncclFloat8e4m3] = {.size = 1},             [ncclFloat8e5m2] = {.size = 1},
};

size_t nh_type_size(int type)
{
  return types[type].size;
}

bool nh_reducible(int type)
{
  return types[type].average != NULL;
}

/* One block that is no longer than BLOCK bytes; `work` and `scaled` are of that size. */
static void fold_block(char *target, const char *const *sources, int n, size_t offset, size_t count, const nh_type *type, int redop)
{
  char work[BLOCK], scaled[BLOCK];
  bool average = redop == ncclAvg, scale = average && type->floating;
  nh_binary *binary = type->binary[average ? ncclSum : redop];
  const char *so_far = sources[0] + offset;
  if (scale) {
    type->average(work, so_far, count, n);
    so_far = work;
  }
  for (int rank = 1; rank < n; rank++) {
    const char *next = sources[rank] + offset;
    if (scale) {
      type->average(scaled, next, count, n);
      next = scaled;
    }
    char *result = rank + 1 == n && !(average && !scale) ? target : work;
    binary(result, so_far, next, count);
    so_far = result;
  }
  if (average && !scale) type->average(target, so_far, count, n);
  else if (so_far != target) memcpy(target, so_far, count * type->size);
}

void nh_scale(void *t, const void *s, size_t c, int ty, uint64_t sc){(void)t;(void)s;(void)c;(void)ty;(void)sc;}
void nh_fold(void *target, const char *const *sources, int n, size_t count, int type_number, int redop, const uint64_t *scalars)
{(void)scalars;
  const nh_type *type = &types[type_number];
  if (n == 2 && redop != ncclAvg) {
    type->binary[redop](target, sources[0], sources[1], count);
    return;
  }
  for (size_t at = 0; at < count; at += BLOCK / type->size) {
    size_t length = count - at < BLOCK / type->size ? count - at : BLOCK / type->size;
    fold_block((char *)target + at * type->size, sources, n, at * type->size, length, type, redop);
  }
}
