/* Memory that peers can map: ncclMemAlloc's arenas, one memfd each, and the arenas of peers mapped here. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Own arenas live until ncclMemFree; peers keep what they have mapped, so a free in the middle of their transfer harms nobody. Each free
 * raises `epoch`, which travels with every call: a peer that sees it change looks which of that process's arenas are gone and unmaps them.
 * In a forked child what it writes to them is its own; what it has not written goes on to show the parent's. It cannot free or pass them as arenas.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host.h"

typedef struct {
  char *base;
  size_t size;
  uint64_t inode;
  int fd;
  int pid, owner_fd;            /* of a peer's arena: its owner and the descriptor there */
  uint32_t epoch;               /* of the owner, when last looked at */
} nh_arena;

typedef struct { nh_arena *at; int n, room; } nh_arenas;

static nh_arenas own, peers;    /* `own` is sorted by base */
static uint32_t epoch;

void nh_arenas_forked(void)
{
  for (int i = 0; i < own.n; i++) {
    nh_arena *arena = own.at + i;
    mmap(arena->base, arena->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, arena->fd, 0);
    close(arena->fd);
  }
  own.n = 0;
  peers.n = 0;
}

static bool insert(nh_arenas *list, int place, nh_arena arena)
{
  if (list->n == list->room) {
    int room = list->room ? 2 * list->room : 16;
    nh_arena *at = realloc(list->at, (size_t)room * sizeof *at);
    if (!at) return false;
    list->at = at;
    list->room = room;
  }
  memmove(list->at + place + 1, list->at + place, (size_t)(list->n - place) * sizeof *list->at);
  list->at[place] = arena;
  list->n++;
  return true;
}

static void erase(nh_arenas *list, int place)
{
  munmap(list->at[place].base, list->at[place].size);
  if (list->at[place].fd >= 0) close(list->at[place].fd);
  memmove(list->at + place, list->at + place + 1, (size_t)(list->n - place - 1) * sizeof *list->at);
  list->n--;
}

/* The number of own arenas that start at or below address. */
static int position(const char *address)
{
  int low = 0, high = own.n;
  while (low < high) {
    int middle = (low + high) / 2;
    if (own.at[middle].base <= address) low = middle + 1;
    else high = middle;
  }
  return low;
}

static ncclResult_t map(int fd, size_t size, char **base)
{
  void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (at == MAP_FAILED)
    return nh_error(ncclSystemError, nickelKindMemory, "%zu bytes of address space for shared memory cannot be had (%s)", size, strerror(errno));
  *base = at;
  return ncclSuccess;
}

static ncclResult_t fill(nh_arena *arena)
{
  struct stat about;
  if (ftruncate(arena->fd, (off_t)arena->size) || fstat(arena->fd, &about))
    return nh_error(ncclSystemError, nickelKindMemory, "%zu bytes of shared memory cannot be had (%s)", arena->size, strerror(errno));
  ncclResult_t result = nh_reserve(arena->fd, 0, arena->size, "ncclMemAlloc");
  if (result != ncclSuccess) return result;
  arena->inode = about.st_ino;
  return map(arena->fd, arena->size, &arena->base);
}

ncclResult_t nh_arena_make(void **pointer, size_t size)
{
  if (size > SIZE_MAX / 2) return nh_error(ncclInvalidArgument, nickelKindNone, "ncclMemAlloc: %zu bytes are more than there can be", size);
  nh_arena arena = {.size = (size + NH_PAGE - 1) / NH_PAGE * NH_PAGE, .fd = memfd_create("nickel-memory", MFD_CLOEXEC)};
  if (arena.fd < 0) return nh_descriptor_error("ncclMemAlloc: no memfd can be had");
  ncclResult_t result = fill(&arena);
  if (result == ncclSuccess) {
    nh_lock();
    if (!insert(&own, position(arena.base), arena)) result = nh_error(ncclSystemError, nickelKindMemory, "ncclMemAlloc: no memory");
    nh_unlock();
    if (result != ncclSuccess) munmap(arena.base, arena.size);
  }
  if (result != ncclSuccess) close(arena.fd);
  else *pointer = arena.base;
  return result;
}

ncclResult_t nh_arena_free(void *pointer)
{
  nh_lock();
  int place = position(pointer) - 1;
  bool found = place >= 0 && own.at[place].base == pointer;
  if (found) {
    erase(&own, place);
    epoch++;
  }
  nh_unlock();
  if (found) return ncclSuccess;
  return nh_error(ncclInvalidArgument, nickelKindNone, "ncclMemFree: %p did not come from ncclMemAlloc of this process, or was freed before", pointer);
}

void nh_arena_place(const void *buffer, size_t size, nh_place *place)
{
  *place = (nh_place){.address = (uint64_t)(uintptr_t)buffer};
  nh_lock();
  int at = position(buffer) - 1;
  if (at >= 0) {
    const nh_arena *arena = &own.at[at];
    size_t offset = (size_t)((const char *)buffer - arena->base);
    if (offset < arena->size && size <= arena->size - offset) {
      place->arena = arena->inode;
      place->offset = offset;
      place->fd = arena->fd;
    }
  }
  place->epoch = epoch;
  nh_unlock();
}

static bool still_there(int pid, int fd, uint64_t inode)
{
  char path[64];
  struct stat about;
  snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
  return stat(path, &about) == 0 && about.st_ino == inode;
}

/* Under the lock: unmaps what its owner has freed since the last look. What is still there may be in use by another thread and stays. */
static void look_again(int pid, uint32_t now)
{
  for (int i = peers.n - 1; i >= 0; i--) {
    nh_arena *arena = &peers.at[i];
    if (arena->pid != pid || arena->epoch == now) continue;
    if (still_there(pid, arena->owner_fd, arena->inode)) arena->epoch = now;
    else erase(&peers, i);
  }
}

/* 0, or errno. */
static int open_arena(int pid, const nh_place *place, nh_arena *arena)
{
  char path[64];
  struct stat about;
  snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, place->fd);
  errno = 0; /* stays so if there is another file */
  int fd = still_there(pid, place->fd, place->arena) ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (fd < 0) return errno ? errno : ENOENT;
  int failed = fstat(fd, &about) ? errno : about.st_ino != place->arena ? ENOENT : 0;
  *arena = (nh_arena){.size = (size_t)about.st_size, .inode = place->arena, .fd = -1, .pid = pid, .owner_fd = place->fd,
                      .epoch = place->epoch};
  if (!failed && map(fd, arena->size, &arena->base) != ncclSuccess) failed = ENOMEM;
  close(fd);
  return failed;
}

/* Under the lock: where it is in `peers`, mapped now if it was not; failed: errno. */
static int place_of(int pid, const nh_place *place, int *failed)
{
  nh_arena arena;
  int i = 0;
  while (i < peers.n && (peers.at[i].inode != place->arena || peers.at[i].pid != pid)) i++;
  *failed = i == peers.n ? open_arena(pid, place, &arena) : 0;
  if (i == peers.n && !*failed && !insert(&peers, i, arena)) {
    munmap(arena.base, arena.size);
    *failed = ENOMEM;
  }
  return i;
}

/* A peer that has failed in this very call may have freed its memory since, or ended: then its reason is the communicator's. */
static ncclResult_t not_reached(ncclComm_t comm, int rank, int pid, const char *call, int failed)
{
  nh_failure failure = {0};
  if (!nh_alive(comm, rank)) failure = nh_fail(comm, (nh_failure){nickelKindRemote, ncclRemoteError, rank, comm->rank});
  else if (failed == ENOENT) failure = nh_failed_with(comm);
  if (failure.kind) return nh_error_failure(comm, failure, call);
  char text[256];
  nh_error(ncclSystemError, nickelKindMemory, "%s on rank %d of %d: the ncclMemAlloc memory of rank %d (pid %d) cannot be mapped: %s", call, comm->rank,
           comm->nranks, rank, pid, nh_descriptor_text(failed, text, sizeof text));
  nh_error_rank(comm, rank);
  return ncclSystemError;
}

ncclResult_t nh_arena_reach(ncclComm_t comm, int rank, const nh_place *place, size_t size, char **pointer, const char *call)
{
  int pid;
  nh_rank_life(comm->head, rank, &pid, NULL);
  if (pid == getpid()) {
    *pointer = (char *)(uintptr_t)place->address;
    return ncclSuccess;
  }
  ncclResult_t result = ncclSuccess;
  int failed;
  nh_lock();
  look_again(pid, place->epoch);
  int at = place_of(pid, place, &failed);
  if (failed) result = not_reached(comm, rank, pid, call, failed);
  else if (place->offset > peers.at[at].size || size > peers.at[at].size - place->offset)
    result = nh_error(ncclInternalError, nickelKindNone, "rank %d (pid %d) described memory that it does not have", rank, pid);
  else *pointer = peers.at[at].base + place->offset;
  nh_unlock();
  return result;
}

/* Under the lock: nobody can join and map anything in between. */
void nh_arena_forget(void)
{
  while (peers.n) erase(&peers, peers.n - 1);
}
