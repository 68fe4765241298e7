/* Floats of 8 bits: two of them have 65,536 pairs, so every operation is a table, made when the type is first used. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>

#include "reduce.h"
#include "reduce_float.h"

enum { VALUES = 256, OPS = 4 };

typedef struct {
  float (*from)(uint8_t);
  uint8_t (*to)(float);
  uint8_t (*result)[VALUES][VALUES]; /* by op */
} nh_table;

static uint8_t e4m3_results[OPS][VALUES][VALUES], e5m2_results[OPS][VALUES][VALUES];
static const nh_table e4m3 = {nh_from_e4m3, nh_to_e4m3, e4m3_results}, e5m2 = {nh_from_e5m2, nh_to_e5m2, e5m2_results};

/* An operation is made in half, and half becomes 8 bits with saturation. */
static void make(const nh_table *table)
{
  float all[VALUES], a[VALUES];
  for (int i = 0; i < VALUES; i++) all[i] = table->from((uint8_t)i);
  for (int op = 0; op < OPS; op++)
    for (int i = 0; i < VALUES; i++) {
      for (int k = 0; k < VALUES; k++) a[k] = all[i];
      nh_kernels_plain.arithmetic[ncclFloat32].binary[op](a, a, a, all, VALUES);
      for (int k = 0; k < VALUES; k++) table->result[op][i][k] = table->to(nh_from_half(nh_to_half(a[k])));
    }
}

static void combine(const nh_table *table, int op, uint8_t *target, uint8_t *also, const uint8_t *a, const uint8_t *b, size_t count)
{
  for (size_t i = 0; i < count; i++) target[i] = also[i] = table->result[op][a[i]][b[i]];
}

static void scale(const nh_table *table, uint8_t *target, const uint8_t *a, size_t count, uint64_t scalar)
{
  const uint8_t *products = table->result[ncclProd][scalar & 0xff];
  for (size_t i = 0; i < count; i++) target[i] = products[a[i]];
}

static void scaled_sum(const nh_table *table, uint8_t *target, uint8_t *also, const uint8_t *a, const uint8_t *b, size_t count,
                       uint64_t scalar_a, uint64_t scalar_b)
{
  const uint8_t *products_a = table->result[ncclProd][scalar_a & 0xff], *products_b = table->result[ncclProd][scalar_b & 0xff];
  for (size_t i = 0; i < count; i++) target[i] = also[i] = table->result[ncclSum][products_a[a[i]]][products_b[b[i]]];
}

#define BINARY(table, name, op)                                                                                                           \
  static void name##_##table(void *target, void *also, const void *a, const void *b, size_t count)                                        \
  {                                                                                                                                       \
    combine(&table, op, target, also, a, b, count);                                                                                       \
  }

#define TABLE(table)                                                                                                                      \
  BINARY(table, sum, ncclSum)                                                                                                             \
  BINARY(table, prod, ncclProd)                                                                                                           \
  BINARY(table, max, ncclMax)                                                                                                             \
  BINARY(table, min, ncclMin)                                                                                                             \
  static void scale_##table(void *target, const void *a, size_t count, uint64_t scalar)                                                   \
  {                                                                                                                                       \
    scale(&table, target, a, count, scalar);                                                                                              \
  }                                                                                                                                       \
  static void scaled_sum_##table(void *target, void *also, const void *a, const void *b, size_t count, uint64_t scalar_a, uint64_t scalar_b)\
  {                                                                                                                                       \
    scaled_sum(&table, target, also, a, b, count, scalar_a, scalar_b);                                                                    \
  }                                                                                                                                       \
  static void make_##table(void)                                                                                                          \
  {                                                                                                                                       \
    make(&table);                                                                                                                         \
  }                                                                                                                                       \
  static const nh_arithmetic arithmetic_##table = {                                                                                       \
    .binary = {sum_##table, prod_##table, max_##table, min_##table}, .scale = scale_##table, .scaled_sum = scaled_sum_##table,            \
  };                                                                                                                                      \
  static pthread_once_t once_##table = PTHREAD_ONCE_INIT;

TABLE(e4m3)
TABLE(e5m2)

const nh_arithmetic *nh_float8(int type)
{
  if (type == ncclFloat8e4m3) {
    pthread_once(&once_e4m3, make_e4m3);
    return &arithmetic_e4m3;
  }
  pthread_once(&once_e5m2, make_e5m2);
  return &arithmetic_e5m2;
}
