/* The CPU library's private types: the drawing of the shared segment, the communicator, the task. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NH_HOST_H
#define NH_HOST_H
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "../cdef/all.h"
#include "../cdef/nickel.h"

/*
 * The segment of one communicator: one memfd, made by ncclGetUniqueId, grown by the ranks that join (README.md, "The segment").
 *
 *   0            nh_header                      4 KiB   who made it, how many ranks, state, rounds
 *   NH_RANKS_AT  nh_rank[n]                     4 KiB each   written by its rank, read by all
 *                inline slots  [n][2]           NH_INLINE each   small contributions, by parity of the round
 *                staging slots [n][NH_SLOTS]    NH_SLOT each     pieces of large contributions
 *                nh_pair[n][n]                  704 B each       send/recv: row = sender, column = receiver
 *                pair slots    [n][n][NH_SLOTS] NH_PAIR_SLOT each, reserved at first use
 */
enum {
  NH_LAYOUT = 1,                /* changes with every change of what is drawn here */
  NH_PAGE = 4096,
  NH_RANKS_AT = NH_PAGE,
  NH_INLINE = 8192,             /* largest contribution that travels beside its call */
  NH_SMALL = 32,                /* largest that fits into the call's own cache line */
  NH_SLOT = 65536,
  NH_PAIR_SLOT = 32768,
  NH_SLOTS = 4,
  NH_MAX_RANKS = 4096
};
#define NH_MAGIC UINT64_C(0x6c656b63696e68ff)

typedef enum {
  NH_ALL_REDUCE, NH_BROADCAST, NH_REDUCE, NH_ALL_GATHER, NH_REDUCE_SCATTER, NH_ALL_TO_ALL, NH_GATHER, NH_SCATTER, NH_FINALIZE,
  NH_SEND, NH_RECV, NH_JOIN
} nh_op;

/* Where a buffer lies, as its owner tells its peers. */
typedef struct {
  uint64_t address;             /* in the owner's address space */
  uint64_t arena;               /* inode of the arena's memfd; 0: not in ncclMemAlloc memory */
  uint64_t offset;              /* bytes from the arena's start */
  int32_t fd;                   /* the arena's descriptor in the owner */
  uint32_t epoch;               /* how many arenas the owner has freed: a change means that peers look at what they mapped */
} nh_place;

/* One call as its rank posts it. Plain memory: written before the post, read after the verdict (or by the last to arrive). */
typedef struct {
  uint64_t seq;                 /* calls of this rank on this communicator before this one */
  uint64_t count;
  int16_t op, type;
  int32_t redop, root;          /* -1 where the operation has none */
  int32_t unused;
  char small[NH_SMALL];
  nh_place send, recv;
} nh_call;

/* Life of a rank, the low byte of nh_rank.owner. A rank only moves down this list. */
typedef enum { NH_EMPTY, NH_CLAIMED, NH_JOINED, NH_CLOSED, NH_ABORTED } nh_life;

/* Counters of a rank's progress in a staged transfer; they only grow, over the communicator's whole life. */
typedef enum { NH_FILLED, NH_REDUCED, NH_DRAINED, NH_COUNTERS } nh_counter;

typedef struct {
  /* owner: pid << 32 | descriptor of the segment in that process << 8 | nh_life. Writer: the rank. Readers: all. */
  _Alignas(64) _Atomic uint64_t owner;
  int32_t device;               /* plain: written between claim and join */
  int32_t version;
  /* Written by this rank, read by all. */
  _Alignas(64) _Atomic uint64_t round;         /* last round posted */
  _Atomic uint64_t zero_seq;                   /* 1 + seq of the last call with count 0 */
  _Atomic uint64_t done;                       /* last direct round in which this rank has stopped touching its peers' memory */
  _Alignas(64) _Atomic uint64_t counter[NH_COUNTERS];
  /* asleep: what the rank sleeps for (nh_await); written by the rank. bell: the futex it sleeps on; written by whoever wakes it. */
  _Alignas(64) _Atomic uint32_t asleep;
  _Atomic uint32_t bell;
  _Alignas(64) nh_call call[2];                /* by parity of the round */
} nh_rank;

typedef struct {
  uint64_t magic;
  uint32_t layout;
  int32_t version;
  uint8_t nonce[16];
  int32_t maker;
  _Atomic uint32_t nranks;                     /* 0 until the first rank joins; set once */
  /* state: NH_OPEN, NH_COMPLETE or a failure (nh_failure_word). Set once, by compare-and-swap from NH_OPEN, whoever comes first. */
  _Alignas(64) _Atomic uint64_t state;
  _Atomic uint32_t joined;
  _Atomic uint32_t other_nranks;               /* what a rank asked for that was not nranks; by that rank before it sets state */
  /* failure: 0 or the first final failure after init. Set once, by compare-and-swap. */
  _Atomic uint64_t failure;
  _Alignas(64) _Atomic uint64_t arrivals;      /* posts of all ranks in all rounds: nranks * j when round j is full */
  _Alignas(64) _Atomic uint64_t verdict[2];    /* round << 8 | nh_verdict, by parity of the round */
  _Alignas(64) _Atomic uint64_t finished;      /* like arrivals, for the end of direct rounds */
  _Alignas(64) _Atomic uint32_t sleepers;      /* how many ranks are about to sleep or asleep */
} nh_header;

enum { NH_OPEN = 0, NH_COMPLETE = 1 };
typedef enum { NH_UNDECIDED = 0, NH_GO = 1, NH_MISMATCH = 2, NH_FAILED = 3 } nh_verdict;

/* One direction between two ranks. Message numbers m start at 1; everything with two entries goes by parity of m. */
typedef struct {
  _Alignas(64) _Atomic uint64_t sent;          /* last message posted by the sender; partner of `received` */
  _Atomic uint64_t filled;                     /* pieces put into slots, over all messages; by the sender */
  _Alignas(64) _Atomic uint64_t received;      /* last message posted by the receiver */
  _Atomic uint64_t drained;                    /* pieces taken out; by the receiver */
  _Atomic uint64_t copied;                     /* last message of a direct transfer that is over; by the side that copied */
  _Alignas(64) _Atomic uint64_t verdict[2];    /* m << 8 | nh_verdict */
  _Alignas(64) nh_call send[2], recv[2];       
} nh_pair;

_Static_assert(sizeof(nh_header) <= NH_PAGE && sizeof(nh_rank) <= NH_PAGE, "the drawing above");
_Static_assert(sizeof(nh_call) == 128 && sizeof(nh_pair) == 704, "the drawing above");

/* A failure in one word: kind, result code, the rank it is about, the rank that found it. Never 0 or 1. */
typedef struct { int kind, code, rank, by; } nh_failure;

/* This process's view of one segment, shared by its ranks (threads). Guarded by nh_lock. */
typedef struct nh_segment {
  struct nh_segment *next;
  nh_header *head;
  size_t size;                  /* bytes mapped at head */
  int fd;
  int refs;                     /* communicators of this process */
  bool made;                    /* ncclGetUniqueId of this process made it */
  uint64_t inode;
  uint8_t nonce[16];
} nh_segment;

/* What a task waits for; values from NH_ON_RANK up name a rank. Also what nh_rank.asleep says. */
typedef enum { NH_AWAKE, NH_ON_VERDICT, NH_ON_ANY, NH_ON_RANK } nh_await;

typedef struct nh_task nh_task;
struct ncclComm {
  _Atomic uint64_t guard;       /* NH_GUARD while this is a communicator */
  _Atomic uint32_t busy;        /* 1 while a thread is inside */
  _Atomic uint32_t aborted;     /* set by ncclCommAbort, read by the thread inside */
  struct ncclComm *next;        /* in the list of free ones: memory of communicators is never given back, so stale handles are safe */
  unsigned generation;          /* of the process: changes at fork */
  uint64_t serial;              /* no two communicators of a process have the same */
  int rank, nranks, device;
  nh_segment *segment;
  nh_header *head;
  bool one_process;             /* all ranks are threads of this process */
  int spins;                    /* polls before the first yield */
  double timeout;               /* seconds; 0: none; below 0: NICKEL_TIMEOUT */
  uint64_t seq, round, pieces, directs;
  uint64_t *sent, *received;    /* messages per peer */
  uint64_t *sent_pieces, *received_pieces; /* pieces per peer */
  bool *paired;                 /* the pair's memory is reserved: [2 * peer] as sender, [2 * peer + 1] as receiver */
  bool grouped;                 /* its thread is at the end of a group that has work for it */
  nh_task **last;               /* while a group is put together: the last task of each lane (one of collectives, one per pair) */
  bool ready;                   /* init is over */
  bool finalized;
  ncclResult_t failed;          /* final: every later call returns it */
  int failed_kind;
  char failed_text[512];
};
#define NH_GUARD UINT64_C(0x9cc1c0de9cc1c0de)

/* Phases that the loop knows of; in NH_DIRECT_END this rank is finished and waits for those who may still touch its memory. */
enum { NH_START, NH_POSTED, NH_STAGED, NH_DIRECT_END };

struct nh_task {
  nh_task *next;                /* in a group's list, in the order of the calls */
  nh_task *lane;                /* the task of the same lane that comes first */
  ncclComm_t comm;
  ncclResult_t (*step)(nh_task *);      /* ncclSuccess: finished; ncclInProgress: would have to wait; else failed */
  bool (*missing)(nh_task *, int rank); /* is this what the task waits for? */
  void (*nobody_missing)(nh_task *);    /* all that it waits for is there, but who should have said so may have been killed before; or NULL */
  nh_verdict (*give_up)(nh_task *);     /* tries to fail this round for all; NH_GO or NH_MISMATCH: it was decided before, carry on */
  ncclResult_t result;
  int await;                    /* what it waits for, after ncclInProgress (nh_await) */
  bool moved;                   /* the last step did something */
  int phase;                    /* of the step */
  bool all_done;                /* in NH_DIRECT_END: every rank has said so */
  uint64_t serial;              /* of comm: a group may outlive it */
  nh_op op;
  const void *send;
  void *recv;
  size_t count;
  int type, redop, root;        /* root is the peer for send and recv */
  uint64_t seq, round;          /* round: the message's number for send and recv */
  uint64_t pieces, filled, reduced, drained;
  size_t piece_count;           /* elements per piece */
  int known[NH_COUNTERS];       /* ranks below it are known to have reached the next piece */
  ncclComm_t *out;              /* init: where the handle goes */
  uint8_t id[NCCL_UNIQUE_ID_BYTES];
};

/* error.c: results, texts, the last error of a thread */
ncclResult_t nh_error(ncclResult_t code, int kind, const char *format, ...) __attribute__((format(printf, 3, 4)));
ncclResult_t nh_error_failure(ncclComm_t comm, nh_failure failure, const char *doing);
ncclResult_t nh_error_again(ncclComm_t comm);   /* what made this communicator fail */
void nh_error_rank(ncclComm_t comm, int rank);  /* names one more rank in the last error */
const char *nh_last_error(void);
int nh_last_kind(void);
int nh_last_ranks(int *ranks, int *pids, int capacity);
void nh_error_hold(bool hold);                  /* keeps the first of several errors */
const char *nh_result_text(int code);
void nh_comm_failed(ncclComm_t comm, ncclResult_t code); /* keeps the last error as the communicator's own */
const char *nh_op_name(int op);
const char *nh_type_name(int type);
const char *nh_redop_name(int redop);

/* segment.c: the memfd, the id, reserving, this process's list */
ncclResult_t nh_segment_make(ncclUniqueId *id);
ncclResult_t nh_segment_open(const uint8_t *id, int nranks, int rank, nh_segment **segment);
ncclResult_t nh_segment_reserve(nh_segment *segment, size_t offset, size_t size, const char *what);
void nh_segment_drop(nh_segment *segment);
nh_rank *nh_rank_at(nh_header *head, int rank);
char *nh_inline_slot(nh_header *head, int nranks, int rank, uint64_t round);
char *nh_slot(nh_header *head, int nranks, int rank, uint64_t piece);
nh_pair *nh_pair_at(nh_header *head, int nranks, int from, int to);
char *nh_pair_slot(nh_header *head, int nranks, int from, int to, uint64_t piece);
ncclResult_t nh_segment_reserve_rank(nh_segment *segment, int nranks, int rank);
ncclResult_t nh_segment_reserve_pair(nh_segment *segment, int nranks, int from, int to);
void nh_segments_forked(void);

/* arena.c: ncclMemAlloc memory, and peers' arenas mapped here */
ncclResult_t nh_arena_make(void **pointer, size_t size);
ncclResult_t nh_arena_free(void *pointer);
void nh_arena_place(const void *buffer, size_t size, nh_place *place);
ncclResult_t nh_arena_reach(ncclComm_t comm, int rank, const nh_place *place, size_t size, char **pointer);
void nh_arenas_forked(void);
void nh_arena_forget(void);      /* unmaps all peers' arenas: the last communicator of the process is gone */

/* process.c: this process */
void nh_lock(void);
void nh_unlock(void);
unsigned nh_generation(void);         /* changes in a forked child */

/* sync.c: every shared word */
bool nh_join_size(nh_header *head, int nranks);                   /* false: another number was set */
int nh_join_sizes(nh_header *head, int *other);                   /* the number that was set, and one that was not it (0: none) */
bool nh_join_claim(nh_header *head, int rank, int fd);
bool nh_join_arrive(nh_header *head, int nranks, int rank, int fd); /* true: complete */
uint64_t nh_state(nh_header *head);
uint64_t nh_state_set(nh_header *head, uint64_t value);           /* the value in force afterwards */
nh_life nh_rank_life(nh_header *head, int rank, int *pid, int *fd);
void nh_rank_leave(ncclComm_t comm, nh_life life);
void nh_post(ncclComm_t comm, uint64_t round, bool *last);
bool nh_posted(ncclComm_t comm, int rank, uint64_t round);
uint64_t nh_last_round(ncclComm_t comm, int rank);
void nh_post_zero(ncclComm_t comm, uint64_t seq);
bool nh_passed_zero(ncclComm_t comm, int rank, uint64_t seq, uint64_t round);
nh_verdict nh_verdict_of(ncclComm_t comm, uint64_t round);
nh_verdict nh_decide(ncclComm_t comm, uint64_t round, nh_verdict verdict);
void nh_finish_direct(ncclComm_t comm, uint64_t direct);
bool nh_finished(ncclComm_t comm, uint64_t direct);
bool nh_finished_rank(ncclComm_t comm, int rank, uint64_t direct);
void nh_advance(ncclComm_t comm, nh_counter which, uint64_t value);
bool nh_reached(ncclComm_t comm, int rank, nh_counter which, uint64_t value);
nh_failure nh_failed_with(ncclComm_t comm);                       /* kind 0: nothing */
nh_failure nh_fail(ncclComm_t comm, nh_failure failure);          /* the failure in force */
uint64_t nh_failure_pack(nh_failure failure);
nh_failure nh_failure_unpack(uint64_t word);
void nh_pair_post(ncclComm_t comm, nh_pair *pair, bool sender, uint64_t message);
bool nh_pair_posted(nh_pair *pair, bool sender, uint64_t message);
nh_verdict nh_pair_verdict(nh_pair *pair, uint64_t message);
nh_verdict nh_pair_decide(ncclComm_t comm, nh_pair *pair, uint64_t message, nh_verdict verdict);
void nh_pair_advance(ncclComm_t comm, nh_pair *pair, bool sender, uint64_t pieces);
uint64_t nh_pair_pieces(nh_pair *pair, bool sender);
void nh_pair_copied(ncclComm_t comm, nh_pair *pair, uint64_t message);
bool nh_pair_is_copied(nh_pair *pair, uint64_t message);
void nh_sleep(ncclComm_t comm, int await, bool (*still)(void *), void *argument, long nanoseconds);
void nh_wake(ncclComm_t comm, int await);                         /* ranks that sleep for this, and for anything; NH_ON_ANY: all */
void nh_set_interrupt(int (*check)(void));
int (*nh_interrupt(void))(void);
bool nh_comm_valid(ncclComm_t comm);
void nh_comm_guard(ncclComm_t comm, bool valid);
bool nh_comm_enter(ncclComm_t comm);                              /* false: another thread is inside */
void nh_comm_leave(ncclComm_t comm);
bool nh_comm_inside(ncclComm_t comm);
void nh_comm_set_aborted(ncclComm_t comm, bool aborted);
bool nh_comm_aborted(ncclComm_t comm);

/* step.c: loops over steps; deadlines, deaths, interrupts */
ncclResult_t nh_run(nh_task *tasks);                              /* the first error */
ncclResult_t nh_wait_for(nh_task *task, int await);               /* notes what the task waits for; returns ncclInProgress */
void nh_set_timeout(double seconds);                              /* of this thread, for what it makes from now on */
double nh_timeout_here(void);
int nh_cores(void);
ncclResult_t nh_round_failed(nh_task *task);

/* comm.c: the life of a communicator */
ncclResult_t nh_comm_new(nh_task *task, ncclComm_t *out, int nranks, const uint8_t *id, int rank, int device);
void nh_comm_not_joined(nh_task *task);                           /* after a failed init: no handle */
ncclResult_t nh_comm_check(ncclComm_t comm, const char *function);  /* valid, not forked, ready, not failed, not finalized */
ncclResult_t nh_comm_exists(ncclComm_t comm, const char *function); /* valid, not forked */
ncclResult_t nh_comm_destroy(ncclComm_t comm);
ncclResult_t nh_comm_abort(ncclComm_t comm);

/* group.c */
bool nh_grouped(void);
ncclResult_t nh_submit(nh_task *task);                            /* runs it, or queues a copy in the open group */
ncclResult_t nh_group_start(void);
ncclResult_t nh_group_end(void);
ncclResult_t nh_group_note(ncclResult_t code);                    /* an error inside a group is the group's; returns code */

/* collective.c, direct.c, staged.c, p2p.c */
void nh_collective_prepare(nh_task *task);
bool nh_direct_possible(const nh_task *task);
void nh_direct_run(nh_task *task);
void nh_staged_start(nh_task *task);
ncclResult_t nh_staged_step(nh_task *task);
bool nh_staged_missing(nh_task *task, int rank);
void nh_p2p_prepare(nh_task *task);
ncclResult_t nh_copy_to_self(nh_task *send, nh_task *recv);

/* check.c */
bool nh_calls_match(ncclComm_t comm, uint64_t round);
ncclResult_t nh_mismatch(nh_task *task);
bool nh_pair_matches(const nh_call *send, const nh_call *recv);
ncclResult_t nh_pair_mismatch(nh_task *task, const nh_call *send, const nh_call *recv);
void nh_describe(nh_task *task, nh_call *call);                   /* the call as it is posted, without data and places */

/* reduce.c */
size_t nh_type_size(int type);
bool nh_reducible(int type);
/* Left fold in rank order of n sources into target (which may be one of the sources), rounded to the type after each step. */
void nh_fold(void *target, const char *const *sources, int n, size_t count, int type, int redop);

double nh_now(void);
#endif
