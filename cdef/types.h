/* NCCL's types at their 2.32.3 layout; a release beside a struct or a field is the one that brought it. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TYPES_H
#define TYPES_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Handles: opaque to the caller, made and freed by the library. */
typedef struct ncclComm *ncclComm_t;
typedef struct ncclWindow_vidmem *ncclWindow_t;
typedef struct ncclParamHandle *ncclParamHandle_t;
typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;

/* Enums are ints: the same four bytes, faster to convert, and a value that a newer library adds is still a number. */
typedef int ncclResult_t;
typedef int ncclDataType_t;
typedef int ncclRedOp_t;
typedef int ncclRedOp_dummy_t;
typedef int ncclScalarResidence_t;
typedef int ncclCommMemStat_t;
typedef int ncclHostCftMode_t;
typedef int ncclNvlsHostMode_t;
typedef int ncclEncryptionMode_t;

typedef struct { /* 2.0 */
  char internal[128]; /* NCCL_UNIQUE_ID_BYTES */
} ncclUniqueId;

typedef struct ncclConfig { /* 2.14.3 */
  size_t size;
  unsigned int magic;
  unsigned int version;
  int blocking;
  int cgaClusterSize;         /* 2.17.1 */
  int minCTAs;                /* 2.17.1 */
  int maxCTAs;                /* 2.17.1 */
  const char *netName;        /* 2.17.1 */
  int splitShare;             /* 2.18.1 */
  int trafficClass;           /* 2.26.2 */
  const char *commName;       /* 2.27.3 */
  int collnetEnable;          /* 2.27.3 */
  int CTAPolicy;              /* 2.27.3 */
  int shrinkShare;            /* 2.27.3 */
  int nvlsCTAs;               /* 2.27.3 */
  int nChannelsPerNetPeer;    /* 2.28.3 */
  int nvlinkCentricSched;     /* 2.28.3 */
  int graphUsageMode;         /* 2.29.2 */
  int numRmaCtx;              /* 2.29.2 */
  int maxP2pPeers;            /* 2.30.3 */
  int graphStreamOrdering;    /* 2.30.7 */
  int launchOrderImplicit;    /* 2.31.2 */
  int numRmaSig;              /* 2.31.2 */
  int rmaEagerInit;           /* 2.31.2 */
  int hostCftMode;            /* 2.31.2 */
  int nvlsHostMode;           /* 2.32.3 */
} ncclConfig_t;

typedef struct ncclConfigExt { /* 2.31.2 */
  struct ncclConfigExt *next;
  struct {
    int vendorId;
    int optionId;
  } key;
  union {
    int i;
    const char *s;
    void *raw;
  } val;
} ncclConfigExt_t;

typedef struct ncclCollConfig { /* 2.31.2 */
  size_t size;
  unsigned int magic;
  unsigned int version;
  ncclConfigExt_t *ext;
  int minCTAs;
  int maxCTAs;
  int nvlsCTAs;
  int cgaClusterSize;
  const char *algSelection;
  int forceAlgSelection;
  int CTAPolicy;
  uint64_t userProfilerTag;
  cudaEvent_t launchCompletionEvent; /* 2.32.3 */
} ncclCollConfig_t;

typedef struct ncclSimInfo { /* 2.22.3 */
  size_t size;
  unsigned int magic;
  unsigned int version;
  float estimatedTime;
} ncclSimInfo_t;

typedef struct { /* 2.29.2 */
  int opCnt;
  int peer;
  int sigIdx;
  int ctx;
} ncclWaitSignalDesc_t;

typedef struct ncclEncryptionConfig { /* 2.32.3 */
  size_t size;
  unsigned int magic;
  unsigned int version;
  int mode;
  const char *psk;
} ncclEncryptionConfig_t;

#include "types_device.h"

#endif
