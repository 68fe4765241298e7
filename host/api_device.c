/* The exported functions that need a GPU: each answers as NCCL does where there is no support. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "api.h"

static ncclResult_t unsupported(const char *function)
{
  FAIL(ncclInvalidUsage, nickelKindNone, "%s: the device API needs a GPU, the CPU library has none", function);
}

/* Parameters are named only to be ignored. */
#define NO_DEVICE(name, ...)                                                                                                              \
  _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wunused-parameter\"")                                                 \
  API(ncclResult_t, name, __VA_ARGS__)                                                                                                    \
  {                                                                                                                                       \
    return unsupported(#name);                                                                                                            \
  }                                                                                                                                       \
  _Pragma("GCC diagnostic pop")

NO_DEVICE(ncclDevCommCreate, ncclComm_t comm, const ncclDevCommRequirements_t *requirements, ncclDevComm_t *out)
NO_DEVICE(ncclDevCommDestroy, ncclComm_t comm, const ncclDevComm_t *device)
NO_DEVICE(ncclGetLsaMultimemDevicePointer, ncclWindow_t window, size_t offset, void **out)
NO_DEVICE(ncclGetMultimemDevicePointer, ncclWindow_t window, size_t offset, ncclMultimemHandle_t handle, void **out)
NO_DEVICE(ncclGetLsaDevicePointer, ncclWindow_t window, size_t offset, int rank, void **out)
NO_DEVICE(ncclGetPeerDevicePointer, ncclWindow_t window, size_t offset, int peer, void **out)
NO_DEVICE(ncclGetMultimemDeviceLeInfo, ncclWindow_t window, size_t offset, ncclCftLeId *id, size_t *out)
NO_DEVICE(ncclGetCftDeviceLeInfo, ncclWindow_t window, size_t offset, int peer, ncclTeam_t team, ncclCftLeId *id, size_t *out)
NO_DEVICE(ncclGetPeerDeviceLeInfo, ncclWindow_t window, size_t offset, int peer, ncclCftLeId *id, size_t *out)
NO_DEVICE(ncclLsaBarrierCreateRequirement, ncclTeam_t team, int n, ncclLsaBarrierHandle_t *handle, ncclDevResourceRequirements_t *out)
NO_DEVICE(ncclGinBarrierCreateRequirement, ncclComm_t comm, ncclTeam_t team, int n, ncclGinBarrierHandle_t *handle, ncclDevResourceRequirements_t *out)
NO_DEVICE(ncclLLA2ACreateRequirement, int blocks, int slots, ncclLLA2AHandle_t *handle, ncclDevResourceRequirements_t *out)
NO_DEVICE(ncclGinOutboxCreateRequirement, int blocks, int size, ncclGinOutboxHandle_t *handle, ncclDevResourceRequirements_t *out)
NO_DEVICE(ncclGinInboxA2ACreateRequirement, ncclTeam_t team, int blocks, int size, ncclGinInboxA2AHandle_t *handle, ncclDevResourceRequirements_t *out)

/* Slots for so many elements of such a size: none, since there is no exchange to use them. */
API(int, ncclLLA2ACalcSlots, int elements, int size)
{
  (void)elements;
  (void)size;
  return 0;
}


/* ---- teams: the world, and each rank alone in every team of the device API ---- */

static ncclTeam_t world(ncclComm_t comm)
{
  return nh_comm_valid(comm) ? (ncclTeam_t){.nRanks = comm->nranks, .rank = comm->rank, .stride = 1} : (ncclTeam_t){0};
}

static ncclTeam_t alone(ncclComm_t comm)
{
  return nh_comm_valid(comm) ? (ncclTeam_t){.nRanks = 1, .rank = 0, .stride = 1} : (ncclTeam_t){0};
}

API(ncclTeam_t, ncclTeamWorld, ncclComm_t comm)
{
  return world(comm);
}

API(ncclTeam_t, ncclTeamLsa, ncclComm_t comm)
{
  return alone(comm);
}

API(ncclTeam_t, ncclTeamRail, ncclComm_t comm)
{
  return world(comm);
}

API(ncclTeam_t, ncclTeamCft, ncclComm_t comm, ncclCftTeamMode_t mode)
{
  (void)mode;
  return alone(comm);
}

API(ncclTeam_t, ncclTeamCftMultimem, ncclComm_t comm)
{
  return alone(comm);
}

API(int, ncclTeamRankToWorld, ncclComm_t comm, ncclTeam_t team, int rank)
{
  return nh_comm_valid(comm) ? comm->rank + (rank - team.rank) * team.stride : -1;
}

/* The rank in its team of one; -1 for another rank. */
API(int, ncclTeamRankToLsa, ncclComm_t comm, ncclTeam_t team, int rank)
{
  return nh_comm_valid(comm) && rank == team.rank ? 0 : -1;
}
