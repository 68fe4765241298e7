/* Reduction operations that callers make: the sum of every rank's input times that rank's own scalar. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The number of an operation holds its place and a tag of its communicator, so that it means nothing on another one. Numbers start at
 * ncclNumOps and are not small.
 */
#include <stdlib.h>
#include <string.h>

#include "host.h"

enum { PLACES = 1024, TAGS = 1 << 20 };

static int number_of(ncclComm_t comm, int place)
{
  uint64_t tag = comm->serial * UINT64_C(0x9e3779b97f4a7c15) >> 44;
  return ncclNumOps + (int)(tag % TAGS) * PLACES + place;
}

static nh_user_op *at(ncclComm_t comm, int op)
{
  if (op < ncclNumOps) return NULL;
  int place = op - number_of(comm, 0);
  if (place < 0 || place >= comm->nops || !comm->ops[place].used) return NULL;
  return &comm->ops[place];
}

const nh_user_op *nh_op_find(ncclComm_t comm, int op)
{
  return at(comm, op);
}

static int free_place(ncclComm_t comm)
{
  int place = 0;
  while (place < comm->nops && comm->ops[place].used) place++;
  if (place < comm->nops || place == PLACES) return place;
  nh_user_op *ops = realloc(comm->ops, ((size_t)comm->nops + 1) * sizeof *ops);
  if (!ops) return PLACES;
  comm->ops = ops;
  comm->nops++;
  return place;
}

ncclResult_t nh_op_create(ncclComm_t comm, ncclRedOp_t *op, const void *scalar, int type, bool immediate)
{
  int place = free_place(comm);
  if (place == PLACES) return nh_error(ncclInvalidUsage, nickelKindNone, "ncclRedOpCreatePreMulSum: %d operations are the most, destroy some", PLACES);
  nh_user_op *made = &comm->ops[place];
  *made = (nh_user_op){.used = true, .type = type, .device = immediate ? NULL : scalar};
  if (immediate) memcpy(&made->scalar, scalar, nh_type_size(type));
  *op = number_of(comm, place);
  return ncclSuccess;
}

ncclResult_t nh_op_destroy(ncclComm_t comm, ncclRedOp_t op)
{
  nh_user_op *found = at(comm, op);
  if (!found) return nh_error(ncclInvalidArgument, nickelKindNone, "ncclRedOpDestroy: %d is not an operation that was made on this communicator", op);
  found->used = false;
  return ncclSuccess;
}

void nh_ops_free(ncclComm_t comm)
{
  free(comm->ops);
  comm->ops = NULL;
  comm->nops = 0;
}
