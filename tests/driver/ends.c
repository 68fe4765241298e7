/* Scenes of what goes wrong: abort and revoke from other threads, calls that do not fit, deadlines, rings, inits that fail. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "driver.h"

static ncclResult_t sum(ncclComm_t comm, size_t count)
{
  float *one = numbers(count, 1, false);
  ncclResult_t result = ncclAllReduce(one, one, count, ncclFloat32, ncclSum, comm, NULL);
  drop(one, false);
  return result;
}

static void *abort_waiting(void *comm)
{
  in_call(0);
  CHECK(ncclCommAbort(comm));
  return NULL;
}

static void *abort_soon(void *comm)
{
  rest(20);
  CHECK(ncclCommAbort(comm));
  return NULL;
}

static void *revoke_soon(void *comm)
{
  rest(20);
  CHECK(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
  return NULL;
}

/* Rank 0's call is ended by another thread while it waits for the others, who come later and are told. */
static void aborted_in(actor *me, ncclResult_t (*call)(ncclComm_t))
{
  ncclComm_t comm;
  if (me->rank == 0)
    for (int i = 1; i < 3; i++) CHECK(ncclGetUniqueId(&ids[i]));
  together();
  CHECK(ncclCommInitRank(&comm, N, ids[1], me->rank));
  if (me->rank == 0) {
    pthread_t thread = aside(abort_waiting, comm);
    EXPECT(ncclInvalidUsage, call(comm));
    ENSURE(nickelErrorKind(NULL) == nickelKindAborted);
    pthread_join(thread, NULL);
  }
  together();
  if (me->rank == 0) return;
  EXPECT(ncclRemoteError, sum(comm, MIDDLE));
  CHECK(ncclCommAbort(comm));
}

static ncclResult_t small_sum(ncclComm_t comm)
{
  return sum(comm, SMALL);
}

static ncclResult_t receive(ncclComm_t comm)
{
  float one[SMALL];
  return ncclRecv(one, SMALL, ncclFloat32, 3, comm, NULL);
}

static ncclResult_t split(ncclComm_t comm)
{
  ncclComm_t none;
  return ncclCommSplit(comm, 0, 0, &none, NULL);
}

static ncclResult_t grouped(ncclComm_t comm)
{
  float one[SMALL] = {0}, two[SMALL];
  int rank;
  CHECK(ncclCommUserRank(comm, &rank));
  CHECK(ncclGroupStart());
  CHECK(ncclAllReduce(one, two, SMALL, ncclFloat32, ncclSum, comm, NULL));
  CHECK(ncclSend(one, SMALL, ncclFloat32, N - 1 - rank, comm, NULL));
  return ncclGroupEnd();
}

static void aborts(actor *me)
{
  aborted_in(me, small_sum);
  together();
  aborted_in(me, receive);
  together();
  aborted_in(me, split);
  together();
  aborted_in(me, grouped);
}

/* At any moment, while the ranks work in each other's memory: some end with an error, none goes on. */
static void aborts_at_any_moment(actor *me)
{
  for (int round = 0; round < 25; round++) {
    ncclComm_t comm;
    pthread_t thread = {0};
    if (me->rank == 0) CHECK(ncclGetUniqueId(&ids[1]));
    together();
    CHECK(ncclCommInitRank(&comm, N, ids[1], me->rank));
    bool victim = me->rank == round % N;
    if (victim) thread = aside(abort_soon, comm);
    while (sum(comm, round % 2 ? LARGE : SMALL) == ncclSuccess) continue;
    if (victim) pthread_join(thread, NULL);
    else CHECK(ncclCommAbort(comm));
    together();
  }
}

static void *ask(void *comm)
{
  ncclResult_t state = ncclSuccess;
  for (int left = 200; left > 0; left -= state != ncclSuccess) {
    CHECK(ncclCommGetAsyncError(comm, &state));
    ENSURE(sum(comm, SMALL) != ncclSuccess);
  }
  ENSURE(state == ncclRemoteError);
  return NULL;
}

/* One thread asks, and calls in vain, while the other one's call fails: whichever of them is inside. */
static void fails_under_a_thread(actor *me)
{
  for (int round = 0; round < 10; round++) {
    ncclComm_t comm;
    pthread_t thread = {0};
    if (me->rank == 0) CHECK(ncclGetUniqueId(&ids[1]));
    together();
    CHECK(ncclCommInitRank(&comm, N, ids[1], me->rank));
    if (me->rank == 0) thread = aside(ask, comm);
    if (me->rank == 3) rest(5);
    else ENSURE(sum(comm, SMALL) != ncclSuccess);
    if (me->rank == 0) pthread_join(thread, NULL);
    CHECK(ncclCommAbort(comm));
    together();
  }
}

static void revokes(actor *me)
{
  ncclComm_t half = NULL;
  pthread_t thread = {0};
  bool revokes_aside = me->rank == 0;
  if (revokes_aside) thread = aside(revoke_soon, me->comm);
  ncclResult_t result = me->rank == 3 ? ncclSuccess : sum(me->comm, SMALL);
  ENSURE(result == ncclInvalidUsage || result == ncclRemoteError || me->rank == 3);
  if (revokes_aside) pthread_join(thread, NULL);
  else CHECK(ncclCommRevoke(me->comm, NCCL_REVOKE_DEFAULT));
  CHECK(ncclCommSplit(me->comm, me->rank % 2, 0, &half, NULL));
  CHECK(sum(half, LARGE));
  CHECK(ncclCommDestroy(half));
}

static void aborts_in_background(actor *me)
{
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclComm_t comm;
  config.blocking = 0;
  float *one = numbers(MIDDLE, 1, false);
  if (me->rank == 3) { /* nobody else comes: it is ended in init */
    EXPECT(ncclInProgress, ncclCommInitRankConfig(&comm, N, ids[2], me->rank, &config));
    CHECK(ncclCommAbort(comm));
  }
  EXPECT(ncclInProgress, ncclCommInitRankConfig(&comm, N, ids[1], me->rank, &config));
  EXPECT(ncclSuccess, polled(comm));
  together();
  if (me->rank != 3) EXPECT(ncclInProgress, ncclAllReduce(one, one, MIDDLE, ncclFloat32, ncclSum, comm, NULL));
  if (me->rank == 0) rest(20);
  else if (me->rank != 3) ENSURE(polled(comm) == ncclRemoteError);
  CHECK(ncclCommAbort(comm));
  drop(one, false);
}

static _Atomic int refused;

static void *try_in_vain(void *comm)
{
  in_call(0);
  EXPECT(ncclInvalidUsage, sum(comm, SMALL));
  ENSURE(nickelErrorKind(NULL) == nickelKindBusy);
  refused++;
  return NULL;
}

static void misfits(actor *me)
{
  float one[N * SMALL] = {0}, two[N * SMALL];
  EXPECT(ncclInvalidUsage, ncclAllReduce(one, two, (size_t)(me->rank == 1 ? 2 : 3), ncclFloat32, ncclSum, me->comm, NULL));
  ENSURE(strlen(ncclGetLastError(me->comm)) > 200);
  EXPECT(ncclInvalidUsage, me->rank ? ncclBcast(one, 3, ncclFloat32, 0, me->comm, NULL) : ncclAllGather(one, two, 3, ncclFloat32, me->comm, NULL));
  EXPECT(ncclInvalidArgument, ncclBcast(one, 3, ncclFloat32, N, me->comm, NULL));
  if (me->rank < 2)
    EXPECT(ncclInvalidUsage, me->rank ? ncclRecv(one, 2, ncclFloat32, 0, me->comm, NULL) : ncclSend(one, 3, ncclFloat32, 1, me->comm, NULL));
  pthread_t thread = {0};
  if (me->rank == 0) thread = aside(try_in_vain, me->comm);
  else until(&refused, 1); /* rank 0 waits so long, and its communicator is busy */
  CHECK(sum(me->comm, SMALL));
  if (me->rank == 0) pthread_join(thread, NULL);
  EXPECT(me->rank ? ncclInvalidUsage : ncclSuccess, ncclAllReduce(one, two, (size_t)me->rank, ncclFloat32, ncclSum, me->comm, NULL));
}

static _Atomic int interrupt;

static void *wait_in_vain(void *comm)
{
  EXPECT(ncclInvalidUsage, sum(comm, SMALL));
  return NULL;
}

/* The survivors leave out one that does not come, while a thread of one of them still waits for it. */
static void shrinks_under_a_thread(actor *me)
{
  ncclComm_t rest_of_it;
  int lost[] = {3};
  pthread_t thread = {0};
  if (me->rank == 3) return;
  if (me->rank == 0) {
    thread = aside(wait_in_vain, me->comm);
    in_call(0);
  }
  CHECK(ncclCommShrink(me->comm, lost, 1, &rest_of_it, NULL, NCCL_SHRINK_ABORT));
  if (me->rank == 0) pthread_join(thread, NULL);
  CHECK(sum(rest_of_it, LARGE));
  CHECK(ncclCommDestroy(rest_of_it));
}

static _Atomic int told;

/* Two ranks wait in two communicators for each other, until a deadline says where each of them is. */
static void crossing(actor *me)
{
  ncclComm_t comm;
  CHECK(ncclCommInitRank(&comm, N, ids[1], me->rank));
  CHECK(sum(comm, SMALL));
  CHECK(nickelCommSetTimeout(comm, 0.6));
  if (me->rank % 2) ENSURE(sum(me->comm, SMALL) != ncclSuccess);
  else {
    in_call(1);
    in_call(3);
    EXPECT(ncclTimeout, sum(comm, SMALL));
    ENSURE(strstr(ncclGetLastError(comm), "waiting") || strstr(ncclGetLastError(comm), "blocked in"));
    told++;
    until(&told, N / 2);
    CHECK(ncclCommRevoke(me->comm, NCCL_REVOKE_DEFAULT)); /* the odd ones have waited long enough */
  }
  CHECK(ncclCommAbort(comm));
}

static int interrupts(void)
{
  return interrupt;
}

static void interrupted(actor *me)
{
  if (me->rank == 0) interrupt = 0;
  together();
  if (me->rank == 0) nickelSetInterruptCheck(interrupts);
  if (me->rank == 3) {
    rest(50);
    interrupt = 1;
    rest(300);
  } else ENSURE(sum(me->comm, SMALL) != ncclSuccess);
  together();
  if (me->rank == 0) nickelSetInterruptCheck(NULL);
}

static _Atomic int given_up;

static void deadlines(actor *me)
{
  CHECK(nickelCommSetTimeout(me->comm, 0.3));
  if (me->rank == 3) until(&given_up, 3);
  ncclResult_t result = me->rank == 1 ? receive(me->comm) : me->rank == 2 ? grouped(me->comm) : sum(me->comm, LARGE);
  ENSURE(result == ncclTimeout);
  given_up++;
}

static void rings(actor *me)
{
  float one[SMALL] = {0};
  EXPECT(ncclInvalidUsage, ncclSend(one, SMALL, ncclFloat32, (me->rank + 1) % N, me->comm, NULL));
  ENSURE(nickelErrorKind(NULL) == nickelKindDeadlock);
}

static void failing_inits(actor *me)
{
  ncclComm_t comm, stale = NULL;
  for (int round = 0; round < 20; round++) {
    if (me->rank == 0) CHECK(ncclGetUniqueId(&ids[1]));
    together();
    ncclResult_t result = ncclCommInitRank(&comm, round % 2 ? N : N - (me->rank == 2), ids[1], me->rank == 3 ? 0 : me->rank == 2 ? 1 : me->rank);
    ENSURE(result == ncclInvalidUsage && comm == NULL);
    together();
  }
  CHECK(ncclCommInitRank(&comm, N, ids[2], me->rank));
  stale = comm;
  CHECK(ncclCommDestroy(comm));
  EXPECT(ncclInvalidArgument, sum(stale, SMALL));
}

static void peers_leave(actor *me)
{
  for (int round = 0; round < 10; round++) {
    ncclComm_t comm;
    if (me->rank == 0) CHECK(ncclGetUniqueId(&ids[1]));
    together();
    CHECK(ncclCommInitRank(&comm, N, ids[1], me->rank));
    if (me->rank != round % N) EXPECT(ncclRemoteError, round % 2 ? sum(comm, LARGE) : grouped(comm));
    CHECK(round % 3 ? ncclCommDestroy(comm) : ncclCommAbort(comm));
    together();
  }
}

void play_ends(void)
{
  play("aborts", aborts, false);
  play("aborts_at_any_moment", aborts_at_any_moment, false);
  play("fails_under_a_thread", fails_under_a_thread, false);
  play("revokes", revokes, true);
  play("aborts_in_background", aborts_in_background, false);
  play("misfits", misfits, true);
  play("deadlines", deadlines, true);
  play("shrinks_under_a_thread", shrinks_under_a_thread, true);
  play("crossing", crossing, true);
  play("interrupted", interrupted, true);
  play("rings", rings, true);
  play("failing_inits", failing_inits, false);
  play("peers_leave", peers_leave, false);
}
