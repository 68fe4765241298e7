/* Memory shown to other array libraries by DLPack, for as long as they look at it. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLPACK_H
#define DLPACK_H
#include <stdint.h>

typedef struct {
  void *data;
  int32_t device_type, device_id;
  int32_t ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} pn_dltensor; /* DLTensor */

/* What a capsule of DLPack 1 (versioned) or 0 holds: dense elements of that code and size. NULL without memory for it.
   It takes over one reference to the Python object `owner`, and gives it back when the last user is done. */
void *pn_dlpack_new(int versioned, uintptr_t owner, uintptr_t address, int device_type, int device_id,
                    int code, int bits, int ndim, const int64_t *shape);
uintptr_t pn_dlpack_name(int versioned); /* the capsule's name */
uintptr_t pn_dlpack_destructor(void);    /* the capsule's destructor */
#endif
