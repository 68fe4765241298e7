/* Ranks that wait for each other: each tells what it is blocked in, and whoever finds that the tellings form a ring ends it. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A blocked rank is blocked until all tasks of its call or group are done, so one peer that does not come is enough to hold it, and each rank
 * names one such peer; but only if it has nothing left to post itself, for what others wait for may stand behind another task of its group.
 * Following these names from rank to rank ends at a rank that is not blocked, or comes round. A ring is a deadlock if
 * every name in it is still true and no rank in it has moved on in between: nobody in the ring can do anything then but wait. The names are
 * read twice, with the truth looked up in between, so that a ring seen while it dissolved is not taken for one.
 * Across communicators a rank's thread is only seen as blocked "elsewhere"; the deadline ends that, and its text says where.
 */
#include <stdio.h>
#include <string.h>

#include "host.h"

enum { COUNTER_BITS = 42 };     /* of a number of pieces, where it is one word with its nh_counter */

static int missing_rank(nh_task *task)
{
  ncclComm_t comm = task->comm;
  for (int rank = 0; rank < comm->nranks; rank++)
    if (rank != comm->rank && task->missing(task, rank)) return rank;
  return -1;
}

typedef struct { const char *text; const ncclComm_t here; } nh_telling;

static void tell(ncclComm_t comm, void *argument)
{
  const nh_telling *telling = argument;
  if (comm != telling->here && nh_comm_mine(comm) && !nh_comm_revoked(comm)) nh_set_doing(comm, telling->text);
}

/* Tasks behind others of their lane, and those that will go on as something else; what the waiting one becomes has to wait with it. */
static bool more_to_post(const nh_task *tasks, const nh_task *waiting)
{
  for (; tasks; tasks = tasks->next)
    if (tasks->result == ncclInProgress && (tasks->phase == NH_START || (tasks->then && tasks != waiting))) return true;
  return false;
}

/* What it is of the peer that has not come: a post by its round or message, the end of direct work, a piece. */
static uint64_t number_of(nh_task *task, int peer)
{
  ncclComm_t comm = task->comm;
  bool message = task->op == NH_SEND || task->op == NH_RECV;
  nh_counter which = NH_FILLED;
  uint64_t pieces = 0;
  if (task->phase == NH_POSTED || (task->phase == NH_DIRECT_END && message)) return task->round;
  if (task->phase == NH_DIRECT_END) return comm->directs;
  if (message) return (task->op == NH_SEND ? comm->sent_pieces[peer] : comm->received_pieces[peer]) + task->pieces;
  nh_staged_missing(task, peer, &which, &pieces);
  return (uint64_t)which << COUNTER_BITS | pieces;
}

/* Called ten times a second while a wait lasts. The text goes to the other communicators that this thread was the last to use. */
static void publish(nh_task *tasks, nh_task *task, int peer)
{
  ncclComm_t comm = task->comm;
  if (task->phase <= NH_DIRECT_END)
    nh_set_waits(comm, (nh_wait){.kind = (int)task->op + 1, .phase = task->phase, .peer = peer, .more = more_to_post(tasks, task), .number = number_of(task, peer)});
  if (comm->told_doing) return;
  comm->told_doing = true;
  char text[NH_DOING] = "";
  snprintf(text, sizeof text, "blocked in %s of another communicator, for its rank %d of %d", nh_op_name(task->op), peer, comm->nranks);
  nh_telling telling = {text, comm};
  nh_comm_each(tell, &telling);
}

/* For each communicator the first task that is blocked. */
void nh_wait_begins(nh_task *tasks)
{
  enum { MOST = 64 };
  ncclComm_t seen[MOST];
  int n = 0;
  for (nh_task *task = tasks; task && n < MOST; task = task->next) {
    bool known = task->result != ncclInProgress || task->op == NH_JOIN || task->phase == NH_START || task->phase == NH_MEETING;
    for (int i = 0; i < n && !known; i++) known = seen[i] == task->comm;
    int peer = known ? -1 : missing_rank(task);
    if (peer < 0) continue;
    seen[n++] = task->comm;
    publish(tasks, task, peer);
  }
}

static void over(ncclComm_t comm)
{
  if (!nh_comm_valid(comm) || !comm->head || !comm->told_doing) return;
  comm->told_doing = false;
  nh_set_waits(comm, (nh_wait){0});
  static const char nothing[NH_DOING];
  nh_telling telling = {nothing, comm};
  nh_comm_each(tell, &telling);
}

void nh_wait_over(nh_task *task)
{
  if (!task->home) return;
  over(task->comm);
  if (task->home != task->comm) over(task->home);
}

static bool waits_in_collective(ncclComm_t comm, int rank, nh_wait wait)
{
  if (wait.phase == NH_POSTED) return nh_posted(comm, rank, wait.number) && !nh_posted(comm, wait.peer, wait.number);
  if (wait.phase == NH_DIRECT_END) return !nh_finished_rank(comm, wait.peer, wait.number);
  return !nh_reached(comm, wait.peer, (nh_counter)(wait.number >> COUNTER_BITS), wait.number & ((UINT64_C(1) << COUNTER_BITS) - 1));
}

static bool waits_in_message(ncclComm_t comm, int rank, nh_wait wait)
{
  bool sends = wait.kind - 1 == NH_SEND;
  nh_pair *pair = nh_pair_at(comm->head, comm->nranks, sends ? rank : wait.peer, sends ? wait.peer : rank);
  if (wait.phase == NH_POSTED) return nh_pair_posted(pair, sends, wait.number) && !nh_pair_posted(pair, !sends, wait.number);
  if (wait.phase == NH_DIRECT_END) return !nh_pair_has_copied(pair, !sends, wait.number);
  return nh_pair_pieces(pair, !sends) < wait.number;
}

/* Does the rank really wait for that peer, by what can be seen of both? */
static bool is_true(ncclComm_t comm, int rank, nh_wait wait)
{
  int op = wait.kind - 1;
  if (op < NH_SEND) return waits_in_collective(comm, rank, wait);
  if (op == NH_SEND || op == NH_RECV) return waits_in_message(comm, rank, wait);
  if (op != NH_WAIT) return false;
  int index = (int)(wait.number >> NH_SIGNAL_BITS);
  return nh_signal_number(index, nh_signals(nh_pair_at(comm->head, comm->nranks, wait.peer, rank), index)) < wait.number;
}

static bool same(nh_wait a, nh_wait b)
{
  return a.kind == b.kind && a.phase == b.phase && a.peer == b.peer && a.more == b.more && a.number == b.number;
}

/* The ring that starts and ends at this rank; its length, or 0. A rank in the middle of its data can have something else to do. */
static int ring(ncclComm_t comm, int *ranks, nh_wait *waits)
{
  int n = 0, rank = comm->rank;
  do {
    nh_wait wait = nh_waits(comm, rank);
    if (!wait.kind || wait.more || wait.phase != NH_POSTED || wait.peer >= comm->nranks || !is_true(comm, rank, wait) || n == comm->nranks) return 0;
    ranks[n] = rank;
    waits[n++] = wait;
    rank = wait.peer;
  } while (rank != comm->rank);
  for (int i = 0; i < n; i++)
    if (!same(waits[i], nh_waits(comm, ranks[i])) || !is_true(comm, ranks[i], waits[i])) return 0;
  return n;
}

bool nh_in_cycle(ncclComm_t comm)
{
  int ranks[NH_MAX_RANKS];
  nh_wait waits[NH_MAX_RANKS];
  int n = comm->nranks > 1 ? ring(comm, ranks, waits) : 0;
  if (!n || !nh_reason_claim(comm)) return false;
  size_t used = 0, room = sizeof comm->head->cycle;
  for (int i = 0; i < n && used + 80 < room; i++)
    used += (size_t)snprintf(comm->head->cycle + used, room - used, "%srank %d in %s for rank %d", i ? ", " : "", ranks[i], nh_op_name(waits[i].kind - 1),
                             waits[i].peer);
  return true;
}

/* Whom a missing rank waits for itself, in which call; -1: nobody, as far as can be seen. */
static int held_by(ncclComm_t comm, int rank, nh_wait *wait)
{
  *wait = nh_waits(comm, rank);
  return wait->kind && wait->peer < comm->nranks && is_true(comm, rank, *wait) ? wait->peer : -1;
}

/* From rank to rank along what they wait for, to one that is not seen to wait: the one whose absence began it. */
int nh_held_up_by(ncclComm_t comm, int rank)
{
  nh_wait wait;
  for (int steps = 0, next; steps < comm->nranks && rank != comm->rank && (next = held_by(comm, rank, &wait)) >= 0; steps++) rank = next;
  return rank;
}

/* For the text of a deadline: whom a missing rank waits for, or where it is if in another communicator. */
size_t nh_describe_wait(ncclComm_t comm, int rank, char *text, size_t room)
{
  nh_wait wait;
  int peer = held_by(comm, rank, &wait);
  if (peer >= 0) return (size_t)snprintf(text, room, ", waiting for rank %d in %s", peer, nh_op_name(wait.kind - 1));
  char doing[NH_DOING];
  nh_doing(comm, rank, doing);
  if (!*doing) return 0;
  return (size_t)snprintf(text, room, ", %s", doing);
}
