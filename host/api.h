/* How the api files export: pncclX is the function, ncclX its weak alias, as in NVIDIA's library. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NH_API_H
#define NH_API_H
#include "host.h"

#define EXPORT __attribute__((visibility("default")))
#define API(result, name, ...)                                                                                                            \
  EXPORT result p##name(__VA_ARGS__);                                                                                                     \
  extern __typeof__(p##name) name __attribute__((weak, alias("p" #name), visibility("default")));                                         \
  result p##name(__VA_ARGS__)

/* An error inside a group is the group's. */
#define FAIL(code, kind, ...) return nh_group_note(nh_error(code, kind, __VA_ARGS__))
#define ENSURE(condition, ...)                                                                                                            \
  do                                                                                                                                      \
    if (!(condition)) FAIL(ncclInvalidArgument, nickelKindNone, __VA_ARGS__);                                                             \
  while (0)
#define TRY(expression)                                                                                                                   \
  do {                                                                                                                                    \
    ncclResult_t tried_ = (expression);                                                                                                   \
    if (tried_ != ncclSuccess) return nh_group_note(tried_);                                                                              \
  } while (0)

/* api_init.c: for calls that return at once on a non-blocking communicator, and do not say that they are in progress. */
ncclResult_t nh_still_running(ncclResult_t result);
/* api_init.c: every way to a new communicator ends there. */
ncclResult_t nh_init_rank(const char *function, ncclComm_t *comm, int nranks, const ncclUniqueId *id, int rank, int device, const ncclConfig_t *config);

#endif
