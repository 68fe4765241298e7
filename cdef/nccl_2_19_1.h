/* What NCCL 2.19.1 added: memory from the library, and registered buffers. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NCCL_2_19_1_H
#define NCCL_2_19_1_H
#include "types.h"

/* Memory */
ncclResult_t ncclMemAlloc(void **ptr, size_t size);
ncclResult_t ncclMemFree(void *ptr);

/* Registration */
ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buff, size_t size, void **handle);
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle);

#endif
