/* Every word that ranks share, and how a rank sleeps and is woken: the only file with atomics. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * It is longer than other files so that who reads about an order of memory finds its partner here, too.
 *
 * Three rules hold for all of it.
 * 1. Numbers only grow (rounds, pieces, messages) and are compared with >=; none is ever reset, so a rank that comes late still reads
 *    the truth (`come` alone can be taken back: it is a promise, and no data follows from it). Words that decide (state, failure,
 *    verdict) are set once per round by compare-and-swap: whoever is first decides for all.
 * 2. Data is written plainly before the store that publishes it and read plainly after the load that saw it: release there, acquire here.
 *    What may be written anew while a late rank reads it (`told`, `kept_out_by`) is in words of its own, under a name (`met`, `not_joined`)
 *    that is 0 meanwhile and that the reader looks at before and after.
 *    Stores that may end another rank's sleep are sequentially consistent, because of rule 3.
 * 3. Sleep and wake is Dekker's pattern: the sleeper adds itself to `sleepers` and looks at its condition once more; the waker stores
 *    first and then looks at `sleepers`. Both are sequentially consistent, so at least one of them sees the other.
 * README.md, "Rounds", proves that two of everything (by parity) are enough.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "host.h"


/* ---- joining ---- */

bool nh_join_size(nh_header *head, int nranks)
{
  uint32_t expected = 0;
  if (atomic_compare_exchange_strong(&head->nranks, &expected, (uint32_t)nranks)) return true;
  if (expected == (uint32_t)nranks) return true;
  atomic_store(&head->other_nranks, (uint32_t)nranks); /* pairs with nh_join_sizes */
  return false;
}

int nh_join_sizes(nh_header *head, int *other)
{
  *other = (int)atomic_load(&head->other_nranks);
  return (int)atomic_load(&head->nranks);
}

static uint64_t owner_word(int pid, int fd, nh_life life)
{
  return (uint64_t)(uint32_t)pid << 32 | (uint64_t)(uint32_t)fd << 8 | (uint64_t)life;
}

/* One word holds pid, descriptor and life, so that a rank which dies right after its claim can already be recognised as dead. */
bool nh_join_claim(nh_header *head, int rank, int fd)
{
  uint64_t expected = 0;
  return atomic_compare_exchange_strong(&nh_rank_at(head, rank)->owner, &expected, owner_word(getpid(), fd, NH_CLAIMED));
}

/* The last to arrive completes the communicator, unless somebody has declared it failed first. */
bool nh_join_arrive(nh_header *head, int nranks, int rank, int fd)
{
  atomic_store(&nh_rank_at(head, rank)->owner, owner_word(getpid(), fd, NH_JOINED)); /* pairs with nh_rank_life */
  if (atomic_fetch_add(&head->joined, 1) + 1 != (uint32_t)nranks) return false;
  return nh_state_set(head, NH_COMPLETE) == NH_COMPLETE;
}

uint64_t nh_state(nh_header *head)
{
  return atomic_load_explicit(&head->state, memory_order_acquire); /* pairs with nh_state_set */
}

uint64_t nh_state_set(nh_header *head, uint64_t value)
{
  uint64_t expected = NH_OPEN;
  return atomic_compare_exchange_strong(&head->state, &expected, value) ? value : expected;
}

nh_life nh_rank_life(nh_header *head, int rank, int *pid, int *fd)
{
  uint64_t word = atomic_load_explicit(&nh_rank_at(head, rank)->owner, memory_order_acquire); /* pairs with the stores of `owner` */
  if (pid) *pid = (int)(word >> 32);
  if (fd) *fd = (int)(word >> 8 & 0xffffff);
  return (nh_life)(word & 0xff);
}

void nh_rank_leave(ncclComm_t comm, nh_life life)
{
  atomic_store(&nh_rank_at(comm->head, comm->rank)->owner, owner_word(getpid(), comm->segment->fd, life)); /* pairs with nh_rank_life */
  nh_wake(comm, NH_ON_ANY);
}

/* Written when the rank has moved only, so that others can keep the word in their caches. */
void nh_note_core(ncclComm_t comm, int core)
{
  if (core == comm->core || !comm->head) return;
  comm->core = core;
  atomic_store_explicit(&nh_rank_at(comm->head, comm->rank)->core, (uint32_t)core, memory_order_relaxed);
}

int nh_core_of(ncclComm_t comm, int rank)
{
  return (int)atomic_load_explicit(&nh_rank_at(comm->head, rank)->core, memory_order_relaxed);
}


/* ---- rounds ---- */

/* The call is in its place already. Whoever arrives last sees the calls of all: each fetch_add continues the release sequence. */
void nh_post(ncclComm_t comm, uint64_t round, bool *last)
{
  nh_rank *mine = nh_rank_at(comm->head, comm->rank);
  atomic_store_explicit(&mine->round, round, memory_order_release); /* pairs with nh_posted */
  uint64_t before = atomic_fetch_add(&comm->head->arrivals, 1);
  *last = before + 1 == (uint64_t)comm->nranks * round;
}

bool nh_posted(ncclComm_t comm, int rank, uint64_t round)
{
  return atomic_load_explicit(&nh_rank_at(comm->head, rank)->round, memory_order_acquire) >= round; /* pairs with nh_post */
}

/* calls: how many this rank has made when it has made the one that it is about to make; 0 takes it back. */
void nh_set_come(ncclComm_t comm, uint64_t calls)
{
  atomic_store(&nh_rank_at(comm->head, comm->rank)->come, calls); /* pairs with nh_has_come */
  nh_wake(comm, NH_ON_ANY);
}

/* Is a rank about to make the call that comes next here, or in it? It cannot be further. */
bool nh_has_come(ncclComm_t comm, int rank)
{
  if (atomic_load_explicit(&nh_rank_at(comm->head, rank)->come, memory_order_acquire) > comm->seq) return true; /* pairs with nh_set_come */
  return nh_posted(comm, rank, comm->round + 1);
}

/* 0: none yet. Its call lies in call[round & 1] until it posts two rounds more. */
uint64_t nh_last_round(ncclComm_t comm, int rank)
{
  return atomic_load_explicit(&nh_rank_at(comm->head, rank)->round, memory_order_acquire); /* pairs with nh_post */
}

void nh_post_zero(ncclComm_t comm, uint64_t seq)
{
  atomic_store(&nh_rank_at(comm->head, comm->rank)->zero_seq, seq + 1); /* pairs with nh_passed_zero */
  nh_wake(comm, NH_ON_ANY);
}

/* Has this rank gone past call seq without a post, that is with count 0? Only zero calls write zero_seq, and a rank that is past seq by
   a post had stored `round` before; so `round` is looked at again after zero_seq. */
bool nh_passed_zero(ncclComm_t comm, int rank, uint64_t seq, uint64_t round)
{
  nh_rank *peer = nh_rank_at(comm->head, rank);
  if (atomic_load_explicit(&peer->zero_seq, memory_order_acquire) <= seq) return false; /* pairs with nh_post_zero */
  return !nh_posted(comm, rank, round);
}

nh_verdict nh_verdict_of(ncclComm_t comm, uint64_t round)
{
  uint64_t word = atomic_load_explicit(&comm->head->verdict[round & 1], memory_order_acquire); /* pairs with nh_decide */
  return word >> 8 == round ? (nh_verdict)(word & 0xff) : NH_UNDECIDED;
}

static nh_verdict decide(_Atomic uint64_t *place, uint64_t number, nh_verdict verdict)
{
  uint64_t old = atomic_load_explicit(place, memory_order_acquire); /* pairs with the exchange below */
  uint64_t value = number << 8 | (uint64_t)verdict;
  while (old >> 8 != number)
    if (atomic_compare_exchange_strong(place, &old, value)) return verdict;
  return (nh_verdict)(old & 0xff);
}

nh_verdict nh_decide(ncclComm_t comm, uint64_t round, nh_verdict verdict)
{
  nh_verdict in_force = decide(&comm->head->verdict[round & 1], round, verdict);
  nh_wake(comm, NH_ON_VERDICT);
  return in_force;
}

void nh_finish_direct(ncclComm_t comm, uint64_t direct, bool spoiled)
{
  if (spoiled) atomic_store(&comm->head->spoiled, direct); /* pairs with nh_spoiled; before the others can see this rank finished */
  atomic_store_explicit(&nh_rank_at(comm->head, comm->rank)->done, direct, memory_order_release); /* pairs with nh_finished_rank */
  uint64_t before = atomic_fetch_add(&comm->head->finished, 1); /* pairs with nh_finished: what I wrote to peers is there */
  if (before + 1 == (uint64_t)comm->nranks * direct) nh_wake(comm, NH_ON_VERDICT);
}

bool nh_finished(ncclComm_t comm, uint64_t direct)
{
  return atomic_load_explicit(&comm->head->finished, memory_order_acquire) >= (uint64_t)comm->nranks * direct;
}

bool nh_spoiled(ncclComm_t comm, uint64_t direct)
{
  return atomic_load(&comm->head->spoiled) == direct;
}

bool nh_finished_rank(ncclComm_t comm, int rank, uint64_t direct)
{
  return atomic_load_explicit(&nh_rank_at(comm->head, rank)->done, memory_order_acquire) >= direct;
}

void nh_advance(ncclComm_t comm, nh_counter which, uint64_t value)
{
  atomic_store(&nh_rank_at(comm->head, comm->rank)->counter[which], value); /* pairs with nh_reached */
  nh_wake(comm, NH_ON_RANK + comm->rank);
}

bool nh_reached(ncclComm_t comm, int rank, nh_counter which, uint64_t value)
{
  return atomic_load_explicit(&nh_rank_at(comm->head, rank)->counter[which], memory_order_acquire) >= value;
}


/* ---- failure ---- */

/* kind 8 bits, code 8, by 16, rank 16, and one bit that makes it differ from NH_OPEN and NH_COMPLETE. Ranks are below NH_MAX_RANKS. */
uint64_t nh_failure_pack(nh_failure failure)
{
  return (uint64_t)(uint16_t)failure.rank << 48 | (uint64_t)(uint16_t)failure.by << 32 | (uint64_t)(uint8_t)failure.code << 16 |
         (uint64_t)(uint8_t)failure.kind << 8 | 2;
}

nh_failure nh_failure_unpack(uint64_t word)
{
  if (word <= NH_COMPLETE) return (nh_failure){0};
  return (nh_failure){.kind = (int)(word >> 8 & 0xff), .code = (int)(word >> 16 & 0xff), .rank = (int)(word >> 48),
                      .by = (int)(word >> 32 & 0xffff)};
}

nh_failure nh_failed_with(ncclComm_t comm)
{
  return nh_failure_unpack(atomic_load_explicit(&comm->head->failure, memory_order_acquire)); /* pairs with nh_fail */
}

nh_failure nh_fail(ncclComm_t comm, nh_failure failure)
{
  uint64_t expected = 0;
  if (atomic_compare_exchange_strong(&comm->head->failure, &expected, nh_failure_pack(failure))) nh_wake(comm, NH_ON_ANY);
  else failure = nh_failure_unpack(expected);
  return failure;
}


/* ---- pairs ---- */

void nh_pair_post(ncclComm_t comm, nh_pair *pair, bool sender, uint64_t message)
{
  atomic_store(sender ? &pair->sent : &pair->received, message); /* pairs with nh_pair_posted */
  nh_wake(comm, NH_ON_RANK + comm->rank);
}

bool nh_pair_posted(nh_pair *pair, bool sender, uint64_t message)
{
  return atomic_load_explicit(sender ? &pair->sent : &pair->received, memory_order_acquire) >= message;
}

nh_verdict nh_pair_verdict(nh_pair *pair, uint64_t message)
{
  uint64_t word = atomic_load_explicit(&pair->verdict[message & 1], memory_order_acquire); /* pairs with nh_pair_decide */
  return word >> 8 == message ? (nh_verdict)(word & 0xff) : NH_UNDECIDED;
}

nh_verdict nh_pair_decide(ncclComm_t comm, nh_pair *pair, uint64_t message, nh_verdict verdict)
{
  nh_verdict in_force = decide(&pair->verdict[message & 1], message, verdict);
  nh_wake(comm, NH_ON_RANK + comm->rank);
  return in_force;
}

void nh_pair_advance(ncclComm_t comm, nh_pair *pair, bool sender, uint64_t pieces)
{
  atomic_store(sender ? &pair->filled : &pair->drained, pieces); /* pairs with nh_pair_pieces */
  nh_wake(comm, NH_ON_RANK + comm->rank);
}

uint64_t nh_pair_pieces(nh_pair *pair, bool sender)
{
  return atomic_load_explicit(sender ? &pair->filled : &pair->drained, memory_order_acquire);
}

void nh_pair_copied(ncclComm_t comm, nh_pair *pair, bool sender, uint64_t message, bool spoiled)
{
  if (spoiled) atomic_store(&pair->spoiled, message); /* pairs with nh_pair_is_spoiled */
  atomic_store(sender ? &pair->pushed : &pair->pulled, message); /* pairs with nh_pair_has_copied */
  nh_wake(comm, NH_ON_RANK + comm->rank);
}

bool nh_pair_has_copied(nh_pair *pair, bool sender, uint64_t message)
{
  return atomic_load_explicit(sender ? &pair->pushed : &pair->pulled, memory_order_acquire) >= message;
}

bool nh_pair_is_spoiled(nh_pair *pair, uint64_t message)
{
  return atomic_load(&pair->spoiled) == message;
}


/* ---- meetings, signals, waits ---- */

/* Who has given up a meeting may come to others while a peer still copies what it had brought to that one: then the name has gone. (Come to the
   same one again it brings the same.) */
void nh_meet(ncclComm_t comm, uint64_t name, const void *data, size_t size)
{
  nh_rank *mine = nh_rank_at(comm->head, comm->rank);
  unsigned place = comm->met++ & 1;
  atomic_store(&mine->met[place], 0); /* pairs with the second look in nh_met */
  for (size_t i = 0; i < size / 8; i++) {
    uint64_t word;
    memcpy(&word, (const char *)data + 8 * i, sizeof word);
    atomic_store_explicit(&mine->told[place][i], word, memory_order_release); /* pairs with nh_met: who sees it sees the 0 */
  }
  atomic_store(&mine->met[place], name); /* pairs with nh_met */
  nh_wake(comm, NH_ON_ANY);
}

bool nh_met(ncclComm_t comm, int rank, uint64_t name, void *data, size_t size)
{
  nh_rank *peer = nh_rank_at(comm->head, rank);
  for (int place = 0; place < 2; place++) {
    if (atomic_load_explicit(&peer->met[place], memory_order_acquire) != name) continue; /* pairs with nh_meet */
    for (size_t i = 0; data && i < size / 8; i++) {
      uint64_t word = atomic_load_explicit(&peer->told[place][i], memory_order_acquire);
      memcpy((char *)data + 8 * i, &word, sizeof word);
    }
    return atomic_load_explicit(&peer->met[place], memory_order_acquire) == name;
  }
  return false;
}

/* What was put before it is there for whoever sees the signal. */
void nh_signal(ncclComm_t comm, nh_pair *pair, int index)
{
  atomic_fetch_add(&pair->signals[index], 1); /* pairs with nh_signals */
  nh_wake(comm, NH_ON_RANK + comm->rank);
}

uint64_t nh_signals(nh_pair *pair, int index)
{
  return atomic_load_explicit(&pair->signals[index], memory_order_acquire);
}

/* kind 5 bits, phase 2, more 1, peer 12, number 44: numbers are compared in these bits only, and a call in a nanosecond takes hours to use
   them up. */
void nh_set_waits(ncclComm_t comm, nh_wait wait)
{
  uint64_t word = (uint64_t)wait.kind << 59 | (uint64_t)wait.phase << 57 | (uint64_t)wait.more << 56 | (uint64_t)wait.peer << 44 | (wait.number & 0xfffffffffff);
  nh_rank *mine = nh_rank_at(comm->head, comm->rank);
  if (!wait.kind) word = 0;
  else if (!atomic_load(&mine->waits)) atomic_store(&mine->since, (uint64_t)(nh_now() * 1e9)); /* pairs with nh_waits_since */
  atomic_store(&mine->waits, word); /* pairs with nh_waits */
}

double nh_waits_since(ncclComm_t comm, int rank)
{
  return (double)atomic_load(&nh_rank_at(comm->head, rank)->since) / 1e9;
}

nh_wait nh_waits(ncclComm_t comm, int rank)
{
  uint64_t word = atomic_load(&nh_rank_at(comm->head, rank)->waits);
  return (nh_wait){.kind = (int)(word >> 59), .phase = (int)(word >> 57 & 3), .more = word >> 56 & 1, .peer = (int)(word >> 44 & 0xfff), .number = word & 0xfffffffffff};
}

void nh_set_doing(ncclComm_t comm, const char text[NH_DOING])
{
  nh_rank *mine = nh_rank_at(comm->head, comm->rank);
  for (size_t i = 0; i < NH_DOING / 8; i++) {
    uint64_t word;
    memcpy(&word, text + 8 * i, sizeof word);
    atomic_store_explicit(&mine->doing[i], word, memory_order_relaxed);
  }
}

void nh_doing(ncclComm_t comm, int rank, char text[NH_DOING])
{
  nh_rank *peer = nh_rank_at(comm->head, rank);
  for (size_t i = 0; i < NH_DOING / 8; i++) {
    uint64_t word = atomic_load_explicit(&peer->doing[i], memory_order_relaxed);
    memcpy(text + 8 * i, &word, sizeof word);
  }
  text[NH_DOING - 1] = 0;
}

void nh_set_not_joined(ncclComm_t comm, uint64_t mark, int by)
{
  nh_rank *mine = nh_rank_at(comm->head, comm->rank);
  atomic_store(&mine->not_joined, 0); /* pairs with the second look in nh_not_joined */
  atomic_store_explicit(&mine->kept_out_by, (uint32_t)by, memory_order_release);
  atomic_store(&mine->not_joined, mark); /* pairs with nh_not_joined */
  nh_wake(comm, NH_ON_ANY);
}

uint64_t nh_not_joined(ncclComm_t comm, int rank, int *by)
{
  nh_rank *peer = nh_rank_at(comm->head, rank);
  uint64_t mark = atomic_load(&peer->not_joined);
  *by = (int)atomic_load_explicit(&peer->kept_out_by, memory_order_acquire);
  return atomic_load(&peer->not_joined) == mark ? mark : 0;
}

bool nh_reason_claim(ncclComm_t comm)
{
  uint32_t expected = 0;
  return atomic_compare_exchange_strong(&comm->head->reason_by, &expected, (uint32_t)comm->rank + 1);
}

/* By the rank that has claimed it and has not failed after all. */
void nh_reason_drop(ncclComm_t comm)
{
  atomic_store(&comm->head->reason_by, 0);
}

/* The failure was seen before, so what its rank had written is there. */
bool nh_reason_is_by(ncclComm_t comm, int rank)
{
  return atomic_load(&comm->head->reason_by) == (uint32_t)rank + 1;
}


/* ---- sleeping and waking ---- */

/* Sleeps until somebody wakes this rank for `await`, or for so long; returns at once if still(argument) is false. May return early. */
void nh_sleep(ncclComm_t comm, int await, bool (*still)(void *), void *argument, long nanoseconds)
{
  nh_rank *mine = nh_rank_at(comm->head, comm->rank);
  uint32_t bell = atomic_load_explicit(&mine->bell, memory_order_acquire); /* pairs with the ring in nh_wake */
  atomic_store(&mine->asleep, (uint32_t)await);
  atomic_fetch_add(&comm->head->sleepers, 1); /* pairs with the look at `sleepers` in nh_wake */
  if (still(argument)) {
    struct timespec time = {.tv_sec = nanoseconds / 1000000000, .tv_nsec = nanoseconds % 1000000000};
    syscall(SYS_futex, &mine->bell, FUTEX_WAIT, bell, &time, NULL, 0);
  }
  atomic_fetch_sub(&comm->head->sleepers, 1);
  atomic_store(&mine->asleep, NH_AWAKE);
}

/* Costs one load while nobody sleeps. A rank that was killed in its sleep is counted for ever: the failed communicator wakes in vain. */
void nh_wake(ncclComm_t comm, int await)
{
  if (atomic_load(&comm->head->sleepers) == 0) return;
  for (int rank = 0; rank < comm->nranks; rank++) {
    nh_rank *peer = nh_rank_at(comm->head, rank);
    int for_what = (int)atomic_load(&peer->asleep);
    if (for_what == NH_AWAKE) continue;
    if (await != NH_ON_ANY && for_what != NH_ON_ANY && for_what != await) continue;
    atomic_fetch_add(&peer->bell, 1);
    syscall(SYS_futex, &peer->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
  }
}


/* ---- the handle: words shared by the threads of one process ---- */

bool nh_comm_valid(ncclComm_t comm)
{
  return comm && atomic_load_explicit(&comm->guard, memory_order_acquire) == NH_GUARD; /* pairs with nh_comm_guard */
}

void nh_comm_guard(ncclComm_t comm, bool valid)
{
  atomic_store_explicit(&comm->guard, valid ? NH_GUARD : 0, memory_order_release);
}

static _Thread_local char thread; /* its address stands for this thread */

/* token: an address that stands for one call or group. True also if that has entered before. */
bool nh_comm_enter(ncclComm_t comm, const void *token)
{
  uintptr_t expected = 0;
  if (!atomic_compare_exchange_strong(&comm->busy, &expected, (uintptr_t)token)) return expected == (uintptr_t)token; /* pairs with nh_comm_leave */
  nh_comm_use(comm);
  return true;
}

/* For nh_comm_mine: only a number to compare with. */
void nh_comm_use(ncclComm_t comm)
{
  atomic_store_explicit(&comm->user, (uintptr_t)&thread, memory_order_relaxed);
}

/* Was this thread the last one inside? */
bool nh_comm_mine(ncclComm_t comm)
{
  return atomic_load_explicit(&comm->user, memory_order_relaxed) == (uintptr_t)&thread;
}

/* Leaves if it was this token that entered. */
void nh_comm_leave(ncclComm_t comm, const void *token)
{
  uintptr_t expected = (uintptr_t)token;
  atomic_compare_exchange_strong(&comm->busy, &expected, 0); /* pairs with nh_comm_enter and nh_comm_inside */
}

bool nh_comm_inside(ncclComm_t comm)
{
  return atomic_load(&comm->busy) != 0;
}

/* The thread inside looks at `aborted` between two steps and after each sleep; its own bell ends the sleep. */
void nh_comm_set_aborted(ncclComm_t comm, bool aborted)
{
  atomic_store(&comm->aborted, aborted); /* pairs with nh_comm_aborted */
  if (!aborted) return;
  nh_lock(); /* the segment may come and go under a thread that is in init */
  if (comm->head) {
    nh_rank *mine = nh_rank_at(comm->head, comm->rank);
    atomic_fetch_add(&mine->bell, 1);
    syscall(SYS_futex, &mine->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
  }
  nh_unlock();
}

bool nh_comm_aborted(ncclComm_t comm)
{
  return atomic_load_explicit(&comm->aborted, memory_order_acquire) != 0;
}

/* Only a number to compare with: nothing is published by it. */
uint64_t nh_comm_count_call(ncclComm_t comm)
{
  return atomic_fetch_add_explicit(&comm->calls, 1, memory_order_relaxed) + 1;
}

void nh_comm_set_condition(ncclComm_t comm, nh_condition condition, bool is)
{
  if (is) atomic_fetch_or(&comm->conditions, condition); /* pairs with nh_comm_is */
  else atomic_fetch_and(&comm->conditions, ~(uint32_t)condition);
}

bool nh_comm_is(ncclComm_t comm, nh_condition condition)
{
  return (atomic_load_explicit(&comm->conditions, memory_order_acquire) & condition) != 0;
}

/* Who reads the code may read the record, which stays as it is from then on. */
void nh_comm_set_code(ncclComm_t comm, ncclResult_t failed)
{
  atomic_store_explicit(&comm->failed, failed, memory_order_release); /* pairs with nh_comm_code */
}

ncclResult_t nh_comm_code(ncclComm_t comm)
{
  return (ncclResult_t)atomic_load_explicit(&comm->failed, memory_order_acquire);
}

/* Revoking ends the call of another thread like aborting does, but the handle stays. */
void nh_comm_set_revoked(ncclComm_t comm, bool revoked)
{
  atomic_store(&comm->revoked, revoked); /* pairs with nh_comm_revoked */
}

bool nh_comm_revoked(ncclComm_t comm)
{
  return atomic_load_explicit(&comm->revoked, memory_order_acquire) != 0;
}

/* Written by the worker before it leaves the communicator, and by whoever hands it work. */
void nh_comm_set_async(ncclComm_t comm, ncclResult_t state)
{
  atomic_store_explicit(&comm->async, state, memory_order_release); /* pairs with nh_comm_async */
}

ncclResult_t nh_comm_async(ncclComm_t comm)
{
  return atomic_load_explicit(&comm->async, memory_order_acquire);
}

static _Atomic(int (*)(void)) interrupt_check;

void nh_set_interrupt(int (*check)(void))
{
  atomic_store(&interrupt_check, check); /* pairs with nh_interrupt */
}

int (*nh_interrupt(void))(void)
{
  return atomic_load(&interrupt_check);
}
