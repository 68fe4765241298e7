/* Floats of 16 and 8 bits, from and to float: exact one way, rounded to nearest even the other way. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Without branches, so that the compiler makes vectors of it. A format has f bits of fraction, exponents from 1 - bias, and below its
 * smallest normal number 2^(1 - bias) multiples of 2^(1 - bias - f), as float has f = 23 and bias = 127.
 */
#ifndef NH_REDUCE_FLOAT_H
#define NH_REDUCE_FLOAT_H
#include <stdint.h>
#include <string.h>

/* For all that follows in the file that includes this: loops become vectors, branches selections. Nobody looks at exception flags. */
#if defined __GNUC__ && !defined __clang__
#pragma GCC optimize("O3", "no-trapping-math")
#endif

/* A NaN that arithmetic makes has all bits set but the sign, in every format, as on CUDA devices. */
#define NH_NAN_BITS UINT32_C(0x7fffffff)

static inline uint32_t nh_bits(float value)
{
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static inline float nh_float(uint32_t bits)
{
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* magnitude: the bits without the sign. Not for what the format keeps for infinity and NaN. */
static inline float nh_widened(uint32_t magnitude, int fraction, int bias)
{
  float tiny = (float)(int32_t)magnitude * nh_float((uint32_t)(128 - bias - fraction) << 23);
  uint32_t normal = (magnitude << (23 - fraction)) + ((uint32_t)(127 - bias) << 23);
  return magnitude >> fraction ? nh_float(normal) : tiny;
}

/* The bits without the sign of the nearest value that fits, if exponents had no upper end: the caller cuts off. Not for NaN. */
static inline uint32_t nh_narrowed(uint32_t magnitude, int fraction, int bias)
{
  int shift = 23 - fraction;
  uint32_t half = (UINT32_C(1) << (shift - 1)) - 1, rebias = (uint32_t)(127 - bias) << 23;
  uint32_t normal = (magnitude - rebias + half + (magnitude >> shift & 1)) >> shift;
  /* The last place of the sum is the format's smallest number, and the sum is rounded to nearest even. */
  uint32_t unit = (uint32_t)(151 - bias - fraction) << 23;
  uint32_t tiny = nh_bits(nh_float(magnitude) + nh_float(unit)) - unit;
  return magnitude < ((uint32_t)(128 - bias) << 23) ? tiny : normal;
}

static inline float nh_with_sign(float magnitude, uint32_t sign)
{
  return nh_float(nh_bits(magnitude) | sign);
}

static inline float nh_from_half(uint16_t half)
{
  uint32_t magnitude = half & 0x7fffu;
  float value = magnitude >= 0x7c00 ? nh_float(magnitude << 13 | 0x7f800000) : nh_widened(magnitude, 10, 15);
  return nh_with_sign(value, (uint32_t)(half & 0x8000) << 16);
}

static inline uint16_t nh_to_half(float value)
{
  uint32_t magnitude = nh_bits(value) & 0x7fffffff, nearest = nh_narrowed(magnitude, 10, 15);
  nearest = nearest > 0x7c00 ? 0x7c00 : nearest;
  return (uint16_t)(magnitude > 0x7f800000 ? 0x7fff : (nh_bits(value) >> 16 & 0x8000) | nearest);
}

static inline float nh_from_bfloat(uint16_t bfloat)
{
  return nh_float((uint32_t)bfloat << 16);
}

static inline uint16_t nh_to_bfloat(float value)
{
  uint32_t bits = nh_bits(value);
  return (uint16_t)(value != value ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float nh_from_e4m3(uint8_t small)
{
  uint32_t magnitude = small & 0x7fu;
  float value = magnitude == 0x7f ? nh_float(NH_NAN_BITS) : nh_widened(magnitude, 3, 7);
  return nh_with_sign(value, (uint32_t)(small & 0x80) << 24);
}

/* Saturates: what is larger than the largest number, and infinity, becomes that. */
static inline uint8_t nh_to_e4m3(float value)
{
  uint32_t magnitude = nh_bits(value) & 0x7fffffff, nearest = nh_narrowed(magnitude, 3, 7);
  nearest = nearest > 0x7e ? 0x7e : nearest;
  return (uint8_t)(magnitude > 0x7f800000 ? 0x7f : (nh_bits(value) >> 24 & 0x80) | nearest);
}

static inline float nh_from_e5m2(uint8_t small)
{
  return nh_from_half((uint16_t)(small << 8));
}

static inline uint8_t nh_to_e5m2(float value)
{
  uint32_t magnitude = nh_bits(value) & 0x7fffffff, nearest = nh_narrowed(magnitude, 2, 15);
  nearest = nearest > 0x7b ? 0x7b : nearest;
  return (uint8_t)(magnitude > 0x7f800000 ? 0x7f : (nh_bits(value) >> 24 & 0x80) | nearest);
}

#endif
