/* This process: one lock for all its lists, held across fork, and the generation that tells a forked child from its parent. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "host.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned generation;     /* written in a forked child before it has a second thread */

void nh_lock(void)
{
  pthread_mutex_lock(&lock);
}

void nh_unlock(void)
{
  pthread_mutex_unlock(&lock);
}

unsigned nh_generation(void)
{
  return generation;
}

/* The child has no part in what its parent shares with others: it forgets it, and closes its copies of the descriptors. */
static void in_child(void)
{
  generation++;
  nh_segments_forked();
  nh_arenas_forked();
  nh_group_forked();
  nh_unlock();
}

__attribute__((constructor)) static void watch_forks(void)
{
  pthread_atfork(nh_lock, nh_unlock, in_child);
}
