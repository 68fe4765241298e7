/* Unique ids: made so that they lead to a segment, and examined before anybody follows them. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "unique_id.h"

/* FNV-1a. */
static uint64_t checksum_of(const nh_id *id)
{
  uint64_t sum = UINT64_C(0xcbf29ce484222325);
  for (size_t i = 0; i < offsetof(nh_id, checksum); i++) sum = (sum ^ ((const uint8_t *)id)[i]) * UINT64_C(0x100000001b3);
  return sum;
}

/* 0: there is no such process (or it is ending or a zombie), or, with errno EMFILE or ENFILE, it cannot be told. */
uint64_t nh_start_time(int pid)
{
  char path[40], text[1024];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  ssize_t got = read(fd, text, sizeof text - 1);
  close(fd);
  errno = 0;
  if (got <= 0) return 0;
  text[got] = 0;
  char *field = strrchr(text, ')'), state; /* the name before it may hold anything */
  unsigned long flags;
  const unsigned long exiting = 4; /* the kernel's PF_EXITING: it is on its way, and others may not look into it any more */
  if (!field || sscanf(field, ") %c %*s %*s %*s %*s %*s %lu", &state, &flags) != 2 || state == 'Z' || state == 'X' || (flags & exiting)) return 0;
  for (int skip = 0; skip < 20 && field; skip++) field = strchr(field + 1, ' '); /* to field 22 */
  return field ? strtoull(field, NULL, 10) : 0;
}

/* Read once: it does not change, and there may be no descriptor left for it later. False with errno. */
static bool boot_id(char boot[36])
{
  static char known[36];
  nh_lock();
  bool ok = known[0] != 0;
  if (!ok) {
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ok = fd >= 0 && read(fd, known, sizeof known) == sizeof known;
    if (!ok) known[0] = 0;
    if (fd >= 0) close(fd);
  }
  memcpy(boot, known, sizeof known);
  nh_unlock();
  return ok;
}

static uint64_t pid_namespace(void)
{
  struct stat about;
  return stat("/proc/self/ns/pid", &about) == 0 ? about.st_ino : 0;
}

ncclResult_t nh_id_make(nh_id *id, const uint8_t *nonce, int fd, uint64_t inode)
{
  *id = (nh_id){.magic = NH_MAGIC, .layout = NH_LAYOUT, .version = NCCL_VERSION_CODE, .pid = getpid(), .start = nh_start_time(getpid()),
                .pid_namespace = pid_namespace(), .inode = inode, .fd = fd};
  memcpy(id->nonce, nonce, sizeof id->nonce);
  if (!boot_id(id->boot)) return nh_descriptor_error("the kernel's boot id cannot be read");
  id->checksum = checksum_of(id);
  return ncclSuccess;
}

ncclResult_t nh_id_stale(const nh_id *id)
{
  return nh_error(ncclInvalidUsage, nickelKindIdStale,
                    "the process that made the unique id (pid %d) has ended: it must live until all ranks have joined; make a new id", id->pid);
}

ncclResult_t nh_id_examine(const nh_id *id)
{
  static const uint8_t zero[sizeof *id];
  if (memcmp(id, zero, sizeof zero) == 0)
    return nh_error(ncclInvalidArgument, nickelKindIdInvalid,
                    "the unique id is all zero bytes: one rank calls ncclGetUniqueId and gives its 128 bytes to all others");
  if (id->magic != NH_MAGIC)
    return nh_error(ncclInvalidArgument, nickelKindIdInvalid,
                    "the unique id was not made by the CPU library: make it with the same library that makes the communicator");
  if (id->checksum != checksum_of(id))
    return nh_error(ncclInvalidArgument, nickelKindIdInvalid,
                    "the unique id is damaged or was cut off: all 128 bytes are needed, and there are zero bytes among them");
  if (id->layout != NH_LAYOUT || id->version != NCCL_VERSION_CODE)
    return nh_error(ncclInvalidUsage, nickelKindVersion, "the unique id was made by version %d (layout %u) of the CPU library, this is %d (layout %d): use one version on all ranks",
                    id->version, id->layout, NCCL_VERSION_CODE, NH_LAYOUT);
  char boot[36];
  if (!boot_id(boot)) return nh_descriptor_error("the kernel's boot id cannot be read");
  if (memcmp(boot, id->boot, sizeof boot) != 0)
    return nh_error(ncclInvalidUsage, nickelKindIdStale,
                    "the unique id was made on another host, or before this one was booted: the CPU library serves one machine, NVIDIA's NCCL serves several");
  if (id->pid_namespace != pid_namespace())
    return nh_error(ncclInvalidUsage, nickelKindIdStale,
                    "the unique id was made in another pid namespace: run all ranks in one container, or the containers with a common one");
  uint64_t start = nh_start_time(id->pid);
  if (!start && (errno == EMFILE || errno == ENFILE)) return nh_descriptor_error("the maker of the unique id cannot be looked at");
  if (start != id->start) return nh_id_stale(id);
  return ncclSuccess;
}
