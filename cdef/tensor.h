/* A function for Python that tells all about a tensor of torch in one call. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TENSOR_H
#define TENSOR_H
#include <stdint.h>

/* A Python function of one argument: (address, count, type) of a dense tensor of two or more elements in host memory, else None.
   `describe` is torch's own from its DLPack exchange table; `types` is a tuple of NCCL's types in their order. A new reference. */
uintptr_t pn_tensor_reader(uintptr_t describe, uintptr_t types);
#endif
