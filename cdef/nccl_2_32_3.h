/* What NCCL 2.32.3 added: encryption, and finer control of NVLS. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NCCL_2_32_3_H
#define NCCL_2_32_3_H
#include "types.h"

/* ncclNvlsHostMode_t: bits, and two values for "the library decides" and "everything off" */
enum {
  ncclNvlsHostModeDefault = -2147483647 - 1, ncclNvlsHostModeEnable = 0, ncclNvlsHostModeDisableTransport = 1,
  ncclNvlsHostModeDisableSymmetricMultimem = 2, ncclNvlsHostModeDisable = 2147483647
};

/* ncclEncryptionMode_t */
enum { NCCL_ENCRYPTION_MODE_NONE = 0, NCCL_ENCRYPTION_MODE_PSK = 1 };

/* winFlags */
#define NCCL_WIN_GIN_ONLY 4
#define NCCL_WIN_CFT_COUNTED 8

ncclResult_t ncclSetEncryption(const ncclEncryptionConfig_t *config);

#endif
