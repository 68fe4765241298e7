/* Cores: which ones ranks may use, and leaving one that two of them share while another is idle. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel spreads threads over cores when they wake, and looks for an idle core less eagerly the fewer there are: on a machine of two, ranks
 * that began on one core can stay there together for seconds, each waiting for the other's turn, and everything takes twice as long.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "host.h"

enum { MOST = 65536 };                  /* cores that the kernel may tell of */
static const double LOOK_AGAIN = 0.03, TOO_OLD = 1; /* seconds; the kernel counts idle time in hundredths */

/* Cores at a time that the cgroup allows; many if it does not say. */
static uint32_t cgroup_quota(void)
{
  double quota, period;
  FILE *file = fopen("/sys/fs/cgroup/cpu.max", "re");
  if (!file) return NH_CORES;
  bool limited = fscanf(file, "%lf %lf", &quota, &period) == 2 && period > 0;
  fclose(file);
  if (!limited || quota / period > NH_CORES) return NH_CORES;
  return quota < period ? 1 : (uint32_t)(quota / period);
}

void nh_tell_cores(nh_rank *mine)
{
  uint64_t set[MOST / 64] = {0};
  mine->quota = cgroup_quota();
  if (sched_getaffinity(0, sizeof set, (cpu_set_t *)set) != 0) set[0] = 1;
  for (int i = 0; i < MOST / 64; i++) mine->cores[i % (NH_CORES / 64)] |= set[i];
}

/* Cores that the ranks have together. A launcher may have given each of them one of its own. */
int nh_cores(ncclComm_t comm)
{
  uint64_t together[NH_CORES / 64] = {0};
  uint32_t quota = NH_CORES;
  int cores = 0;
  for (int rank = 0; rank < comm->nranks; rank++) {
    const nh_rank *one = nh_rank_at(comm->head, rank);
    if (one->quota < quota) quota = one->quota;
    for (int i = 0; i < NH_CORES / 64; i++) together[i] |= one->cores[i];
  }
  for (int i = 0; i < NH_CORES / 64; i++) cores += __builtin_popcountll(together[i]);
  return (uint32_t)cores < quota ? cores : (int)quota;
}


/* ---- moving on ---- */

/* Hundredths of a second that each core has been idle. */
static void read_idle(uint64_t idle[NH_CORES])
{
  char line[512];
  int core;
  unsigned long count;
  memset(idle, 0, NH_CORES * sizeof *idle);
  FILE *file = fopen("/proc/stat", "re");
  while (file && fgets(line, sizeof line, file) && strncmp(line, "cpu", 3) == 0)
    if (line[3] != ' ' && sscanf(line, "cpu%d %*u %*u %*u %lu", &core, &count) == 2 && core >= 0 && core < NH_CORES) idle[core] = count;
  if (file) fclose(file);
}

static bool has_rank(ncclComm_t comm, int core)
{
  for (int rank = 0; rank < comm->nranks; rank++)
    if (nh_core_of(comm, rank) == core) return true;
  return false;
}

/* The core without a rank that was idle longest, if for most of the time; or -1. */
static int idlest(ncclComm_t comm, const uint64_t *may, const uint64_t *before, const uint64_t *now, double seconds)
{
  int best = -1;
  double most = seconds * (double)sysconf(_SC_CLK_TCK) / 2;
  for (int core = 0; core < NH_CORES; core++) {
    if (!(may[core / 64] >> core % 64 & 1) || now[core] < before[core] || (double)(now[core] - before[core]) <= most || has_rank(comm, core)) continue;
    most = (double)(now[core] - before[core]);
    best = core;
  }
  return best;
}

static void go_to(int core, const uint64_t *may)
{
  uint64_t only[MOST / 64] = {0};
  only[core / 64] = UINT64_C(1) << core % 64;
  if (sched_setaffinity(0, sizeof only, (const cpu_set_t *)only) == 0) sched_setaffinity(0, sizeof only, (const cpu_set_t *)may);
}

/* Called by a rank that waits for one on its own core. Idle time is told between two calls of any thread of this process. */
void nh_move_on(ncclComm_t comm)
{
  static uint64_t before[NH_CORES];     /* this and the next: under nh_lock */
  static double looked;
  uint64_t may[MOST / 64] = {0}, idle[NH_CORES];
  int to = -1;
  nh_lock();
  double now = nh_now();
  if (now - looked >= LOOK_AGAIN && sched_getaffinity(0, sizeof may, (cpu_set_t *)may) == 0) {
    read_idle(idle);
    if (now - looked < TOO_OLD) to = idlest(comm, may, before, idle, now - looked);
    memcpy(before, idle, sizeof before);
    looked = now;
  }
  nh_unlock();
  if (to >= 0) go_to(to, may);
  nh_note_core(comm, sched_getcpu());
}
