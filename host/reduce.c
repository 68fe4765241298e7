/* The arithmetic: left folds in rank order, rounded to the element type after each step, the same bits on every path. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Integers wrap. ncclAvg multiplies each floating input by 1/n rounded to the type, rounds the product and adds; for integers it divides
 * the wrapped sum, truncating toward zero. PreMulSum multiplies each input by its rank's scalar. The README has the rest ("Arithmetic").
 * Nothing here is shared or blocks.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#if defined __x86_64__
#include <cpuid.h>
#include <xmmintrin.h>
#endif

#include "host.h"
#include "reduce.h"
#include "reduce_float.h"

enum { BLOCK = 4096 };          /* bytes of an intermediate result */

/* ---- which loops ---- */

static const nh_kernels *kernels = &nh_kernels_plain;
static pthread_once_t chosen = PTHREAD_ONCE_INIT;

#if defined __x86_64__
static bool has_f16c(void)
{
  unsigned a, b, c = 0, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

/* The best that this processor has, or that NICKEL_KERNELS allows: the order is plain, avx2, avx512. */
static void choose_x86(void)
{
  const char *most = getenv("NICKEL_KERNELS");
  if (most && !strcmp(most, "plain")) return;
  if (most && *most && strcmp(most, "avx2") && strcmp(most, "avx512"))
    nh_refuse_value("NICKEL_KERNELS", most, "plain, avx2 or avx512", "the best loops of this processor are taken");
  if (!__builtin_cpu_supports("avx2") || !has_f16c()) return;
  kernels = &nh_kernels_avx2;
  if (most && !strcmp(most, "avx2")) return;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    kernels = &nh_kernels_avx512;
}
#endif

static void choose(void)
{
#if defined __x86_64__
  choose_x86();
#endif
  nh_info(0, "reductions use the %s loops", kernels->name);
}

/* ---- the thread's rounding: to nearest even, with subnormal numbers, whatever the program has set ---- */

#if defined __x86_64__
enum { USUAL = 0x1f80, FLAGS = 0x3f };

static uint64_t usual_rounding(void)
{
  uint32_t before = _mm_getcsr();
  if ((before & ~(uint32_t)FLAGS) != USUAL) _mm_setcsr(USUAL);
  return before;
}

static void restore_rounding(uint64_t before)
{
  if (((uint32_t)before & ~(uint32_t)FLAGS) != USUAL) _mm_setcsr((uint32_t)before);
}
#elif defined __aarch64__
static uint64_t usual_rounding(void)
{
  uint64_t before;
  __asm__ volatile("mrs %0, fpcr" : "=r"(before));
  if (before) __asm__ volatile("msr fpcr, %0" : : "r"(UINT64_C(0)) : "memory");
  return before;
}

static void restore_rounding(uint64_t before)
{
  if (before) __asm__ volatile("msr fpcr, %0" : : "r"(before) : "memory");
}
#else
static uint64_t usual_rounding(void)
{
  return 0;
}

static void restore_rounding(uint64_t before)
{
  (void)before;
}
#endif

/* ---- types ---- */

size_t nh_type_size(int type)
{
  static const uint8_t sizes[ncclNumTypes] = {
    [ncclInt8] = 1, [ncclUint8] = 1, [ncclInt32] = 4, [ncclUint32] = 4, [ncclInt64] = 8, [ncclUint64] = 8, [ncclFloat16] = 2,
    [ncclFloat32] = 4, [ncclFloat64] = 8, [ncclBfloat16] = 2, [ncclFloat8e4m3] = 1, [ncclFloat8e5m2] = 1,
  };
  return sizes[type];
}

static const nh_arithmetic *arithmetic_of(int type)
{
  return type == ncclFloat8e4m3 || type == ncclFloat8e5m2 ? nh_float8(type) : &kernels->arithmetic[type];
}

/* The bits of 1 / n, rounded to the type; of 1 for integers and n == 1. */
static uint64_t reciprocal(int type, int n)
{
  uint64_t bits;
  double exact = 1.0 / n;
  float value = (float)exact;
  switch (type) {
  case ncclFloat16: return nh_to_half(value);
  case ncclFloat32: return nh_bits(value);
  case ncclFloat64: memcpy(&bits, &exact, sizeof bits); return bits;
  case ncclBfloat16: return nh_to_bfloat(value);
  case ncclFloat8e4m3: return nh_to_e4m3(value);
  case ncclFloat8e5m2: return nh_to_e5m2(value);
  default: return 1;
  }
}

/* ---- folding ---- */

typedef struct {
  const nh_arithmetic *arithmetic;
  int n, op;
  size_t size;
  bool scaled, divided;
  const uint64_t *scalars;      /* one per source, or NULL: all are factor */
  uint64_t factor, one;
} nh_folding;

static uint64_t scalar_of(const nh_folding *f, int rank)
{
  return f->scalars ? f->scalars[rank] : f->factor;
}

/* What the sources before `rank` have given, and that one. */
static void add(const nh_folding *f, char *target, char *also, const char *so_far, const char *next, int rank, size_t count)
{
  if (f->scaled) f->arithmetic->scaled_sum(target, also, so_far, next, count, rank == 1 ? scalar_of(f, 0) : f->one, scalar_of(f, rank));
  else f->arithmetic->binary[f->op](target, also, so_far, next, count);
}

static void fold_block(const nh_folding *f, char *target, char *also, const char *const *sources, size_t offset, size_t count)
{
  _Alignas(64) char work[BLOCK];
  const char *so_far = sources[0] + offset;
  for (int rank = 1; rank < f->n; rank++) {
    bool last = rank + 1 == f->n && !f->divided;
    add(f, last ? target : work, last ? also : work, so_far, sources[rank] + offset, rank, count);
    so_far = work;
  }
  if (!f->divided) return;
  f->arithmetic->divide(target, so_far, count, f->n);
  if (also != target) memcpy(also, target, count * f->size);
}

static void fold(const nh_folding *f, char *target, char *also, const char *const *sources, size_t count)
{
  if (f->n == 2 && !f->divided) {
    add(f, target, also, sources[0], sources[1], 1, count);
    return;
  }
  size_t most = BLOCK / f->size;
  for (size_t at = 0; at < count; at += most)
    fold_block(f, target + at * f->size, also + at * f->size, sources, at * f->size, count - at < most ? count - at : most);
}

/* With one source nothing is computed, but PreMulSum multiplies. */
static void copy(const nh_folding *f, char *target, char *also, const char *source, size_t count)
{
  if (f->scalars) f->arithmetic->scale(target, source, count, f->scalars[0]);
  else if (target != source) memcpy(target, source, count * f->size);
  if (also != target) memcpy(also, target, count * f->size);
}

/* Not inlined: nothing of it may be done before the rounding is set. */
static __attribute__((noinline)) void fold_usual(char *target, char *also, const char *const *sources, int n, size_t count, int type,
                                                 int redop, const uint64_t *scalars)
{
  const nh_arithmetic *arithmetic = arithmetic_of(type);
  bool average = redop == ncclAvg, integer = arithmetic->divide != NULL;
  nh_folding f = {.arithmetic = arithmetic, .n = n, .op = average ? ncclSum : redop, .size = nh_type_size(type), .scalars = scalars,
                  .scaled = scalars || (average && !integer), .divided = average && integer};
  if (f.scaled) {
    f.factor = reciprocal(type, n);
    f.one = reciprocal(type, 1);
  }
  if (n > 1) fold(&f, target, also, sources, count);
  else copy(&f, target, also, sources[0], count);
}

void nh_fold_both(void *target, void *also, const char *const *sources, int n, size_t count, int type, int redop, const uint64_t *scalars)
{
  pthread_once(&chosen, choose);
  uint64_t before = usual_rounding();
  fold_usual(target, also, sources, n, count, type, redop, scalars);
  restore_rounding(before);
}

void nh_fold(void *target, const char *const *sources, int n, size_t count, int type, int redop, const uint64_t *scalars)
{
  nh_fold_both(target, target, sources, n, count, type, redop, scalars);
}

void nh_scale(void *target, const void *source, size_t count, int type, uint64_t scalar)
{
  pthread_once(&chosen, choose);
  uint64_t before = usual_rounding();
  arithmetic_of(type)->scale(target, source, count, scalar);
  restore_rounding(before);
}
