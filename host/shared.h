/* What ranks share: the drawing of the segment, word by word. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NH_SHARED_H
#define NH_SHARED_H
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
 *                nh_pair[n][n]                  832 B each       send/recv: row = sender, column = receiver
 *                pair slots    [n][n][NH_PAIR_SLOTS] NH_PAIR_SLOT each, reserved at first use
 */
/*
 * Each shared word says what it holds, who writes it (W) and who reads it (R). Where nothing else is said its order is this: stores are
 * sequentially consistent, since they may end the sleep of a rank that looks at the word once more before it sleeps; loads acquire, so that
 * all that was written plainly before the store is there. Set once: by compare-and-swap, so that everybody sees the same. sync.c has all of
 * these stores and loads, names the partner of each, and says why where the order is another one.
 */
enum {
  NH_LAYOUT = 7,                /* changes with every change of what is drawn here */
  NH_PAGE = 4096,
  NH_RANKS_AT = NH_PAGE,
  NH_INLINE = 16384,            /* largest contribution that travels beside its call */
  NH_SMALL = 32,                /* largest that fits into the call's own cache line */
  NH_SLOT = 131072,
  NH_PAIR_SLOT = 32768,
  NH_SLOTS = 2,
  NH_PAIR_SLOTS = 4,
  NH_SIGNALS = 16,              /* signal counters per pair of ranks */
  NH_SIGNAL_BITS = 40,          /* of their number, where index and number are one word */
  NH_TOLD = 192,                /* bytes that a rank brings to a meeting */
  NH_LATE = 256,                /* ranks that a deadline names to all */
  NH_DOING = 256,               /* bytes of a text that says where a rank is blocked */
  NH_CORES = 1024,              /* cores that are told apart; those beyond count as the same ones again */
  NH_MAX_RANKS = 4096
};
enum { NH_PREMULSUM = ncclNumOps };     /* the reduction of every operation that ncclRedOpCreatePreMulSum made */
#define NH_MAGIC UINT64_C(0x6c656b63696e68ff)

typedef enum {
  NH_ALL_REDUCE, NH_BROADCAST, NH_REDUCE, NH_ALL_GATHER, NH_REDUCE_SCATTER, NH_ALL_TO_ALL, NH_GATHER, NH_SCATTER,
  NH_FINALIZE, NH_SPLIT, NH_GROW, NH_WINDOW,      /* these are rounds, too; the last three gather what ranks tell each other */
  NH_SEND, NH_RECV, NH_PUT, NH_WAIT,              /* from here on with one peer */
  NH_SHRINK, NH_JOIN
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
  char small[NH_SMALL];         /* small contributions; the scalar of a PreMulSum */
  nh_place send, recv;
} nh_call;

/* Life of a rank, the low byte of nh_rank.owner. A rank only moves down this list. */
typedef enum { NH_EMPTY, NH_CLAIMED, NH_JOINED, NH_CLOSED, NH_ABORTED } nh_life;

/* Counters of a rank's progress in a staged transfer; they only grow, over the communicator's whole life. */
typedef enum { NH_FILLED, NH_REDUCED, NH_DRAINED, NH_COUNTERS } nh_counter;

/* What a blocked rank waits for of a peer: its post, a piece, or the end of its direct work. kind: the operation + 1; 0: it does not wait.
   more: it may still post something that others wait for. number: of the round, message, piece ..., by operation and phase (nh_phase). */
typedef struct { int kind, phase, peer; bool more; uint64_t number; } nh_wait;

typedef struct {
  /* owner: pid << 32 | descriptor of the segment in that process << 8 | nh_life. Claimed by compare-and-swap. W: the rank. R: all. */
  _Alignas(64) _Atomic uint64_t owner;
  int32_t device;               /* plain: written between claim and join */
  int32_t version;
  uint64_t start;               /* of the process */
  /* core: where the rank was last seen to run. W: the rank. R: those who wait for it. Relaxed: a hint, nothing follows from it. */
  _Atomic uint32_t core;
  uint32_t quota;               /* plain, like cores: how many of them the cgroup allows at a time */
  uint64_t cores[NH_CORES / 64]; /* that it may run on; plain: written between claim and join */
  /* W: the rank. R: all. `round` and `done` are stored with release: what wakes is `arrivals`, `verdict` and `finished`, written after them. */
  _Alignas(64) _Atomic uint64_t round;         /* last round posted: its call is there */
  _Atomic uint64_t come;                       /* 1 + seq of the collective that this rank has said it is about to call; or 0 */
  _Atomic uint64_t zero_seq;                   /* 1 + seq of the last call with count 0 */
  _Atomic uint64_t done;                       /* last direct round in which this rank has stopped touching its peers' memory */
  _Alignas(64) _Atomic uint64_t counter[NH_COUNTERS]; /* pieces filled, reduced, drained, ever */
  _Alignas(64) _Atomic uint32_t asleep;        /* what the rank sleeps for (nh_await). W: the rank. R: who wakes, sequentially consistent */
  _Atomic uint32_t bell;                       /* the futex it sleeps on, counting its wakes. W: who wakes it. R: the rank, and the kernel */
  _Alignas(64) nh_call call[2];                /* by parity of the round */
  /* waits: nh_wait in one word, set when a wait has lasted, cleared when it is over. W: the rank. R: who looks for a cycle, or says at its
     deadline who holds up whom; sequentially consistent. */
  _Alignas(64) _Atomic uint64_t waits;
  _Atomic uint64_t since;                      /* when that wait was first told: nanoseconds of the monotonic clock. W: the rank. R: for texts only */
  /* met: names of the last two meetings that the rank has come to; 0 while what it brought changes. told: that, stored with release.
     W: the rank. R: all that meet */
  _Atomic uint64_t met[2];
  _Atomic uint64_t told[2][NH_TOLD / 8];
  /* not_joined: the split (shrink, grow) whose new communicator this rank could not join; 0 while the next word changes. kept_out_by: the rank
     whose fault that was, it or another; stored with release. W: the rank. R: who waits there */
  _Atomic uint64_t not_joined;
  _Atomic uint32_t kept_out_by;
  /* doing: where the rank's thread is blocked, if in another communicator. W: that thread. R: for texts only; relaxed, a torn text does no harm. */
  _Atomic uint64_t doing[NH_DOING / 8];
} nh_rank;

typedef struct {
  uint64_t magic;                              /* these are plain: written by the maker of the id before anybody can know it */
  uint32_t layout;
  int32_t version;
  uint8_t nonce[16];
  int32_t maker;
  _Atomic uint32_t nranks;                     /* 0 until the first rank joins; set once. W: who comes first. R: who joins */
  /* state: NH_OPEN, NH_COMPLETE or a failure (nh_failure_pack). Set once. W: the last to arrive, or who gives up, or finds a misfit. R: who joins. */
  _Alignas(64) _Atomic uint64_t state;
  _Atomic uint32_t joined;                     /* how many have arrived. W, R: who arrives, by adding 1 */
  _Atomic uint32_t other_nranks;               /* what a rank asked for that was not nranks. W: that rank, before it sets state. R: for texts */
  _Atomic uint64_t failure;                    /* 0, or the first final failure after init. Set once. W: who finds it. R: who waits */
  _Alignas(64) _Atomic uint64_t arrivals;      /* posts of all ranks in all rounds: nranks * j when round j is full. W, R: who posts, by adding 1 */
  _Alignas(64) _Atomic uint64_t verdict[2];    /* round << 8 | nh_verdict, by parity; set once a round. W: the last to post, or who gives up. R: all */
  _Alignas(64) _Atomic uint64_t finished;      /* like arrivals, for the end of direct rounds. W: who has finished, by adding 1. R: all */
  _Atomic uint64_t spoiled;                    /* a direct round in which a rank could not do its share. W: that rank, before `finished`. R: all, after it */
  _Alignas(64) _Atomic uint32_t sleepers;      /* how many ranks are about to sleep or asleep. W: they. R: who wakes, sequentially consistent */
  /* reason_by: 1 + the rank that explains the failure which it is about to set; claimed by compare-and-swap. R: who has seen that failure. What follows
     is plain memory of that rank's: written before it sets `failure` (in init: `state`), read after that was seen. */
  _Atomic uint32_t reason_by;
  uint16_t nlate, late[NH_LATE];               /* a deadline: the ranks that did not come; more than NH_LATE are left out */
  char cycle[1024];                            /* a deadlock: who waits for whom */
} nh_header;

enum { NH_OPEN = 0, NH_COMPLETE = 1 };
typedef enum { NH_UNDECIDED = 0, NH_GO = 1, NH_MISMATCH = 2, NH_FAILED = 3 } nh_verdict;

/* One direction between two ranks, which write and read all of it; others look at it for cycles and texts only. Message numbers m start at 1;
   everything with two entries goes by parity of m. */
typedef struct {
  /* W: the sender. R: the receiver. */
  _Alignas(64) _Atomic uint64_t sent;          /* last message posted: its call, and a small one's data, are there */
  _Atomic uint64_t filled;                     /* pieces put into slots, over all messages */
  _Atomic uint64_t pushed;                     /* last message of which the sender has copied its share straight into the receiver's buffer */
  /* W: the receiver. R: the sender. */
  _Alignas(64) _Atomic uint64_t received;      /* last message posted */
  _Atomic uint64_t drained;                    /* pieces taken out, over all messages */
  _Atomic uint64_t pulled;                     /* last message of which the receiver has copied its share straight out of the sender's buffer */
  _Atomic uint64_t spoiled;                    /* a message that could not be copied. W: the side that could not, before pushed or pulled. R: both, after it */
  _Alignas(64) _Atomic uint64_t verdict[2];    /* m << 8 | nh_verdict; set once a message. W: who sees both posts, or gives up. R: both */
  _Alignas(64) _Atomic uint64_t signals[NH_SIGNALS]; /* signals given, ever. W: the sender, by adding 1. R: the receiver */
  _Alignas(64) nh_call send[2], recv[2];
} nh_pair;

_Static_assert(sizeof(nh_header) <= NH_PAGE && sizeof(nh_rank) <= NH_PAGE, "the drawing above");
_Static_assert(sizeof(nh_call) == 128 && sizeof(nh_pair) == 832, "the drawing above");

/* A failure in one word: kind, result code, the rank it is about, the rank that found it. Never 0 or 1. */
typedef struct { int kind, code, rank, by; } nh_failure;

#endif
