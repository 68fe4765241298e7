/* The types of NCCL's device headers that a host program meets, at their 2.32.3 layout; types.h includes this file. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TYPES_DEVICE_H
#define TYPES_DEVICE_H
#include "types.h"

typedef int ncclGinType_t;
typedef int ncclGinConnectionType_t;
typedef int ncclCftTeamMode_t;
typedef int ncclCftCap_t;

typedef uint32_t ncclDevResourceHandle_t;
typedef uint32_t ncclGinSignal_t;
typedef uint32_t ncclGinCounter_t;
typedef uint32_t ncclCftLeId;
typedef struct ncclDevCommWindowTable *ncclDevCommWindowTable_t;
typedef struct ncclGinOutboxHandle ncclGinOutboxHandle_t;
typedef struct ncclGinInboxA2AHandle ncclGinInboxA2AHandle_t;

typedef struct ncclTeam { /* 2.28.3 */
  int nRanks;
  int rank;
  int stride;
} ncclTeam_t;

typedef struct ncclMultimemHandle { /* 2.28.3 */
  void *mcBasePtr;
} ncclMultimemHandle_t;

typedef struct ncclLsaBarrierHandle { /* 2.28.3 */
  ncclDevResourceHandle_t bufHandle;
  int nBarriers;
} ncclLsaBarrierHandle_t;

typedef struct ncclGinBarrierHandle { /* 2.28.7 */
  ncclGinSignal_t signal0;
  ncclDevResourceHandle_t unused; /* 2.29.7 */
} ncclGinBarrierHandle_t;

typedef struct ncclCftBarrierHandle { /* 2.31.2 */
  ncclDevResourceHandle_t bufHandle;
  int nBarriers;
} ncclCftBarrierHandle_t;

typedef struct ncclLLA2AHandle { /* 2.28.3 */
  ncclDevResourceHandle_t bufHandle;
  uint32_t nSlots;
} ncclLLA2AHandle_t;

typedef struct ncclDevResourceRequirements { /* 2.28.3 */
  struct ncclDevResourceRequirements *next;
  size_t bufferSize;
  size_t bufferAlign;
  ncclDevResourceHandle_t *outBufferHandle;
  int ginSignalCount;                   /* 2.28.7 */
  int ginCounterCount;                  /* 2.28.7 */
  ncclGinSignal_t *outGinSignalStart;   /* 2.28.7 */
  ncclGinCounter_t *outGinCounterStart; /* 2.28.7 */
} ncclDevResourceRequirements_t;

typedef struct ncclTeamRequirements { /* 2.28.3 */
  struct ncclTeamRequirements *next;
  ncclTeam_t team;
  bool multimem;
  ncclMultimemHandle_t *outMultimemHandle;
} ncclTeamRequirements_t;

/* 2.28 had no size, magic and version: its layout is another one. */
typedef struct ncclDevCommRequirements { /* 2.28.3 */
  size_t size;          /* 2.29.2 */
  unsigned int magic;   /* 2.29.2 */
  unsigned int version; /* 2.29.2 */
  ncclDevResourceRequirements_t *resourceRequirementsList;
  ncclTeamRequirements_t *teamRequirementsList;
  bool lsaMultimem;
  int barrierCount; /* 2.28.7 */
  int lsaBarrierCount;
  int railGinBarrierCount;                   /* 2.28.7 */
  int lsaLLA2ABlockCount;                    /* 2.28.7 */
  int lsaLLA2ASlotCount;                     /* 2.28.7 */
  bool ginForceEnable;                       /* 2.28.7 */
  int ginContextCount;                       /* 2.28.7 */
  int ginSignalCount;                        /* 2.28.7 */
  int ginCounterCount;                       /* 2.28.7 */
  ncclGinConnectionType_t ginConnectionType; /* 2.29.7 */
  bool ginExclusiveContexts;                 /* 2.29.7 */
  int ginQueueDepth;                         /* 2.29.7 */
  int ginTrafficClass;                       /* 2.30.3 */
  int worldGinBarrierCount;                  /* 2.30.3 */
  bool ginStrongSignalsRequired;             /* 2.30.7 */
  bool ginVaSignalsRequired;                 /* 2.30.7 */
  int ginCustomStride;                       /* 2.31.2 */
  ncclGinType_t ginType;                     /* 2.31.2 */
  bool useRuntimeVersion;                    /* 2.31.2 */
  int cftCaps;                               /* 2.31.2 */
  int cftBarrierCount;                       /* 2.31.2 */
} ncclDevCommRequirements_t;

typedef struct ncclCommProperties { /* 2.29.2 */
  size_t size;
  unsigned int magic;
  unsigned int version;
  int rank;
  int nRanks;
  int cudaDev;
  int nvmlDev;
  bool deviceApiSupport;
  bool multimemSupport;
  ncclGinType_t ginType;
  int nLsaTeams;                             /* 2.29.7 */
  bool hostRmaSupport;                       /* 2.29.7 */
  ncclGinType_t railedGinType;               /* 2.29.7 */
  uint64_t commHash;                         /* 2.31.2 */
  int ginMinStride;                          /* 2.31.2 */
  ncclGinConnectionType_t ginConnectionType; /* 2.31.2 */
  bool ginSupport[64];                       /* 2.31.2 */
  size_t devCommRuntimeVersionSize;          /* 2.31.2 */
  bool cftSupport;                           /* 2.32.3 */
  bool cftMulticastSupport;                  /* 2.32.3 */
  bool cftCountedSupport;                    /* 2.32.3 */
} ncclCommProperties_t;

/* A part of what a window handle points to, kept where kernels find it quickly. */
typedef struct ncclResourceWindow_vidmem { /* 2.28.3 */
  char *lsaFlatBase;
  uint32_t stride4G;
  uint32_t mcOffset4K;
} ncclResourceWindow_vidmem_t;

/* Not append-only: a device communicator fits the release that it was made by and no other. */
typedef struct ncclDevComm { /* 2.28.3 */
  unsigned int magic;   /* 2.30.3 */
  unsigned int version; /* 2.30.3 */
  int rank;
  int nRanks;
  uint32_t nRanks_rcp32;
  int lsaRank;
  int lsaSize;
  uint32_t lsaSize_rcp32;
  ncclDevCommWindowTable_t windowTable;
  ncclWindow_t resourceWindow;
  ncclResourceWindow_vidmem_t resourceWindow_inlined;
  ncclGinBarrierHandle_t hybridDenseGinBarrier; /* 2.31.2 */
  ncclMultimemHandle_t lsaMultimem;
  ncclLsaBarrierHandle_t lsaBarrier;
  ncclGinBarrierHandle_t railGinBarrier;       /* 2.28.7 */
  uint8_t ginConnectionCount;                  /* 2.29.7 */
  uint8_t backendIndex;                        /* 2.31.2 */
  uint8_t ginNetDeviceTypes[4];                /* 2.29.2 */
  void *ginHandles[4];                         /* 2.28.7 */
  int ginSignalCount;                          /* 2.28.7 */
  int ginCounterCount;                         /* 2.28.7 */
  uint64_t *ginSignalShadows;                  /* 2.28.7 */
  uint32_t ginContextCount;                    /* 2.28.7 */
  int ginConnectionStride;                     /* 2.31.2 */
  int ginContextStride;                        /* 2.31.2 */
  bool ginStrongLegacySignals;                 /* 2.30.7 */
  uint32_t *abortFlag;                         /* 2.29.7 */
  ncclLsaBarrierHandle_t hybridLsaBarrier;     /* 2.30.3 */
  ncclGinBarrierHandle_t hybridRailGinBarrier; /* 2.30.3 */
  ncclGinBarrierHandle_t worldGinBarrier;      /* 2.30.3 */
  uint32_t ginConnectionStride_rcp32;          /* 2.31.2 */
  int cftRank;                                 /* 2.31.2 */
  int cftSize;                                 /* 2.31.2 */
  int cftMultimemRank;                         /* 2.31.2 */
  int cftMultimemSize;                         /* 2.31.2 */
  uint32_t cftMultimemSize_rcp32;              /* 2.31.2 */
  ncclCftLeId ucLeId;                          /* 2.31.2 */
  ncclCftLeId mcLeId;                          /* 2.31.2 */
  ncclCftBarrierHandle_t cftBarrier;           /* 2.31.2 */
  ncclCftBarrierHandle_t cftMultimemBarrier;   /* 2.31.2 */
} ncclDevComm_t;

#endif
