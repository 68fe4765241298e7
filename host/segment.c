/* The shared segment of a communicator: a memfd without a name, reached through the unique id. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The maker of an id owns the memfd; joiners open it through /proc/<pid>/fd/<fd>. So there is nothing to unlink, and nothing is left
 * when everybody is gone, however they went. All of this process's segments are in one list under one lock, held across fork, whose
 * child forgets them: a forked child has no part in its parent's communicators.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

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

/* FNV-1a. */
static uint64_t checksum_of(const nh_id *id)
{
  uint64_t sum = UINT64_C(0xcbf29ce484222325);
  for (size_t i = 0; i < offsetof(nh_id, checksum); i++) sum = (sum ^ ((const uint8_t *)id)[i]) * UINT64_C(0x100000001b3);
  return sum;
}

static nh_segment *segments;

void nh_segments_forked(void)
{
  for (nh_segment *s = segments; s; s = s->next) close(s->fd);
  segments = NULL;
}


/* ---- the drawing of host.h as addresses ---- */

static size_t inline_at(int nranks)
{
  return NH_RANKS_AT + (size_t)nranks * NH_PAGE;
}

static size_t slots_at(int nranks)
{
  return inline_at(nranks) + (size_t)nranks * 2 * NH_INLINE;
}

static size_t pairs_at(int nranks)
{
  return slots_at(nranks) + (size_t)nranks * NH_SLOTS * NH_SLOT;
}

static size_t pair_slots_at(int nranks)
{
  size_t end = pairs_at(nranks) + (size_t)nranks * (size_t)nranks * sizeof(nh_pair);
  return (end + NH_PAGE - 1) / NH_PAGE * NH_PAGE;
}

static size_t total_size(int nranks)
{
  return pair_slots_at(nranks) + (size_t)nranks * (size_t)nranks * NH_SLOTS * NH_PAIR_SLOT;
}

nh_rank *nh_rank_at(nh_header *head, int rank)
{
  return (nh_rank *)((char *)head + NH_RANKS_AT + (size_t)rank * NH_PAGE);
}

char *nh_inline_slot(nh_header *head, int nranks, int rank, uint64_t round)
{
  return (char *)head + inline_at(nranks) + ((size_t)rank * 2 + (round & 1)) * NH_INLINE;
}

char *nh_slot(nh_header *head, int nranks, int rank, uint64_t piece)
{
  return (char *)head + slots_at(nranks) + ((size_t)rank * NH_SLOTS + piece % NH_SLOTS) * NH_SLOT;
}

static size_t pair_index(int nranks, int from, int to)
{
  return (size_t)from * (size_t)nranks + (size_t)to;
}

nh_pair *nh_pair_at(nh_header *head, int nranks, int from, int to)
{
  return (nh_pair *)((char *)head + pairs_at(nranks)) + pair_index(nranks, from, to);
}

char *nh_pair_slot(nh_header *head, int nranks, int from, int to, uint64_t piece)
{
  return (char *)head + pair_slots_at(nranks) + (pair_index(nranks, from, to) * NH_SLOTS + piece % NH_SLOTS) * NH_PAIR_SLOT;
}


/* ---- who and where ---- */

static uint64_t start_time(int pid)
{
  char path[40], text[1024];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  ssize_t got = read(fd, text, sizeof text - 1);
  close(fd);
  if (got <= 0) return 0;
  text[got] = 0;
  char *field = strrchr(text, ')'); /* the name before it may hold anything */
  if (!field || field[1] != ' ' || field[2] == 'Z' || field[2] == 'X') return 0;
  for (int skip = 0; skip < 20 && field; skip++) field = strchr(field + 1, ' '); /* to field 22 */
  return field ? strtoull(field, NULL, 10) : 0;
}

static void boot_id(char boot[36])
{
  memset(boot, '-', 36);
  int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  if (read(fd, boot, 36) != 36) memset(boot, '-', 36);
  close(fd);
}

static uint64_t pid_namespace(void)
{
  struct stat about;
  return stat("/proc/self/ns/pid", &about) == 0 ? about.st_ino : 0;
}

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

static ncclResult_t descriptor_error(const char *what)
{
  int failed = errno;
  if (failed == EMFILE || failed == ENFILE)
    return nh_error(ncclSystemError, nickelKindMemory, "%s: no file descriptor is left (%s): raise the limit on open files (ulimit -n), or close some", what,
                    strerror(failed));
  return nh_error(ncclSystemError, nickelKindMemory, "%s: %s", what, strerror(failed));
}


/* ---- making ---- */

/* Under the lock. A segment that this process only made is of no use once its communicator is complete or has failed. */
static void reap(void)
{
  for (nh_segment **at = &segments; *at;) {
    nh_segment *s = *at;
    if (s->refs || (s->made && nh_state(s->head) == NH_OPEN)) {
      at = &s->next;
      continue;
    }
    *at = s->next;
    munmap(s->head, s->size);
    close(s->fd);
    free(s);
  }
}

static ncclResult_t map(int fd, size_t size, nh_header **head)
{
  void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED)
    return nh_error(ncclSystemError, nickelKindMemory, "%zu bytes of address space for a communicator cannot be had (%s)", size, strerror(errno));
  madvise(at, size, MADV_DONTFORK);
  *head = at;
  return ncclSuccess;
}

static ncclResult_t make(nh_segment *s)
{
  ncclResult_t result = ncclSuccess;
  if (ftruncate(s->fd, NH_PAGE)) return descriptor_error("the segment of a communicator cannot be sized");
  if ((result = nh_reserve(s->fd, 0, NH_PAGE, "a unique id"))) return result;
  if ((result = map(s->fd, NH_PAGE, &s->head))) return result;
  s->size = NH_PAGE;
  if (getrandom(s->nonce, sizeof s->nonce, 0) != sizeof s->nonce) return descriptor_error("no random bytes for a unique id");
  s->head->layout = NH_LAYOUT;
  s->head->version = NCCL_VERSION_CODE;
  memcpy(s->head->nonce, s->nonce, sizeof s->nonce);
  s->head->maker = getpid();
  s->head->magic = NH_MAGIC;
  return ncclSuccess;
}

ncclResult_t nh_segment_make(ncclUniqueId *id)
{
  nh_segment *s = calloc(1, sizeof *s);
  if (!s) return nh_error(ncclSystemError, nickelKindMemory, "no memory for a unique id");
  s->made = true;
  s->fd = memfd_create("nickel", MFD_CLOEXEC);
  ncclResult_t result = s->fd < 0 ? descriptor_error("no memfd for a unique id") : make(s);
  struct stat about = {0};
  if (result == ncclSuccess && fstat(s->fd, &about)) result = descriptor_error("the segment of a communicator cannot be examined");
  if (result != ncclSuccess) {
    if (s->head) munmap(s->head, s->size);
    if (s->fd >= 0) close(s->fd);
    free(s);
    return result;
  }
  nh_id content = {.magic = NH_MAGIC, .layout = NH_LAYOUT, .version = NCCL_VERSION_CODE, .pid = getpid(), .start = start_time(getpid()),
                   .pid_namespace = pid_namespace(), .inode = about.st_ino, .fd = s->fd};
  memcpy(content.nonce, s->nonce, sizeof content.nonce);
  boot_id(content.boot);
  content.checksum = checksum_of(&content);
  memcpy(id, &content, sizeof content);
  nh_lock();
  reap();
  s->next = segments;
  segments = s;
  nh_unlock();
  return ncclSuccess;
}


/* ---- joining ---- */

static ncclResult_t examine(const nh_id *id)
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
  boot_id(boot);
  if (memcmp(boot, id->boot, sizeof boot) != 0)
    return nh_error(ncclInvalidUsage, nickelKindIdStale,
                    "the unique id was made on another host, or before this one was booted: the CPU library serves one machine, NVIDIA's NCCL serves several");
  if (id->pid_namespace != pid_namespace())
    return nh_error(ncclInvalidUsage, nickelKindIdStale,
                    "the unique id was made in another pid namespace: run all ranks in one container, or the containers with a common one");
  if (start_time(id->pid) != id->start)
    return nh_error(ncclInvalidUsage, nickelKindIdStale,
                    "the process that made the unique id (pid %d) has ended: it must live until all ranks have joined; make a new id", id->pid);
  return ncclSuccess;
}

static ncclResult_t used_before(void)
{
  return nh_error(ncclInvalidUsage, nickelKindIdReused,
                  "this unique id has been used: a communicator was made from it, or failed to be; make a new id for every communicator");
}

/* The descriptor is looked at before it is opened: another file may have its number by now. */
static ncclResult_t open_through_proc(const nh_id *id, int *fd)
{
  char path[64];
  struct stat about;
  snprintf(path, sizeof path, "/proc/%d/fd/%d", id->pid, id->fd);
  if (stat(path, &about) == 0) {
    if (about.st_ino != id->inode || !S_ISREG(about.st_mode)) return used_before();
    *fd = open(path, O_RDWR | O_CLOEXEC);
    if (*fd >= 0) return ncclSuccess;
  }
  if (errno == ENOENT) return used_before();
  if (errno == EACCES || errno == EPERM)
    return nh_error(ncclSystemError, nickelKindIdStale, "the maker of the unique id (pid %d) cannot be reached (%s): run all ranks as one user", id->pid,
                    strerror(errno));
  return descriptor_error("the segment of the unique id cannot be opened");
}

/* Agrees on the number of ranks through the header, and tells those who wait if this rank has another one. */
static ncclResult_t agree_on_size(nh_header *head, const nh_id *id, int nranks, int rank)
{
  if (head->magic != NH_MAGIC || memcmp(head->nonce, id->nonce, sizeof head->nonce) != 0) return used_before();
  if (nh_state(head) == NH_COMPLETE) return used_before();
  if (nh_join_size(head, nranks)) return ncclSuccess;
  nh_failure failure = nh_failure_unpack(nh_state(head));
  if (failure.kind && failure.kind != nickelKindWorldSize) return used_before();
  nh_state_set(head, nh_failure_pack((nh_failure){nickelKindWorldSize, ncclInvalidUsage, 0, rank}));
  int other, set = nh_join_sizes(head, &other);
  return nh_error(ncclInvalidUsage, nickelKindWorldSize,
                  "rank %d (pid %d) was told that there are %d ranks, a rank before it was told %d: pass the same nranks everywhere, and make a new id", rank,
                  getpid(), nranks, set);
}

static ncclResult_t join(const nh_id *id, int nranks, int rank, int fd, nh_header **full)
{
  nh_header *head;
  ncclResult_t result = map(fd, NH_PAGE, &head);
  if (result != ncclSuccess) return result;
  result = agree_on_size(head, id, nranks, rank);
  munmap(head, NH_PAGE);
  if (result != ncclSuccess) return result;
  struct stat about;
  if (fstat(fd, &about) || ((size_t)about.st_size < total_size(nranks) && ftruncate(fd, (off_t)total_size(nranks))))
    return descriptor_error("the segment of a communicator cannot be sized");
  return map(fd, total_size(nranks), full);
}

static nh_segment *find(const uint8_t *nonce)
{
  nh_segment *s = segments;
  while (s && memcmp(s->nonce, nonce, sizeof s->nonce) != 0) s = s->next;
  return s;
}

/* Under the lock. */
static ncclResult_t open_segment(const nh_id *id, int nranks, int rank, nh_segment **segment)
{
  nh_segment *s = find(id->nonce);
  nh_header *full = NULL;
  if (s && s->refs) {
    ncclResult_t result = agree_on_size(s->head, id, nranks, rank);
    if (result != ncclSuccess) return result;
    s->refs++;
    *segment = s;
    return ncclSuccess;
  }
  int fd = s ? s->fd : -1;
  ncclResult_t result = s ? ncclSuccess : open_through_proc(id, &fd);
  if (result == ncclSuccess) result = join(id, nranks, rank, fd, &full);
  if (result == ncclSuccess && !s) {
    s = calloc(1, sizeof *s);
    if (!s) result = nh_error(ncclSystemError, nickelKindMemory, "no memory for a communicator");
  }
  if (result != ncclSuccess) {
    if (full) munmap(full, total_size(nranks));
    if (fd >= 0 && !s) close(fd);
    return result;
  }
  if (s->made) munmap(s->head, s->size);
  else {
    memcpy(s->nonce, id->nonce, sizeof s->nonce);
    s->fd = fd;
    s->next = segments;
    segments = s;
  }
  s->head = full;
  s->size = total_size(nranks);
  s->inode = id->inode;
  s->refs = 1;
  *segment = s;
  return ncclSuccess;
}

ncclResult_t nh_segment_open(const uint8_t *id, int nranks, int rank, nh_segment **segment)
{
  nh_id content;
  memcpy(&content, id, sizeof content);
  ncclResult_t result = examine(&content);
  if (result != ncclSuccess) return result;
  nh_lock();
  result = open_segment(&content, nranks, rank, segment);
  nh_unlock();
  return result;
}

void nh_segment_drop(nh_segment *segment)
{
  nh_lock();
  segment->refs--;
  reap();
  bool none = true;
  for (nh_segment *s = segments; s; s = s->next) none = none && s->refs == 0;
  if (none) nh_arena_forget();
  nh_unlock();
}

ncclResult_t nh_segment_reserve_rank(nh_segment *segment, int nranks, int rank)
{
  size_t inline_start = (size_t)(nh_inline_slot(segment->head, nranks, rank, 0) - (char *)segment->head);
  size_t slot_start = (size_t)(nh_slot(segment->head, nranks, rank, 0) - (char *)segment->head);
  ncclResult_t result = nh_reserve(segment->fd, NH_RANKS_AT + (size_t)rank * NH_PAGE, NH_PAGE, "a rank");
  if (result == ncclSuccess) result = nh_reserve(segment->fd, inline_start, 2 * NH_INLINE, "a rank");
  if (result == ncclSuccess) result = nh_reserve(segment->fd, slot_start, NH_SLOTS * NH_SLOT, "the slots of a rank");
  return result;
}

ncclResult_t nh_segment_reserve_pair(nh_segment *segment, int nranks, int from, int to)
{
  size_t pair_start = (size_t)((char *)nh_pair_at(segment->head, nranks, from, to) - (char *)segment->head);
  size_t slot_start = (size_t)(nh_pair_slot(segment->head, nranks, from, to, 0) - (char *)segment->head);
  ncclResult_t result = nh_reserve(segment->fd, pair_start, sizeof(nh_pair), "a pair of ranks");
  if (result == ncclSuccess) result = nh_reserve(segment->fd, slot_start, NH_SLOTS * NH_PAIR_SLOT, "the slots of a pair of ranks");
  return result;
}
