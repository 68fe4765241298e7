/* The loops, included once for each instruction set: KERNEL is what its functions are marked with, KERNELS the table they go into. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "reduce.h"
#include "reduce_float.h"

/* Memory of any type at any address. */
#define ANYWHERE __attribute__((aligned(1), may_alias))
typedef int8_t ANYWHERE i8;
typedef uint8_t ANYWHERE u8;
typedef uint16_t ANYWHERE u16;
typedef int32_t ANYWHERE i32;
typedef uint32_t ANYWHERE u32;
typedef int64_t ANYWHERE i64;
typedef uint64_t ANYWHERE u64;
typedef float ANYWHERE f32;
typedef double ANYWHERE f64;

#if defined __clang__
#define ANY_ORDER _Pragma("clang loop vectorize(assume_safety)")
#else
#define ANY_ORDER _Pragma("GCC ivdep")
#endif
#define EACH(i, count) ANY_ORDER for (size_t i = 0; i < (count); i++)

#define BINARY(name, T, COMBINE)                                                                                                          \
  KERNEL static void name(void *target, void *also, const void *left, const void *right, size_t count)                                    \
  {                                                                                                                                       \
    T *out = target, *out_too = also;                                                                                                     \
    const T *a = left, *b = right;                                                                                                        \
    EACH(i, count) out[i] = out_too[i] = COMBINE(a[i], b[i]);                                                                             \
  }

/* All loops of a type T whose bits are an S. product_x need not keep to the rule about NaN: there is a sum after it. */
#define LOOPS(x, T, S)                                                                                                                    \
  BINARY(sum_##x, T, add_##x)                                                                                                             \
  BINARY(prod_##x, T, multiply_##x)                                                                                                       \
  BINARY(max_##x, T, larger_##x)                                                                                                          \
  BINARY(min_##x, T, smaller_##x)                                                                                                         \
  KERNEL static void scale_##x(void *target, const void *source, size_t count, uint64_t scalar)                                           \
  {                                                                                                                                       \
    T *out = target, factor;                                                                                                              \
    const T *a = source;                                                                                                                  \
    memcpy(&factor, &(S){(S)scalar}, sizeof factor);                                                                                      \
    EACH(i, count) out[i] = multiply_##x(a[i], factor);                                                                                   \
  }                                                                                                                                       \
  KERNEL static void scaled_sum_##x(void *target, void *also, const void *left, const void *right, size_t count, uint64_t scalar_a,       \
                                    uint64_t scalar_b)                                                                                    \
  {                                                                                                                                       \
    T *out = target, *out_too = also, factor_a, factor_b;                                                                                 \
    const T *a = left, *b = right;                                                                                                        \
    memcpy(&factor_a, &(S){(S)scalar_a}, sizeof factor_a);                                                                                \
    memcpy(&factor_b, &(S){(S)scalar_b}, sizeof factor_b);                                                                                \
    EACH(i, count) out[i] = out_too[i] = add_##x(product_##x(a[i], factor_a), product_##x(b[i], factor_b));                               \
  }

/* U is unsigned and at least as wide as int, so that nothing overflows. A quotient in D, cut off, is exact. */
#define INTEGER(x, T, U, D)                                                                                                               \
  static inline T add_##x(T a, T b) { return (T)((U)a + (U)b); }                                                                          \
  static inline T multiply_##x(T a, T b) { return (T)((U)a * (U)b); }                                                                     \
  static inline T product_##x(T a, T b) { return multiply_##x(a, b); }                                                                    \
  static inline T larger_##x(T a, T b) { return a > b ? a : b; }                                                                          \
  static inline T smaller_##x(T a, T b) { return a < b ? a : b; }                                                                         \
  KERNEL static void divide_##x(void *target, const void *source, size_t count, int divisor)                                              \
  {                                                                                                                                       \
    T *out = target;                                                                                                                      \
    const T *a = source;                                                                                                                  \
    EACH(i, count) out[i] = (T)((D)a[i] / (D)divisor);                                                                                    \
  }                                                                                                                                       \
  LOOPS(x, T, T)

/* A NaN result has the same bits whatever the processor makes of it; a NaN loses against a number; +0 is above -0. */
#define FLOATING(x, T, S, NAN_BITS)                                                                                                       \
  static inline S bits_##x(T value) { S bits; memcpy(&bits, &value, sizeof bits); return bits; }                                          \
  static inline T value_##x(S bits) { T value; memcpy(&value, &bits, sizeof value); return value; }                                       \
  static inline T clean_##x(T value) { return value != value ? value_##x(NAN_BITS) : value; }                                             \
  static inline T add_##x(T a, T b) { return clean_##x(a + b); }                                                                          \
  static inline T multiply_##x(T a, T b) { return clean_##x(a * b); }                                                                     \
  static inline T product_##x(T a, T b) { return a * b; }                                                                                 \
  static inline T larger_##x(T a, T b)                                                                                                    \
  {                                                                                                                                       \
    T number = ((a > b) | (b != b)) ? a : b;                                                                                              \
    return clean_##x(a == b ? value_##x(bits_##x(a) & bits_##x(b)) : number);                                                             \
  }                                                                                                                                       \
  static inline T smaller_##x(T a, T b)                                                                                                   \
  {                                                                                                                                       \
    T number = ((a < b) | (b != b)) ? a : b;                                                                                              \
    return clean_##x(a == b ? value_##x(bits_##x(a) | bits_##x(b)) : number);                                                             \
  }                                                                                                                                       \
  LOOPS(x, T, S)

/* What is computed in float. */
#define SMALL(x, T, FROM, TO)                                                                                                             \
  static inline T add_##x(T a, T b) { return TO(add_f32(FROM(a), FROM(b))); }                                                             \
  static inline T multiply_##x(T a, T b) { return TO(multiply_f32(FROM(a), FROM(b))); }                                                   \
  static inline T product_##x(T a, T b) { return multiply_##x(a, b); }                                                                    \
  static inline T larger_##x(T a, T b) { return TO(larger_f32(FROM(a), FROM(b))); }                                                       \
  static inline T smaller_##x(T a, T b) { return TO(smaller_f32(FROM(a), FROM(b))); }                                                     \
  LOOPS(x, T, T)

INTEGER(i8, i8, unsigned, float)
INTEGER(u8, u8, unsigned, float)
INTEGER(i32, i32, uint32_t, double)
INTEGER(u32, u32, uint32_t, double)
INTEGER(i64, i64, uint64_t, int64_t)
INTEGER(u64, u64, uint64_t, uint64_t)
FLOATING(f32, f32, uint32_t, NH_NAN_BITS)
FLOATING(f64, f64, uint64_t, UINT64_C(0x7fffffffffffffff))
SMALL(bf16, u16, nh_from_bfloat, nh_to_bfloat)
#ifndef LANES
SMALL(f16, u16, nh_from_half, nh_to_half)
#endif

#define ARITHMETIC(x) .binary = {sum_##x, prod_##x, max_##x, min_##x}, .scale = scale_##x, .scaled_sum = scaled_sum_##x
#define INTEGERS(x) {ARITHMETIC(x), .divide = divide_##x}

const nh_kernels KERNELS = {
  .name = KERNELS_NAME,
  .arithmetic = {
    [ncclInt8] = INTEGERS(i8), [ncclUint8] = INTEGERS(u8), [ncclInt32] = INTEGERS(i32), [ncclUint32] = INTEGERS(u32),
    [ncclInt64] = INTEGERS(i64), [ncclUint64] = INTEGERS(u64), [ncclFloat16] = {ARITHMETIC(f16)}, [ncclFloat32] = {ARITHMETIC(f32)},
    [ncclFloat64] = {ARITHMETIC(f64)}, [ncclBfloat16] = {ARITHMETIC(bf16)},
  },
};
