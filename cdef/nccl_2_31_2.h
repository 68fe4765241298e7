/* What NCCL 2.31.2 added: a configuration per collective, CFT teams. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NCCL_2_31_2_H
#define NCCL_2_31_2_H
#include "types.h"

/* ncclHostCftMode_t */
enum {
  ncclHostCftDefault = -2147483647 - 1, ncclHostCftEnable = 1, ncclHostCftDisable = 2, ncclHostCftFallback = 3
};

/* ncclGinConnectionType_t */
enum { NCCL_GIN_CONNECTION_CUSTOM_STRIDE = 3 };

/* ncclGinType_t */
enum { NCCL_GIN_TYPE_EFA_GDA = 5, NCCL_GIN_MAX_TYPES = 6 };

/* ncclCftTeamMode_t */
enum { NCCL_CFT_TEAM_FLAT = 0, NCCL_CFT_TEAM_HIER_MULTIMEM = 1, NCCL_CFT_TEAM_HIER_LSA = 2 };

/* ncclCftCap_t */
enum { NCCL_CFT_NONE = 0, NCCL_CFT = 1, NCCL_CFT_MULTIMEM = 2 };

#define NCCL_GIN_MAX_ACTIVE_BACKENDS 4
#define NCCL_LE_ID_INVALID ((ncclCftLeId)-1)

/* Collectives with a configuration */
ncclResult_t ncclAllReduceConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t ncclBroadcastConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t ncclReduceConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t ncclAllGatherConfig(const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
    ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t ncclReduceScatterConfig(const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t datatype,
    ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t ncclAlltoAllConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t ncclGatherConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
    ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t ncclScatterConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
    ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);

/* Teams and devices */
ncclResult_t ncclGetMultimemDeviceLeInfo(ncclWindow_t window, size_t offset, ncclCftLeId *leId, size_t *leOffset);
ncclResult_t ncclGetCftDeviceLeInfo(ncclWindow_t window, size_t offset, int peerCft, ncclTeam_t cftTeam,
    ncclCftLeId *leId, size_t *leOffset);
ncclResult_t ncclGetPeerDeviceLeInfo(ncclWindow_t window, size_t offset, int peerWorld, ncclCftLeId *leId,
    size_t *leOffset);
ncclTeam_t ncclTeamCft(ncclComm_t comm, ncclCftTeamMode_t mode);
ncclTeam_t ncclTeamCftMultimem(ncclComm_t comm);
ncclResult_t ncclCftBarrierCreateRequirement(ncclTeam_t team, int nBarriers, ncclCftBarrierHandle_t *outHandle,
    ncclDevResourceRequirements_t *outReq);

#endif
