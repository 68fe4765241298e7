/* Registered buffers: nothing has to be done for them here, but they are counted as NCCL counts them. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "host.h"

typedef struct nh_registration {
  struct nh_registration *next;
  void *buffer;
  size_t size;
  int times;
} nh_registration;

ncclResult_t nh_register(ncclComm_t comm, void *buffer, size_t size, void **handle)
{
  nh_registration *found = comm->registrations;
  while (found && (found->buffer != buffer || found->size != size)) found = found->next;
  if (!found) {
    found = malloc(sizeof *found);
    if (!found) return nh_error(ncclSystemError, nickelKindMemory, "no memory for a registration");
    *found = (nh_registration){.next = comm->registrations, .buffer = buffer, .size = size};
    comm->registrations = found;
  }
  found->times++;
  *handle = found;
  return ncclSuccess;
}

ncclResult_t nh_deregister(ncclComm_t comm, void *handle)
{
  nh_registration **at = &comm->registrations;
  while (*at && *at != handle) at = &(*at)->next;
  nh_registration *found = *at;
  if (!found) return nh_error(ncclInvalidUsage, nickelKindNone, "ncclCommDeregister: %p is not a registration of this communicator", handle);
  if (--found->times) return ncclSuccess;
  *at = found->next;
  free(found);
  return ncclSuccess;
}

void nh_registrations_free(ncclComm_t comm)
{
  nh_registration *next = comm->registrations;
  comm->registrations = NULL;
  while (next) {
    nh_registration *this = next;
    next = this->next;
    free(this);
  }
}
