/* What is in a unique id of this library. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NH_UNIQUE_ID_H
#define NH_UNIQUE_ID_H
#include "host.h"

typedef struct {
  uint64_t magic;
  uint32_t layout;
  int32_t version;
  uint8_t nonce[16];
  char boot[36];                /* the kernel's boot id: the same host, since the same boot */
  int32_t pid;
  uint64_t start, pid_namespace, inode;
  int32_t fd;
  uint8_t filler[NCCL_UNIQUE_ID_BYTES - 100 - sizeof(uint64_t)];
  uint64_t checksum;            /* of all before it: an id that was cut at a zero byte or damaged on its way says so */
} nh_id;
_Static_assert(sizeof(nh_id) == NCCL_UNIQUE_ID_BYTES && offsetof(nh_id, filler) == 100, "the id carries its way in");

ncclResult_t nh_id_make(nh_id *id, const uint8_t *nonce, int fd, uint64_t inode);
ncclResult_t nh_id_stale(const nh_id *id);         /* the error that its maker has ended */
ncclResult_t nh_id_examine(const nh_id *id);      /* can it be an id that this process may join by? */

#endif
