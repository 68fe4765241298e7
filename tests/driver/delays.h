/* Delays where ranks can get in each other's way: included before host/*.c, whose ranks share nothing but atomic words. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Now and then a rank sleeps before or after a word is written, and seldom before one is read: from less than a time slice to more than the
 * time after which its peers look for reasons to stop waiting. A busy machine does the same, at places that are as hard to hit again.
 */
#ifndef NICKEL_DELAYS_H
#define NICKEL_DELAYS_H

#include <stdatomic.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

#define DELAY_WRITES 120
#define DELAY_READS 3000

static inline void nickel_delay(unsigned once_in)
{
  static _Thread_local uint64_t random;
  static _Thread_local pid_t pid; /* a forked child does not go on with its parent's numbers */
  if (pid != getpid()) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    pid = getpid();
    random = ((uint64_t)now.tv_nsec << 20 ^ (uint64_t)pid << 8 ^ (uint64_t)(uintptr_t)&random) | 1;
  }
  random ^= random << 13;
  random ^= random >> 7;
  random ^= random << 17;
  if ((random >> 20) % once_in) return;
  uint64_t share = (random >> 40) % 100;
  struct timespec pause = {.tv_nsec = share < 60 ? 20000 : share < 85 ? 300000 : share < 95 ? 3000000 : share < 99 ? 25000000 : 160000000};
  nanosleep(&pause, NULL);
}

#define NICKEL_LATE(result) ({ nickel_delay(DELAY_WRITES); __auto_type late = (result); nickel_delay(DELAY_WRITES); late; })

#undef atomic_load
#undef atomic_load_explicit
#undef atomic_store
#undef atomic_store_explicit
#undef atomic_fetch_add
#undef atomic_fetch_add_explicit
#undef atomic_fetch_sub
#undef atomic_fetch_or
#undef atomic_fetch_and
#undef atomic_compare_exchange_strong
#define atomic_load(word) (nickel_delay(DELAY_READS), __atomic_load_n(word, __ATOMIC_SEQ_CST))
#define atomic_load_explicit(word, order) (nickel_delay(DELAY_READS), __atomic_load_n(word, order))
#define atomic_store(word, value) (nickel_delay(DELAY_WRITES), __atomic_store_n(word, value, __ATOMIC_SEQ_CST), nickel_delay(DELAY_WRITES))
#define atomic_store_explicit(word, value, order) (nickel_delay(DELAY_WRITES), __atomic_store_n(word, value, order), nickel_delay(DELAY_WRITES))
#define atomic_fetch_add(word, value) NICKEL_LATE(__atomic_fetch_add(word, value, __ATOMIC_SEQ_CST))
#define atomic_fetch_add_explicit(word, value, order) NICKEL_LATE(__atomic_fetch_add(word, value, order))
#define atomic_fetch_sub(word, value) NICKEL_LATE(__atomic_fetch_sub(word, value, __ATOMIC_SEQ_CST))
#define atomic_fetch_or(word, value) NICKEL_LATE(__atomic_fetch_or(word, value, __ATOMIC_SEQ_CST))
#define atomic_fetch_and(word, value) NICKEL_LATE(__atomic_fetch_and(word, value, __ATOMIC_SEQ_CST))
#define atomic_compare_exchange_strong(word, expected, value) \
  NICKEL_LATE(__atomic_compare_exchange_n(word, expected, value, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))

#endif
