/* Copies between ranks: past the caches where all that is moved is more than they hold. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An ordinary store first fetches the line that it overwrites. Where buffers are larger than the caches that is a third of the traffic, and the
 * lines push out what was about to be read. Stores that go past the caches save both; where the buffers fit they would cost more.
 */
#include <string.h>
#if defined __x86_64__
#include <emmintrin.h>
#endif

#include "host.h"

enum { LAST_CACHE = 32 << 20 };         /* bytes; of most processors whose cores share one */

bool nh_beyond_caches(size_t bytes, int nranks)
{
  return bytes > LAST_CACHE / (size_t)nranks;
}

#if defined __x86_64__
static void copy_past(char *target, const char *source, size_t size)
{
  size_t head = -(uintptr_t)target % 64;
  if (head > size) head = size;
  memcpy(target, source, head);
  for (; head + 64 <= size; head += 64) {
    const __m128i *from = (const __m128i *)(source + head);
    __m128i *to = (__m128i *)(target + head), a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1), c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
  memcpy(target + head, source + head, size - head);
  _mm_sfence(); /* what follows may tell other ranks that it is there */
}
#endif

void nh_copy(void *target, const void *source, size_t size, bool beyond)
{
#if defined __x86_64__
  if (beyond && size >= 4096) {
    copy_past(target, source, size);
    return;
  }
#endif
  (void)beyond;
  memcpy(target, source, size);
}
