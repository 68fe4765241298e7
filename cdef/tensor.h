/* What a usual array says of itself, without a question to Python: the smallest messages notice each of them. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TENSOR_H
#define TENSOR_H
#include <stdint.h>

/* Python objects come by their address; whoever tells of a class keeps it alive. */

/* From now on arrays of `kind` (numpy.ndarray) are read in place, if what is read so of `array`, one of them, agrees with what it has
   said: its address, its elements, its flags, its dtype. `types`: a dict, from dtype to NCCL's type. 1 if so. */
int pn_know_arrays(uintptr_t kind, uintptr_t array, uintptr_t address, int64_t count, int flags, uintptr_t dtype, uintptr_t types);

/* From now on tensors of that class (torch.Tensor, Parameter) are read by `describe`, torch's own from its DLPack exchange table. */
void pn_know_tensors(uintptr_t kind, uintptr_t describe);

/* Puts a function (object, writable) into `place`, a dict, as "facts": (address, count, type) of such an array in host memory, dense
   and, if asked, one that may be written; else None, and the long way says what it is. `types`: a tuple of NCCL's types in their
   order. -1: no memory. */
int pn_put_reader(uintptr_t place, uintptr_t types);

typedef struct {
  uintptr_t address;
  int64_t count; /* elements, at least 1 */
  int type;      /* NCCL's */
} pn_dense;

/* The same for C: 1, or 0 without an exception. */
int pn_read(void *object, int writable, pn_dense *found);
#endif
