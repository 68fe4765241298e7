/* What ranks tell each other while they make a communicator from others: in a round of the parent, or where it cannot have one, a meeting. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "family.h"

ncclResult_t nh_family_no_memory(void)
{
  return nh_error(ncclSystemError, nickelKindMemory, "no memory for a communicator");
}

bool nh_takes_part(const nh_family *family, int rank)
{
  return !family->excluded || !family->excluded[rank];
}

/* The meetings of those that take part in this one; NULL: no memory. */
static nh_meetings *meetings_of(nh_family *family)
{
  ncclComm_t comm = family->parent;
  uint64_t who = UINT64_C(0xcbf29ce484222325);
  for (int rank = 0; rank < comm->nranks; rank++) who = (who ^ (nh_takes_part(family, rank) ? 2u : 1u)) * UINT64_C(0x100000001b3);
  int place = 0;
  while (place < comm->nmeetings && comm->meetings[place].who != who) place++;
  if (place < comm->nmeetings) return &comm->meetings[place];
  nh_meetings *more = realloc(comm->meetings, ((size_t)place + 1) * sizeof *more);
  if (!more) return NULL;
  comm->meetings = more;
  comm->nmeetings++;
  more[place] = (nh_meetings){.who = who};
  return &more[place];
}

/*
 * The name of the next meeting: who takes part, and how many meetings just these have reached. All count alike, since a meeting is reached when
 * all have come; one that was given up has the same name when it is tried again, and the same id is told then. What was told stays for one
 * meeting more: the second of a split is reached when all have seen the first, and what comes after a split or shrink that ended well when all
 * have joined. Even, never 0; 0: no memory.
 */
static uint64_t name_of_meeting(nh_family *family)
{
  const nh_meetings *meetings = meetings_of(family);
  return meetings ? ((meetings->who + meetings->times) * UINT64_C(0x9e3779b97f4a7c15)) << 1 | 2 : 0;
}

/* Tried again after a deadline, the same id is told. */
ncclResult_t nh_family_id(nh_family *family)
{
  nh_meetings *meetings = family->meet ? meetings_of(family) : NULL;
  if (family->meet && !meetings) return nh_family_no_memory();
  if (meetings && meetings->told) {
    family->id = meetings->id;
    return ncclSuccess;
  }
  ncclResult_t result = nh_segment_make(&family->id);
  if (result == ncclSuccess && meetings) {
    meetings->told = true;
    meetings->id = family->id;
  }
  return result;
}

static ncclResult_t reached(nh_family *family)
{
  nh_meetings *meetings = meetings_of(family);
  if (!meetings) return nh_family_no_memory();
  meetings->times++;
  if (family->size == sizeof family->id) meetings->told = false;
  return ncclSuccess;
}

static ncclResult_t meet_step(nh_task *task)
{
  ncclComm_t comm = task->comm;
  nh_family *family = task->more;
  if (task->phase == NH_START) {
    task->moved = true;
    task->round = name_of_meeting(family);
    if (!task->round) return nh_family_no_memory();
    nh_meet(comm, task->round, task->send, family->size);
    task->phase = NH_MEETING;
  }
  for (int rank = 0; rank < comm->nranks; rank++)
    if (nh_takes_part(family, rank) && !nh_met(comm, rank, task->round, family->all + (size_t)rank * family->size, family->size))
      return nh_wait_for(task, NH_ON_ANY);
  task->moved = true;
  return reached(family);
}

static bool not_met(nh_task *task, int rank)
{
  nh_family *family = task->more;
  return task->phase == NH_MEETING && nh_takes_part(family, rank) && !nh_met(task->comm, rank, task->round, NULL, 0);
}

void nh_tell(nh_task *task, const void *data, size_t size, ncclResult_t (*then)(nh_task *))
{
  nh_family *family = task->more;
  family->size = size;
  task->send = data;
  task->recv = family->all;
  task->count = size;
  task->type = ncclInt8;
  task->phase = NH_START;
  task->then = then;
  if (!family->meet) {
    nh_collective_prepare(task);
    return;
  }
  task->step = meet_step;
  task->missing = not_met;
  task->give_up = NULL;
  task->nobody_missing = NULL;
  task->result = ncclInProgress;
}
