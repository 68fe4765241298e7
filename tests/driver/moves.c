/* Scenes that move data: every collective, messages, groups, operations, windows; in each kind of memory, on each path. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "driver.h"

static const size_t counts[] = {SMALL, MIDDLE, LARGE};

static float sum_at(size_t i)
{
  float sum = 0;
  for (int rank = 0; rank < N; rank++) sum += (float)(rank + (int)(i % 64));
  return sum;
}

static void reductions(actor *me, size_t count, bool arena)
{
  float *one = numbers(count, me->rank, arena), *two = numbers(count, 0, arena), *all = numbers(count * N, me->rank, arena);
  CHECK(ncclAllReduce(one, two, count, ncclFloat32, ncclSum, me->comm, NULL));
  for (size_t i = 0; i < count; i++) ENSURE(two[i] == sum_at(i));
  CHECK(ncclReduce(one, two, count, ncclFloat32, ncclMax, 2, me->comm, NULL));
  ENSURE(me->rank != 2 || two[0] == N - 1);
  CHECK(ncclReduceScatter(all, two, count, ncclFloat32, ncclMin, me->comm, NULL));
  CHECK(ncclReduceScatter(all, all + (size_t)me->rank * count, count, ncclFloat32, ncclProd, me->comm, NULL));
  CHECK(ncclAllReduce(one, one, count, ncclFloat32, ncclAvg, me->comm, NULL));
  ENSURE(one[0] == 1.5f);
  drop(one, arena);
  drop(two, arena);
  drop(all, arena);
}

static void copies(actor *me, size_t count, bool arena)
{
  float *one = numbers(count, me->rank, arena), *all = numbers(count * N, me->rank, arena), *more = numbers(count * N, 0, arena);
  CHECK(ncclBroadcast(one, one, count, ncclFloat32, 1, me->comm, NULL));
  ENSURE(one[count - 1] == (float)(1 + (int)((count - 1) % 64)));
  CHECK(ncclAllGather(one, all, count, ncclFloat32, me->comm, NULL));
  CHECK(ncclAllGather(all + (size_t)me->rank * count, all, count, ncclFloat32, me->comm, NULL));
  CHECK(ncclAlltoAll(all, more, count, ncclFloat32, me->comm, NULL));
  CHECK(ncclGather(one, more, count, ncclFloat32, 3, me->comm, NULL));
  CHECK(ncclScatter(me->rank == 2 ? all : NULL, one, count, ncclFloat32, 2, me->comm, NULL));
  CHECK(ncclBcast(one, count, ncclFloat32, 0, me->comm, NULL));
  drop(one, arena);
  drop(all, arena);
  drop(more, arena);
}

static void collectives(actor *me)
{
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
    for (int arena = 0; arena < 2; arena++) {
      reductions(me, counts[i], arena);
      copies(me, counts[i], arena);
    }
}

static void mixed_memory(actor *me)
{
  float *one = numbers(LARGE, me->rank, me->rank % 2 == 0), *two = numbers(LARGE, 0, me->rank < 2);
  CHECK(ncclAllReduce(one, two, LARGE, ncclFloat32, ncclSum, me->comm, NULL));
  ENSURE(two[LARGE - 1] == sum_at(LARGE - 1));
  CHECK(ncclReduce(one, two, LARGE, ncclFloat32, ncclSum, 1, me->comm, NULL));
  drop(one, me->rank % 2 == 0);
  drop(two, me->rank < 2);
}

static void types(actor *me)
{
  enum { COUNT = 900 };
  _Alignas(64) char from[COUNT * 8], to[COUNT * 8];
  for (int type = 0; type < ncclNumTypes; type++)
    for (int op = 0; op < ncclNumOps; op++) {
      memset(from, 1 + me->rank, sizeof from);
      CHECK(ncclAllReduce(from, to, COUNT, type, op, me->comm, NULL));
      if (type == ncclInt8 || type == ncclUint8) CHECK(ncclAllReduce(from + 1, to + 1, COUNT, type, op, me->comm, NULL));
    }
}

static void operations(actor *me)
{
  float scalar = 2, result[SMALL];
  ncclRedOp_t immediate, device;
  void *handle = NULL;
  float *one = numbers(SMALL, me->rank, false);
  ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
  CHECK(ncclRedOpCreatePreMulSum(&immediate, &scalar, ncclFloat32, ncclScalarHostImmediate, me->comm));
  CHECK(ncclRedOpCreatePreMulSum(&device, &scalar, ncclFloat32, ncclScalarDevice, me->comm));
  CHECK(ncclCommRegister(me->comm, one, SMALL * sizeof *one, &handle));
  CHECK(ncclAllReduce(one, result, SMALL, ncclFloat32, immediate, me->comm, NULL));
  CHECK(ncclAllReduceConfig(one, result, SMALL, ncclFloat32, device, me->comm, NULL, &config));
  for (int i = 0; i < SMALL; i++) ENSURE(result[i] == 2 * sum_at((size_t)i));
  CHECK(ncclRedOpDestroy(immediate, me->comm));
  CHECK(ncclCommDeregister(me->comm, handle));
  drop(one, false);
}

static void messages(actor *me)
{
  int right = (me->rank + 1) % N, left = (me->rank + N - 1) % N;
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
    for (int arena = 0; arena < 4; arena++) {
      float *out = numbers(counts[i], me->rank, arena & 1), *in = numbers(counts[i], 0, arena & 2);
      CHECK(ncclGroupStart());
      CHECK(ncclSend(out, counts[i], ncclFloat32, right, me->comm, NULL));
      CHECK(ncclRecv(in, counts[i], ncclFloat32, left, me->comm, NULL));
      CHECK(ncclSend(out, counts[i], ncclFloat32, me->rank, me->comm, NULL));
      CHECK(ncclRecv(out, counts[i], ncclFloat32, me->rank, me->comm, NULL));
      CHECK(ncclGroupEnd());
      ENSURE(in[0] == (float)left);
      if (me->rank < 2) CHECK(me->rank ? ncclRecv(in, counts[i], ncclFloat32, 0, me->comm, NULL) : ncclSend(out, counts[i], ncclFloat32, 1, me->comm, NULL));
      drop(out, arena & 1);
      drop(in, arena & 2);
    }
}

static void groups(actor *me)
{
  ncclComm_t other;
  float *one = numbers(MIDDLE, me->rank, false), *two = numbers(LARGE, me->rank, false), *three = numbers(MIDDLE, me->rank, true);
  CHECK(ncclCommInitRank(&other, N, ids[1], N - 1 - me->rank));
  for (int round = 0; round < 20; round++) {
    CHECK(ncclGroupStart());
    CHECK(ncclAllReduce(one, one, MIDDLE, ncclFloat32, ncclMax, me->comm, NULL));
    CHECK(ncclBcast(two, LARGE, ncclFloat32, round % N, other, NULL));
    CHECK(ncclAllReduce(three, three, MIDDLE, ncclFloat32, ncclMin, me->comm, NULL));
    CHECK(ncclSend(two, SMALL, ncclFloat32, me->rank ^ 1, me->comm, NULL));
    CHECK(ncclRecv(three, SMALL, ncclFloat32, me->rank ^ 1, me->comm, NULL));
    CHECK(ncclGroupEnd());
  }
  CHECK(ncclCommFinalize(other));
  CHECK(ncclCommDestroy(other));
  drop(one, false);
  drop(two, false);
  drop(three, true);
}

static void windows(actor *me)
{
  int right = (me->rank + 1) % N, left = (me->rank + N - 1) % N;
  ncclWindow_t window = NULL;
  float *memory = numbers(LARGE, me->rank, true), *source = numbers(MIDDLE, 10 + me->rank, false);
  ncclWaitSignalDesc_t wait = {.opCnt = 1, .peer = left};
  CHECK(ncclCommWindowRegister(me->comm, memory, LARGE * sizeof *memory, &window, NCCL_WIN_DEFAULT));
  ENSURE(window);
  for (int round = 0; round < 30; round++) {
    CHECK(ncclPutSignal(source, MIDDLE, ncclFloat32, right, window, 4096, 0, 0, 0, me->comm, NULL));
    CHECK(ncclWaitSignal(1, &wait, me->comm, NULL));
    ENSURE(memory[1024] == (float)(10 + left));
    CHECK(ncclSignal(left, 0, 0, 0, me->comm, NULL));
    wait.peer = right;
    CHECK(ncclWaitSignal(1, &wait, me->comm, NULL));
    wait.peer = left;
  }
  CHECK(ncclCommWindowDeregister(me->comm, window));
  CHECK(ncclAllReduce(source, source, SMALL, ncclFloat32, ncclSum, me->comm, NULL));
  drop(memory, true);
  drop(source, false);
}

void play_moves(void)
{
  play("collectives", collectives, true);
  play("mixed_memory", mixed_memory, true);
  play("types", types, true);
  play("operations", operations, true);
  play("messages", messages, true);
  play("groups", groups, true);
  play("windows", windows, true);
}


/* ---- faults that a sanitizer must report ---- */

static float *shared;

static void *scribble(void *argument)
{
  (void)argument;
  for (int i = 0; i < 200; i++) {
    shared[i % LARGE] = (float)i;
    rest(1);
  }
  return NULL;
}

static void racing(actor *me)
{
  pthread_t thread = {0};
  float *mine = numbers(LARGE, 0, false);
  if (me->rank == 0) {
    shared = mine;
    thread = aside(scribble, NULL);
  }
  for (int i = 0; i < 40; i++) CHECK(ncclAllReduce(mine, mine, LARGE, ncclFloat32, ncclMax, me->comm, NULL));
  if (me->rank == 0) pthread_join(thread, NULL);
  drop(mine, false);
}

static void overflowing(actor *me)
{
  enum { BEYOND = 4 };
  float *mine = numbers(MIDDLE, 0, false), *large = numbers(MIDDLE + BEYOND, 0, false);
  CHECK(ncclAllReduce(large, me->rank ? large : mine, MIDDLE + BEYOND, ncclFloat32, ncclMax, me->comm, NULL));
}

void plant(const char *what)
{
  if (strcmp(what, "race") == 0) play("race", racing, true);
  if (strcmp(what, "overflow") == 0) play("overflow", overflowing, true);
  if (strcmp(what, "leak") == 0) *(void *volatile *)&shared = malloc(100), shared = NULL;
  volatile int most = 0x7fffffff;
  if (strcmp(what, "undefined") == 0) printf("%d\n", most + 1);
}
