/* What NCCL 2.11.4 added: reduction operators made by the caller. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NCCL_2_11_4_H
#define NCCL_2_11_4_H
#include "types.h"

/* ncclRedOp_t */
enum { ncclMaxRedOp = 2147483647 };

/* ncclRedOp_dummy_t: there for the size of ncclMaxRedOp, not for callers */
enum { ncclNumOps_dummy = 5 };

/* ncclScalarResidence_t: where the scalar lies, and so when it is read */
enum { ncclScalarDevice = 0, ncclScalarHostImmediate = 1 };

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t datatype,
    ncclScalarResidence_t residence, ncclComm_t comm);
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);

#endif
