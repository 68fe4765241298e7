/* First values of the structs that carry their size: the library decides whatever the caller does not set. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef INITIALIZERS_H
#define INITIALIZERS_H
#include "nccl_2_17_1.h"
#include "nccl_2_22_3.h"
#include "nccl_2_29_2.h"
#include "nccl_2_29_7.h"
#include "nccl_2_31_2.h"
#include "nccl_2_32_3.h"
#include "nccl_2_3_5.h"

/* The number that a release has in NCCL_VERSION_CODE and ncclGetVersion: NCCL_VERSION(2, 8, 4) is 2804, NCCL_VERSION(2, 9, 6) is 20906. */
#define NCCL_VERSION(X, Y, Z) (((X) <= 2 && (Y) <= 8) ? (X) * 1000 + (Y) * 100 + (Z) : (X) * 10000 + (Y) * 100 + (Z))

#define NCCL_CONFIG_INITIALIZER { \
  sizeof(ncclConfig_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, \
  NCCL_CONFIG_UNDEF_INT, /* blocking */ \
  NCCL_CONFIG_UNDEF_INT, /* cgaClusterSize */ \
  NCCL_CONFIG_UNDEF_INT, /* minCTAs */ \
  NCCL_CONFIG_UNDEF_INT, /* maxCTAs */ \
  NCCL_CONFIG_UNDEF_PTR, /* netName */ \
  NCCL_CONFIG_UNDEF_INT, /* splitShare */ \
  NCCL_CONFIG_UNDEF_INT, /* trafficClass */ \
  NCCL_CONFIG_UNDEF_PTR, /* commName */ \
  NCCL_CONFIG_UNDEF_INT, /* collnetEnable */ \
  NCCL_CONFIG_UNDEF_INT, /* CTAPolicy */ \
  NCCL_CONFIG_UNDEF_INT, /* shrinkShare */ \
  NCCL_CONFIG_UNDEF_INT, /* nvlsCTAs */ \
  NCCL_CONFIG_UNDEF_INT, /* nChannelsPerNetPeer */ \
  NCCL_CONFIG_UNDEF_INT, /* nvlinkCentricSched */ \
  NCCL_CONFIG_UNDEF_INT, /* graphUsageMode */ \
  NCCL_CONFIG_UNDEF_INT, /* numRmaCtx */ \
  NCCL_CONFIG_UNDEF_INT, /* maxP2pPeers */ \
  NCCL_CONFIG_UNDEF_INT, /* graphStreamOrdering */ \
  NCCL_CONFIG_UNDEF_INT, /* launchOrderImplicit */ \
  NCCL_CONFIG_UNDEF_INT, /* numRmaSig */ \
  NCCL_CONFIG_UNDEF_INT, /* rmaEagerInit */ \
  NCCL_CONFIG_UNDEF_INT, /* hostCftMode */ \
  NCCL_CONFIG_UNDEF_INT, /* nvlsHostMode */ \
}

#define NCCL_COLLCONFIG_INITIALIZER { \
  sizeof(ncclCollConfig_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, \
  NCCL_CONFIG_UNDEF_PTR, /* ext */ \
  NCCL_CONFIG_UNDEF_INT, /* minCTAs */ \
  NCCL_CONFIG_UNDEF_INT, /* maxCTAs */ \
  NCCL_CONFIG_UNDEF_INT, /* nvlsCTAs */ \
  NCCL_CONFIG_UNDEF_INT, /* cgaClusterSize */ \
  NCCL_CONFIG_UNDEF_PTR, /* algSelection */ \
  1, /* forceAlgSelection */ \
  NCCL_CONFIG_UNDEF_INT, /* CTAPolicy */ \
  0, /* userProfilerTag */ \
  NCCL_CONFIG_UNDEF_PTR, /* launchCompletionEvent */ \
}

#define NCCL_SIM_INFO_INITIALIZER { \
  sizeof(ncclSimInfo_t), 0x74685283 /* a magic of its own */, NCCL_VERSION_CODE, \
  NCCL_UNDEF_FLOAT, /* estimatedTime */ \
}

#define NCCL_ENCRYPTION_CONFIG_INITIALIZER { \
  sizeof(ncclEncryptionConfig_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, \
  NCCL_ENCRYPTION_MODE_NONE, /* mode */ \
  NCCL_CONFIG_UNDEF_PTR, /* psk */ \
}

#define NCCL_COMM_PROPERTIES_INITIALIZER { \
  sizeof(ncclCommProperties_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, \
  0, 0, 0, 0, /* rank, nRanks, cudaDev, nvmlDev */ \
  false, false, NCCL_GIN_TYPE_NONE, 0, false, NCCL_GIN_TYPE_NONE, /* deviceApiSupport to railedGinType */ \
  0, 0, NCCL_GIN_CONNECTION_NONE, {false}, 0, false, false, false, /* commHash to cftCountedSupport */ \
}

#define NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER { \
  sizeof(ncclDevCommRequirements_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, \
  NULL, NULL, /* resourceRequirementsList, teamRequirementsList */ \
  false, 0, 0, 0, /* lsaMultimem, barrierCount, lsaBarrierCount, railGinBarrierCount */ \
  0, 0, false, /* lsaLLA2ABlockCount, lsaLLA2ASlotCount, ginForceEnable */ \
  4, 0, 0, /* ginContextCount, ginSignalCount, ginCounterCount */ \
  NCCL_GIN_CONNECTION_NONE, false, 0, /* ginConnectionType, ginExclusiveContexts, ginQueueDepth */ \
  NCCL_CONFIG_UNDEF_INT, 0, /* ginTrafficClass, worldGinBarrierCount */ \
  true, true, 1, /* ginStrongSignalsRequired, ginVaSignalsRequired, ginCustomStride */ \
  NCCL_GIN_TYPE_NONE, false, NCCL_CFT_NONE, 0, /* ginType, useRuntimeVersion, cftCaps, cftBarrierCount */ \
}

#endif
