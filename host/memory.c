/* Pages and descriptors: what can run out, and how that is said. */
/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "host.h"

/* Bytes that can be had without killing somebody, as far as the kernel tells: memfds know no limit but the end of memory. */
static uint64_t available(void)
{
  unsigned long kilobytes = 0;
  uint64_t free_bytes = UINT64_MAX, limit, used;
  char line[128];
  FILE *file = fopen("/proc/meminfo", "re");
  while (file && fgets(line, sizeof line, file))
    if (sscanf(line, "MemAvailable: %lu kB", &kilobytes) == 1) free_bytes = (uint64_t)kilobytes * 1024;
  if (file) fclose(file);
  FILE *max = fopen("/sys/fs/cgroup/memory.max", "re"), *now = fopen("/sys/fs/cgroup/memory.current", "re");
  if (max && now && fscanf(max, "%lu", &limit) == 1 && fscanf(now, "%lu", &used) == 1) {
    uint64_t left = limit > used ? limit - used : 0;
    if (left < free_bytes) free_bytes = left;
  }
  if (max) fclose(max);
  if (now) fclose(now);
  return free_bytes;
}

/* Pages for a part of a memfd, now: running out of memory is an error here and not a signal later. */
ncclResult_t nh_reserve(int fd, size_t offset, size_t size, const char *what)
{
  enum { LARGE = 64 << 20, CHUNK = 16 << 20 };
  int failed = size >= LARGE && size > available() ? ENOMEM : 0;
  for (size_t at = 0; at < size && !failed; at += CHUNK) {
    size_t length = size - at < CHUNK ? size - at : CHUNK;
    do failed = fallocate(fd, 0, (off_t)(offset + at), (off_t)length) ? errno : 0;
    while (failed == EINTR);
  }
  if (!failed) return ncclSuccess;
  return nh_error(ncclSystemError, nickelKindMemory, "%zu bytes of shared memory for %s cannot be had (%s): free memory or raise the limit", size,
                  what, strerror(failed));
}

/* Why a descriptor could not be had, and what to do. */
const char *nh_descriptor_text(int failed, char *text, size_t room)
{
  struct rlimit limit = {0};
  getrlimit(RLIMIT_NOFILE, &limit);
  if (failed == EMFILE)
    snprintf(text, room, "this process has reached its limit of %lu open files: raise it (ulimit -n) or close some; every communicator takes one, and so does every "
             "piece of ncclMemAlloc memory", (unsigned long)limit.rlim_cur);
  else if (failed == ENFILE) snprintf(text, room, "the machine has reached its limit of open files: raise it (sysctl fs.file-max) or close some");
  else snprintf(text, room, "%s", strerror(failed));
  return text;
}

/* From errno. */
ncclResult_t nh_descriptor_error(const char *what)
{
  char text[256];
  return nh_error(ncclSystemError, nickelKindMemory, "%s: %s", what, nh_descriptor_text(errno, text, sizeof text));
}
