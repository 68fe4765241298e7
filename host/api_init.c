/* The exported functions that make and end communicators. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "api.h"

/* ncclSetEncryption was given a key: there is no TLS here, so inits fail, as in NCCL's own builds without it. Of the process, under nh_lock. */
static bool encryption_asked;

static bool encrypts(void)
{
  nh_lock();
  bool asked = encryption_asked;
  nh_unlock();
  return asked;
}

/* These say success while they go on in the background, as in NCCL. */
ncclResult_t nh_still_running(ncclResult_t result)
{
  return nh_group_note(result == ncclInProgress ? ncclSuccess : result);
}

ncclResult_t nh_init_rank(const char *function, ncclComm_t *comm, int nranks, const ncclUniqueId *id, int rank, int device, const ncclConfig_t *config)
{
  nh_task task;
  nh_settings settings;
  ENSURE(comm, "%s: the pointer to the communicator is NULL", function);
  *comm = NULL;
  ENSURE(nranks >= 1 && nranks <= NH_MAX_RANKS, "%s: nranks is %d, must be 1 to %d", function, nranks, NH_MAX_RANKS);
  ENSURE(rank >= 0 && rank < nranks, "%s: rank is %d, must be 0 to %d", function, rank, nranks - 1);
  if (encrypts()) FAIL(ncclInvalidUsage, nickelKindNone, "%s: encryption was asked for by ncclSetEncryption, and this library has none", function);
  TRY(nh_settings_from(config, NULL, &settings, function));
  TRY(nh_comm_new(&task, comm, nranks, (const uint8_t *)id->internal, rank, device, settings));
  return nh_group_note(nh_submit(&task));
}

API(ncclResult_t, ncclCommInitRank, ncclComm_t *comm, int nranks, ncclUniqueId id, int rank)
{
  return nh_init_rank("ncclCommInitRank", comm, nranks, &id, rank, 0, NULL);
}

API(ncclResult_t, ncclCommInitRankConfig, ncclComm_t *comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
  return nh_init_rank("ncclCommInitRankConfig", comm, nranks, &id, rank, 0, config);
}

/* One id is enough here: the others are only there to share the load of a big start. */
API(ncclResult_t, ncclCommInitRankScalable, ncclComm_t *comm, int nranks, int rank, int nids, ncclUniqueId *ids, ncclConfig_t *config)
{
  ENSURE(ids, "ncclCommInitRankScalable: the pointer to the ids is NULL");
  ENSURE(nids >= 1 && nids <= nranks, "ncclCommInitRankScalable: the number of ids is %d, must be 1 to nranks, %d", nids, nranks);
  for (int i = 1; i < nids; i++) nh_segment_unneeded((const uint8_t *)ids[i].internal);
  return nh_init_rank("ncclCommInitRankScalable", comm, nranks, &ids[0], rank, 0, config);
}

API(ncclResult_t, ncclCommInitAll, ncclComm_t *comms, int ndev, const int *devices)
{
  ENSURE(comms && ndev >= 1 && ndev <= NH_MAX_RANKS, "ncclCommInitAll: %s",
         comms ? "the number of devices must be 1 or more" : "the pointer to the communicators is NULL");
  for (int i = 0; devices && i < ndev; i++) ENSURE(devices[i] >= 0, "ncclCommInitAll: device %d is %d, must be 0 or more", i, devices[i]);
  ncclUniqueId id;
  TRY(nh_segment_make(&id));
  nh_group_start();
  for (int i = 0; i < ndev; i++) nh_init_rank("ncclCommInitAll", &comms[i], ndev, &id, i, devices ? devices[i] : i, NULL);
  return nh_group_end();
}

API(ncclResult_t, ncclSetEncryption, const ncclEncryptionConfig_t *config)
{
  ncclEncryptionConfig_t whole = NCCL_ENCRYPTION_CONFIG_INITIALIZER;
  ENSURE(config, "ncclSetEncryption: the config is NULL");
  whole.magic = 0;
  memcpy(&whole, config, config->size < sizeof whole ? config->size : sizeof whole);
  ENSURE(whole.magic == NCCL_API_MAGIC, "ncclSetEncryption: the config was not made with NCCL_ENCRYPTION_CONFIG_INITIALIZER");
  ENSURE(whole.mode == NCCL_ENCRYPTION_MODE_NONE || whole.mode == NCCL_ENCRYPTION_MODE_PSK, "ncclSetEncryption: mode %d is unknown", whole.mode);
  ENSURE(whole.mode == NCCL_ENCRYPTION_MODE_NONE || (whole.psk && strlen(whole.psk) >= 32), "ncclSetEncryption: the key must have 32 bytes or more");
  nh_lock();
  encryption_asked = whole.mode != NCCL_ENCRYPTION_MODE_NONE;
  nh_unlock();
  return ncclSuccess;
}


/* ---- from communicators ---- */

API(ncclResult_t, ncclCommSplit, ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config)
{
  nh_settings settings;
  ENSURE(newcomm, "ncclCommSplit: the pointer to the new communicator is NULL");
  *newcomm = NULL;
  if (nh_comm_valid(comm) && nh_comm_revoked(comm)) TRY(nh_comm_check_end(comm, "ncclCommSplit"));
  else TRY(nh_comm_check(comm, "ncclCommSplit"));
  TRY(nh_comm_check_ready(comm, "ncclCommSplit"));
  ENSURE(color >= 0 || color == NCCL_SPLIT_NOCOLOR, "ncclCommSplit: the color is %d, must be 0 or more, or NCCL_SPLIT_NOCOLOR", color);
  TRY(nh_settings_from(config, &comm->settings, &settings, "ncclCommSplit"));
  return nh_still_running(nh_split(comm, color, key, newcomm, settings));
}

static int by_number(const void *a, const void *b)
{
  return *(const int *)a - *(const int *)b;
}

/* The caller's list is sorted in place, as NCCL does. */
API(ncclResult_t, ncclCommShrink, ncclComm_t comm, int *exclude, int nexclude, ncclComm_t *newcomm, ncclConfig_t *config, int flags)
{
  nh_settings settings;
  ENSURE(newcomm, "ncclCommShrink: the pointer to the new communicator is NULL");
  *newcomm = NULL;
  ENSURE(flags == NCCL_SHRINK_DEFAULT || flags == NCCL_SHRINK_ABORT, "ncclCommShrink: flags are %d, must be NCCL_SHRINK_DEFAULT or NCCL_SHRINK_ABORT", flags);
  TRY(nh_comm_exists(comm, "ncclCommShrink"));
  ENSURE(exclude && nexclude > 0, "ncclCommShrink: %s", exclude ? "the number of excluded ranks must be 1 or more" : "the list of excluded ranks is NULL");
  for (int i = 0; i < nexclude; i++) {
    ENSURE(exclude[i] >= 0 && exclude[i] < comm->nranks, "ncclCommShrink: excluded rank %d is %d, must be 0 to %d", i, exclude[i], comm->nranks - 1);
    ENSURE(exclude[i] != comm->rank, "ncclCommShrink: rank %d calls it and excludes itself: only those that stay call it", comm->rank);
  }
  if (flags == NCCL_SHRINK_ABORT) nh_comm_interrupt(comm);
  else if (nh_comm_revoked(comm) || nh_comm_code(comm) != ncclSuccess) TRY(nh_comm_check_end(comm, "ncclCommShrink"));
  else TRY(nh_comm_check(comm, "ncclCommShrink"));
  TRY(nh_comm_check_ready(comm, "ncclCommShrink"));
  TRY(nh_settings_from(config, &comm->settings, &settings, "ncclCommShrink"));
  qsort(exclude, (size_t)nexclude, sizeof *exclude, by_number);
  bool *excluded = calloc((size_t)comm->nranks, sizeof *excluded);
  if (!excluded) FAIL(ncclSystemError, nickelKindMemory, "ncclCommShrink: no memory");
  for (int i = 0; i < nexclude; i++) excluded[exclude[i]] = true;
  return nh_still_running(nh_shrink(comm, excluded, newcomm, settings));
}

API(ncclResult_t, ncclCommGetUniqueId, ncclComm_t comm, ncclUniqueId *id)
{
  TRY(nh_comm_check(comm, "ncclCommGetUniqueId"));
  ENSURE(id, "ncclCommGetUniqueId: the pointer to the id is NULL");
  return nh_group_note(nh_segment_make(id));
}

API(ncclResult_t, ncclCommGrow, ncclComm_t comm, int nranks, const ncclUniqueId *id, int rank, ncclComm_t *newcomm, ncclConfig_t *config)
{
  nh_settings settings;
  ENSURE(newcomm, "ncclCommGrow: the pointer to the new communicator is NULL");
  *newcomm = NULL;
  if (!comm) {
    ENSURE(id, "ncclCommGrow: a new rank passes the unique id that a member got from ncclCommGetUniqueId");
    return nh_init_rank("ncclCommGrow", newcomm, nranks, id, rank, 0, config);
  }
  TRY(nh_comm_check(comm, "ncclCommGrow"));
  ENSURE(rank == -1, "ncclCommGrow: rank is %d, a member of the communicator keeps its own and passes -1", rank);
  ENSURE(nranks > comm->nranks && nranks <= NH_MAX_RANKS, "ncclCommGrow: nranks is %d, must be above the %d that there are", nranks, comm->nranks);
  TRY(nh_settings_from(config, &comm->settings, &settings, "ncclCommGrow"));
  return nh_still_running(nh_grow(comm, nranks, id, newcomm, settings));
}


/* ---- the end ---- */

static void finalized(nh_task *task)
{
  if (task->result == ncclSuccess) nh_comm_set_condition(task->comm, NH_FINALIZED, true);
}

API(ncclResult_t, ncclCommFinalize, ncclComm_t comm)
{
  if (!comm) return ncclSuccess;
  TRY(nh_comm_exists(comm, "ncclCommFinalize"));
  ENSURE(!nh_comm_revoked(comm), "ncclCommFinalize: the communicator has been revoked, destroy it");
  TRY(nh_comm_check(comm, "ncclCommFinalize"));
  nh_task task = {.comm = comm, .serial = comm->serial, .op = NH_FINALIZE, .type = ncclInt8, .end = finalized};
  nh_collective_prepare(&task);
  return nh_group_note(nh_submit(&task));
}

API(ncclResult_t, ncclCommDestroy, ncclComm_t comm)
{
  if (!comm) return ncclSuccess;
  TRY(nh_comm_exists(comm, "ncclCommDestroy"));
  return nh_group_note(nh_comm_destroy(comm));
}

API(ncclResult_t, ncclCommAbort, ncclComm_t comm)
{
  if (!comm) return ncclSuccess;
  TRY(nh_comm_exists(comm, "ncclCommAbort"));
  return nh_group_note(nh_comm_abort(comm));
}

API(ncclResult_t, ncclCommRevoke, ncclComm_t comm, int flags)
{
  if (!comm) return ncclSuccess;
  TRY(nh_comm_exists(comm, "ncclCommRevoke"));
  ENSURE(flags == NCCL_REVOKE_DEFAULT, "ncclCommRevoke: flags are %d, must be NCCL_REVOKE_DEFAULT", flags);
  ENSURE(!nh_comm_revoked(comm), "ncclCommRevoke: the communicator has been revoked before");
  ENSURE(!nh_comm_is(comm, NH_FINALIZED), "ncclCommRevoke: the communicator has been finalized, destroy it");
  return nh_group_note(nh_comm_revoke(comm));
}
