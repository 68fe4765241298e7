/* What a process keeps for itself: its view of a segment, the communicator, the task. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NH_TASK_H
#define NH_TASK_H
#include "shared.h"

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
typedef struct nh_record nh_record;     /* an error as it is kept: error.c */
typedef struct nh_worker nh_worker;     /* the thread of a non-blocking communicator: worker.c */

/* A reduction operation made by ncclRedOpCreatePreMulSum. */
typedef struct {
  bool used;
  int type;
  uint64_t scalar;              /* the bits of one element */
  const void *device;           /* read when the collective runs; NULL: immediate */
} nh_user_op;

typedef struct { bool blocking; int signals; } nh_settings;      /* of ncclConfig_t, what matters here */

/* What a communicator may be, whether or not it has failed since; most calls refuse one that is not ready, or is one of the others. */
typedef enum { NH_READY = 1, NH_FINALIZED = 2, NH_SUSPENDED = 4 } nh_condition; /* ready: init has ended well */

/* Meetings of the same ranks: how many were reached, and the id that was told for the next one if that was not. */
typedef struct { uint64_t who, times; bool told; ncclUniqueId id; } nh_meetings;

/* What is atomic is shared by threads of this process (W: who writes, R: who reads; sync.c has the orders); the rest is of the one that is inside. */
struct ncclComm {
  _Atomic uint64_t guard;       /* NH_GUARD while this is a communicator. W: who makes and who ends it. R: every call */
  _Atomic uintptr_t busy;       /* the token of the call or group that is inside, or 0; by compare-and-swap. W, R: every call */
  _Atomic uintptr_t user;       /* the thread that was inside last, by an address of its own. W: it. R: a thread that is blocked elsewhere; relaxed */
  _Atomic uint32_t aborted;     /* W: ncclCommAbort. R: the thread inside */
  _Atomic uint32_t revoked;     /* W: ncclCommRevoke. R: the thread inside, and every call */
  _Atomic int async;            /* non-blocking: ncclInProgress, or how the last work ended. W: who hands over work, and the worker. R: who polls */
  struct ncclComm *next;        /* in the list of free ones: memory of communicators is never given back, so stale handles are safe */
  struct ncclComm *alive;       /* in the list of this process's communicators */
  unsigned generation;          /* of the process: changes at fork */
  uint64_t serial;              /* no two communicators of a process have the same */
  int rank, nranks, device;
  nh_settings settings;
  nh_segment *segment;
  nh_header *head;
  bool one_process;             /* all ranks are threads of this process */
  int spins;                    /* polls before the first yield, while nobody who is waited for needs this core */
  double yields_from;           /* until then it sleeps at once where it would yield: others use the cores (nh_now) */
  bool roomy;                   /* each rank has a core, and this one waits in its caller's own thread */
  bool tight;                   /* no core is left for a second thread of each rank */
  int core;                     /* where this rank ran when it was last noted */
  double timeout;               /* seconds; 0: none; below 0: NICKEL_TIMEOUT */
  _Atomic uint64_t calls;       /* counted for NICKEL_FAULT. W, R: every call, relaxed */
  uint64_t come;                /* what this rank has told with nh_set_come */
  bool coming;                  /* it waits for the others to come, or has found them there and its call is not over */
  double away;                  /* how long its thread had not run when that began: come.c */
  int lost;                     /* calls one after the other in which others had its core meanwhile */
  uint64_t seq, round, pieces, directs, onesided;
  uint64_t *sent, *received;    /* messages per peer */
  uint64_t *sent_pieces, *received_pieces; /* pieces per peer */
  uint64_t *waited;             /* signals taken, [peer][NH_SIGNALS] */
  bool *paired;                 /* the pair's memory is reserved: [2 * peer] as sender, [2 * peer + 1] as receiver */
  nh_task **last;               /* while a group is put together: the last task of each lane (collectives, and four per peer) */
  bool told_doing;
  _Atomic uint32_t conditions;  /* bits of nh_condition. W: the thread that inits, finalizes, suspends or resumes. R: every call */
  _Atomic int failed;           /* final: every later call returns it. W: the thread inside, after the record. R: every call */
  nh_record *record;            /* its text and the like, or those of the last error of a non-blocking communicator */
  nh_worker *worker;
  nh_user_op *ops;
  int nops;
  nh_meetings *meetings;        /* by the ranks that take part; family.c */
  int nmeetings;
  unsigned met;                 /* meetings that this rank has come to */
  struct nh_registration *registrations;
  struct nh_window *windows;
};
#define NH_GUARD UINT64_C(0x9cc1c0de9cc1c0de)

/* Phases that the loop knows of; in NH_DIRECT_END this rank is finished and waits for those who may still touch its memory. */
enum { NH_START, NH_POSTED, NH_STAGED, NH_DIRECT_END, NH_MEETING };

struct nh_task {
  nh_task *next;                /* in a group's list, in the order of the calls */
  nh_task *lane;                /* the task of the same lane that comes first */
  ncclComm_t comm;
  ncclComm_t home;              /* the communicator that was called: a split's task goes on in the new one; NULL once it has been left */
  ncclResult_t (*step)(nh_task *);      /* ncclSuccess: finished; ncclInProgress: would have to wait; else failed */
  bool (*missing)(nh_task *, int rank); /* is this what the task waits for? */
  void (*nobody_missing)(nh_task *);    /* all that it waits for is there, but who should have said so may have been killed before; or NULL */
  ncclResult_t (*lost)(nh_task *, int rank); /* of a join: an error if that rank will never come, as can be seen elsewhere; or NULL */
  nh_verdict (*give_up)(nh_task *);     /* tries to fail this round for all; NH_GO or NH_MISMATCH: it was decided before, carry on */
  ncclResult_t result;
  int await;                    /* what it waits for, after ncclInProgress (nh_await) */
  bool moved;                   /* the last step did something */
  int phase;                    /* of the step */
  bool all_done;                /* in NH_DIRECT_END: every rank has said so */
  uint64_t serial;              /* of comm: a group may outlive it */
  nh_op op;
  nh_op called;                 /* what the caller called, for the trace: a split ends as a join */
  const void *send;
  void *recv;
  size_t count;
  int type, redop, root;        /* root is the peer for send and recv */
  uint64_t seq, round;          /* round: the message's number for send and recv */
  bool corrupt;                 /* NICKEL_FAULT wants a wrong result */
  uint64_t pieces, filled, reduced, drained;
  size_t piece_count;           /* elements per piece */
  int known[NH_COUNTERS];       /* ranks below it are known to have reached the next piece */
  uint64_t scalar;              /* of a PreMulSum */
  const void *device_scalar;    /* or where it is */
  const char *path;             /* how the data went, for the trace */
  double started;               /* for the trace */
  ncclResult_t (*then)(nh_task *);      /* after a step returned ncclSuccess: ncclInProgress if it has become another task; or NULL */
  void (*end)(nh_task *);       /* when it is over, whatever the result; or NULL */
  void *more;                   /* what the operation needs beside this */
  ncclComm_t *out;              /* init: where the handle goes */
  uint8_t id[NCCL_UNIQUE_ID_BYTES];
};

#endif
