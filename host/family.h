/* A communicator in the making from others: what family.c and meeting.c share. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NH_FAMILY_H
#define NH_FAMILY_H
#include "host.h"

typedef struct {
  ncclComm_t parent, child, *out;
  nh_settings settings;
  bool meet;                    /* the parent cannot have a round */
  const bool *excluded;         /* by rank of the parent; NULL: nobody. Owned */
  int nranks, rank, leader;     /* of the new communicator; leader is its rank 0 in the parent */
  int *members;                 /* ranks in the parent by rank in the new one; new ones of a grow are not in it */
  int nmembers;
  uint64_t mark;                /* names this split (shrink, grow) among those of the parent */
  int at_fault;                 /* the rank of the parent that is the reason why this one could not join; -1: not known */
  ncclResult_t (*join)(nh_task *);
  int mine[2];                  /* color and key */
  ncclUniqueId id;
  ncclResult_t refused;         /* why this leader could not make one */
  nh_record *why;               /* and its text; owned */
  size_t size;                  /* bytes that each rank tells at this stage */
  char *all;                    /* what all have told */
} nh_family;

ncclResult_t nh_family_no_memory(void);
bool nh_takes_part(const nh_family *family, int rank);
/* The task becomes the telling of this, the same size on all ranks, to all that take part; what all have told is in family->all, and `then` goes on. */
void nh_tell(nh_task *task, const void *data, size_t size, ncclResult_t (*then)(nh_task *));
ncclResult_t nh_family_id(nh_family *family);                     /* this rank leads: makes the id of the new communicator */

#endif
