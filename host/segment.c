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

#include "unique_id.h"

static nh_segment *segments;

void nh_segments_forked(void)
{
  for (nh_segment *s = segments; s; s = s->next) close(s->fd);
  segments = NULL;
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
  if (ftruncate(s->fd, NH_PAGE)) return nh_descriptor_error("the segment of a communicator cannot be sized");
  if ((result = nh_reserve(s->fd, 0, NH_PAGE, "a unique id"))) return result;
  if ((result = map(s->fd, NH_PAGE, &s->head))) return result;
  s->size = NH_PAGE;
  if (getrandom(s->nonce, sizeof s->nonce, 0) != sizeof s->nonce) return nh_descriptor_error("no random bytes for a unique id");
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
  ncclResult_t result = s->fd < 0 ? nh_descriptor_error("no memfd for a unique id") : make(s);
  struct stat about = {0};
  nh_id content;
  if (result == ncclSuccess && fstat(s->fd, &about)) result = nh_descriptor_error("the segment of a communicator cannot be examined");
  if (result == ncclSuccess) result = nh_id_make(&content, s->nonce, s->fd, about.st_ino);
  if (result != ncclSuccess) {
    if (s->head) munmap(s->head, s->size);
    if (s->fd >= 0) close(s->fd);
    free(s);
    return result;
  }
  memcpy(id, &content, sizeof content);
  nh_lock();
  reap();
  s->next = segments;
  segments = s;
  nh_unlock();
  return ncclSuccess;
}


/* ---- joining ---- */

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
  int failed = errno;
  if (nh_start_time(id->pid) != id->start) return nh_id_stale(id); /* it was there a moment ago, and was just ending */
  errno = failed;
  if (errno == ENOENT) return used_before();
  if (errno == EACCES || errno == EPERM)
    return nh_error(ncclSystemError, nickelKindIdStale, "the maker of the unique id (pid %d) cannot be reached (%s): run all ranks as one user", id->pid,
                    strerror(errno));
  return nh_descriptor_error("the segment of the unique id cannot be opened");
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
  if (fstat(fd, &about) || ((size_t)about.st_size < nh_segment_size(nranks) && ftruncate(fd, (off_t)nh_segment_size(nranks))))
    return nh_descriptor_error("the segment of a communicator cannot be sized");
  return map(fd, nh_segment_size(nranks), full);
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
    if (full) munmap(full, nh_segment_size(nranks));
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
  s->size = nh_segment_size(nranks);
  s->inode = id->inode;
  s->refs = 1;
  *segment = s;
  return ncclSuccess;
}

void nh_segment_unneeded(const uint8_t *id)
{
  nh_id content;
  memcpy(&content, id, sizeof content);
  nh_lock();
  nh_segment *s = find(content.nonce);
  if (s && s->made && !s->refs) nh_state_set(s->head, nh_failure_pack((nh_failure){nickelKindIdReused, ncclInvalidUsage, 0, 0}));
  reap();
  nh_unlock();
}

ncclResult_t nh_segment_open(const uint8_t *id, int nranks, int rank, nh_segment **segment)
{
  nh_id content;
  memcpy(&content, id, sizeof content);
  ncclResult_t result = nh_id_examine(&content);
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
  if (result == ncclSuccess) result = nh_reserve(segment->fd, slot_start, NH_PAIR_SLOTS * NH_PAIR_SLOT, "the slots of a pair of ranks");
  return result;
}
