/* Scenes of what communicators are made of and become: split, shrink, grow, several in one thread, non-blocking ones. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <sched.h>

#include "driver.h"

static void sum(ncclComm_t comm, size_t count)
{
  int nranks;
  float *one = numbers(count, 1, false);
  CHECK(ncclCommCount(comm, &nranks));
  CHECK(ncclAllReduce(one, one, count, ncclFloat32, ncclSum, comm, NULL));
  ENSURE(one[0] == (float)nranks);
  drop(one, false);
}

static void splits(actor *me)
{
  ncclComm_t half = NULL, again = NULL, none = NULL;
  CHECK(ncclCommSplit(me->comm, me->rank / 2, -me->rank, &half, NULL));
  sum(half, LARGE);
  CHECK(ncclCommSplit(half, 0, me->rank, &again, NULL));
  CHECK(ncclCommSplit(me->comm, me->rank == 1 ? NCCL_SPLIT_NOCOLOR : 0, 0, &none, NULL));
  ENSURE((none == NULL) == (me->rank == 1));
  CHECK(ncclGroupStart());
  float one = 1, two = 1;
  CHECK(ncclAllReduce(&one, &one, 1, ncclFloat32, ncclSum, half, NULL));
  CHECK(ncclAllReduce(&two, &two, 1, ncclFloat32, ncclSum, me->comm, NULL));
  CHECK(ncclGroupEnd());
  CHECK(ncclCommDestroy(half));
  sum(again, SMALL);
  CHECK(ncclCommDestroy(again));
  if (none) sum(none, MIDDLE);
  CHECK(ncclCommDestroy(none));
}

static void shrinks(actor *me)
{
  ncclComm_t three = NULL, two = NULL;
  int last[] = {N - 1, N - 1}, first[] = {0};
  if (me->rank != N - 1) {
    CHECK(ncclCommShrink(me->comm, last, 2, &three, NULL, NCCL_SHRINK_DEFAULT));
    sum(three, MIDDLE);
    if (me->rank != 0) CHECK(ncclCommShrink(three, first, 1, &two, NULL, NCCL_SHRINK_ABORT));
    if (two) sum(two, LARGE);
    CHECK(ncclCommDestroy(two));
    CHECK(ncclCommDestroy(three));
  }
  sum(me->comm, SMALL);
}

static ncclUniqueId shared_id;

static void grows(actor *me)
{
  ncclComm_t pair = NULL, grown = NULL;
  CHECK(ncclCommSplit(me->comm, me->rank < 2 ? 0 : NCCL_SPLIT_NOCOLOR, 0, &pair, NULL));
  if (me->rank == 1) CHECK(ncclCommGetUniqueId(pair, &shared_id));
  together();
  CHECK(ncclCommGrow(pair, N, me->rank == 1 || !pair ? &shared_id : NULL, pair ? -1 : me->rank, &grown, NULL));
  sum(grown, LARGE);
  CHECK(ncclCommDestroy(pair));
  sum(grown, SMALL);
  CHECK(ncclCommDestroy(grown));
}

static void one_thread(actor *me)
{
  ncclComm_t both[2];
  float *buffer = numbers(LARGE, me->rank, false), *other = numbers(LARGE, me->rank, false);
  CHECK(ncclCommInitAll(both, 2, NULL));
  for (int round = 0; round < 5; round++) {
    CHECK(ncclGroupStart());
    CHECK(ncclAllReduce(buffer, buffer, LARGE, ncclFloat32, ncclMax, both[0], NULL));
    CHECK(ncclAllReduce(other, other, LARGE, ncclFloat32, ncclMax, both[1], NULL));
    CHECK(ncclSend(buffer, SMALL, ncclFloat32, 1, both[0], NULL));
    CHECK(ncclRecv(other, SMALL, ncclFloat32, 0, both[1], NULL));
    CHECK(ncclGroupEnd());
  }
  CHECK(ncclCommDestroy(both[0]));
  CHECK(ncclCommDestroy(both[1]));
  drop(buffer, false);
  drop(other, false);
}

static void many(actor *me)
{
  enum { MANY = 6, ROUNDS = 12 };
  ncclComm_t comms[MANY];
  for (int round = 0; round < ROUNDS; round++) {
    if (me->rank == 0)
      for (int i = 0; i < MANY; i++) CHECK(ncclGetUniqueId(&ids[i]));
    together();
    CHECK(ncclGroupStart());
    for (int i = 0; i < MANY; i++) CHECK(ncclCommInitRankScalable(&comms[i], N, (me->rank + i) % N, 1, &ids[i], NULL));
    CHECK(ncclGroupEnd());
    for (int i = 0; i < MANY; i++) sum(comms[i], SMALL);
    for (int i = 0; i < MANY; i++) CHECK(ncclCommDestroy(comms[(i + me->rank) % MANY]));
    together();
  }
}

static ncclConfig_t non_blocking(void)
{
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

static void in_background(actor *me)
{
  ncclComm_t comm, half;
  ncclConfig_t config = non_blocking();
  ncclWindow_t window;
  float *one = numbers(LARGE, me->rank, false), *arena = numbers(LARGE, me->rank, true);
  EXPECT(ncclInProgress, ncclCommInitRankConfig(&comm, N, ids[1], me->rank, &config));
  EXPECT(ncclSuccess, polled(comm));
  for (int round = 0; round < 20; round++) {
    ncclResult_t result = ncclAllReduce(one, one, round % 2 ? LARGE : SMALL, ncclFloat32, ncclMax, comm, NULL);
    ENSURE(result == ncclInProgress);
    EXPECT(ncclSuccess, polled(comm));
    ENSURE(one[0] == N - 1);
    CHECK(ncclGroupStart());
    EXPECT(ncclSuccess, ncclSend(one, MIDDLE, ncclFloat32, me->rank ^ 1, comm, NULL));
    EXPECT(ncclSuccess, ncclRecv(arena, MIDDLE, ncclFloat32, me->rank ^ 1, comm, NULL));
    EXPECT(ncclInProgress, ncclGroupEnd());
    EXPECT(ncclSuccess, polled(comm));
  }
  CHECK(ncclCommSplit(comm, me->rank % 2, 0, &half, NULL));
  EXPECT(ncclSuccess, polled(comm));
  CHECK(ncclCommWindowRegister(comm, arena, LARGE * sizeof *arena, &window, NCCL_WIN_DEFAULT));
  EXPECT(ncclSuccess, polled(comm));
  EXPECT(ncclInProgress, ncclAllReduce(one, one, LARGE, ncclFloat32, ncclMax, half, NULL));
  CHECK(ncclCommDestroy(half)); /* finishes first */
  EXPECT(ncclInProgress, ncclCommFinalize(comm));
  EXPECT(ncclSuccess, polled(comm));
  CHECK(ncclCommDestroy(comm));
  drop(one, false);
  drop(arena, true);
}

static void two_in_background(actor *me)
{
  ncclComm_t comms[2];
  ncclConfig_t config = non_blocking();
  float *one = numbers(LARGE, me->rank, false), *two = numbers(LARGE, me->rank, false);
  CHECK(ncclGroupStart());
  for (int i = 0; i < 2; i++) EXPECT(ncclSuccess, ncclCommInitRankConfig(&comms[i], N, ids[1 + i], me->rank, &config));
  EXPECT(ncclInProgress, ncclGroupEnd());
  for (int i = 0; i < 2; i++) EXPECT(ncclSuccess, polled(comms[i]));
  for (int round = 0; round < 10; round++) {
    CHECK(ncclGroupStart());
    EXPECT(ncclSuccess, ncclAllReduce(one, one, LARGE, ncclFloat32, ncclMax, comms[0], NULL));
    EXPECT(ncclSuccess, ncclAllReduce(two, two, MIDDLE, ncclFloat32, ncclMax, comms[1], NULL));
    EXPECT(ncclInProgress, ncclGroupEnd());
    for (int i = 0; i < 2; i++) EXPECT(ncclSuccess, polled(comms[i]));
  }
  ENSURE(one[0] == N - 1 && two[0] == N - 1);
  for (int i = 0; i < 2; i++) CHECK(ncclCommDestroy(comms[i]));
  drop(one, false);
  drop(two, false);
}

static void questions(actor *me)
{
  int answer;
  uint64_t total;
  ncclSimInfo_t simulated = NCCL_SIM_INFO_INITIALIZER;
  ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
  float one = 1;
  CHECK(ncclCommUserRank(me->comm, &answer));
  ENSURE(answer == me->rank);
  CHECK(ncclCommCuDevice(me->comm, &answer));
  CHECK(ncclCommMemStats(me->comm, ncclStatGpuMemTotal, &total));
  CHECK(ncclCommQueryProperties(me->comm, &properties));
  CHECK(ncclGroupStart());
  CHECK(ncclAllReduce(&one, &one, 1, ncclFloat32, ncclSum, me->comm, NULL));
  CHECK(ncclGroupSimulateEnd(&simulated));
  CHECK(ncclCommSuspend(me->comm, NCCL_SUSPEND_MEM));
  EXPECT(ncclInvalidUsage, ncclAllReduce(&one, &one, 1, ncclFloat32, ncclSum, me->comm, NULL));
  CHECK(ncclCommResume(me->comm));
  sum(me->comm, 1);
}

/* Whoever of two threads is not refused, as the other is inside, comes and calls. */
static void *takes_turns(void *argument)
{
  ncclComm_t comm = argument;
  for (int call = 0; call < 100; call++) {
    int all;
    float one = 1;
    ncclResult_t result = nickelCommCome(comm, call % 3 - 1, &all);
    ENSURE(result == ncclSuccess || result == ncclInvalidUsage);
    do result = ncclAllReduce(&one, &one, 1, ncclFloat32, ncclSum, comm, NULL);
    while (result == ncclInvalidUsage && sched_yield() == 0);
    CHECK(result);
    ENSURE(one == N);
  }
  return NULL;
}

static void turns(actor *me)
{
  pthread_t other = aside(takes_turns, me->comm);
  takes_turns(me->comm);
  pthread_join(other, NULL);
}

void play_lives(void)
{
  play("splits", splits, true);
  play("shrinks", shrinks, true);
  play("grows", grows, true);
  play("one_thread", one_thread, false);
  play("many", many, false);
  play("in_background", in_background, false);
  play("two_in_background", two_in_background, false);
  play("questions", questions, true);
  play("turns", turns, true);
}
