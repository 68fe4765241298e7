/* Plays the scenes of the other files with four threads as ranks: once as threads, once as if each were a process. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 *   driver threads | processes [scene ...]
 *   driver plant race | overflow | leak | undefined
 *
 * The library knows processes by getpid() and by /proc/<pid>; a thread has both: its thread id, and /proc/<tid>. So getpid() is replaced here,
 * and what ranks in several processes do to each other runs where a sanitizer sees both sides.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "driver.h"

int separate;
ncclUniqueId ids[8];
static pthread_barrier_t barrier;
static char **wanted;           /* names of scenes; none: all */
static void (*current)(actor *);
static bool with_comm;

/* A rank's process has the rank's threads and those that they begin, the library's own too: the kernel gives a thread its maker's name. */
pid_t getpid(void)
{
  static _Thread_local pid_t process;
  if (!separate) return (pid_t)syscall(SYS_getpid);
  char name[16];
  if (!process) process = prctl(PR_GET_NAME, name) == 0 && strncmp(name, "rank ", 5) == 0 ? atoi(name + 5) : (pid_t)syscall(SYS_gettid);
  return process;
}

void check(int line, const char *call, ncclResult_t result, ncclResult_t expected, ncclComm_t comm)
{
  if (result == expected) return;
  fprintf(stderr, "line %d: %s gave %d, not %d: %s\n", line, call, result, expected, ncclGetLastError(comm));
  _exit(3);
}

void together(void)
{
  pthread_barrier_wait(&barrier);
}

void rest(int milliseconds)
{
  struct timespec time = {.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000L};
  nanosleep(&time, NULL);
}

void until(_Atomic int *come, int count)
{
  for (int left = 10000; *come < count; left--, rest(2)) ENSURE(left);
}

/* Does the library tell of a rank that waits, in any communicator of this process? */
static bool waits(int rank)
{
  char text[1 << 14], name[32];
  size_t length;
  bool found = false;
  snprintf(name, sizeof name, "{\"rank\": %d,", rank);
  DIR *folder = opendir("/proc/self/fd");
  ENSURE(folder);
  for (struct dirent *file; !found && (file = readdir(folder));) {
    if (nickelInspect(getpid(), atoi(file->d_name), text, sizeof text, &length) != ncclSuccess) continue;
    char *here = strstr(text, name), *told = here ? strstr(here, "\"waits\"") : NULL, *next = here ? strstr(here + 1, "{\"rank\"") : NULL;
    found = told && (!next || told < next);
  }
  closedir(folder);
  return found;
}

void in_call(int rank)
{
  for (int left = 10000; !waits(rank); left--, rest(2)) ENSURE(left);
}

pthread_t aside(void *(*function)(void *), void *argument)
{
  pthread_t thread;
  ENSURE(!pthread_create(&thread, NULL, function, argument));
  return thread;
}

ncclResult_t polled(ncclComm_t comm)
{
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress) {
    check(__LINE__, "ncclCommGetAsyncError", ncclCommGetAsyncError(comm, &state), ncclSuccess, comm);
    rest(1);
  }
  return state;
}

float *numbers(size_t count, int from, bool arena)
{
  void *memory = NULL;
  if (arena) CHECK(ncclMemAlloc(&memory, count * sizeof(float)));
  else memory = malloc(count * sizeof(float));
  ENSURE(memory);
  for (size_t i = 0; i < count; i++) ((float *)memory)[i] = (float)(from + (int)(i % 64));
  return memory;
}

void drop(float *memory, bool arena)
{
  if (arena) CHECK(ncclMemFree(memory));
  else free(memory);
}

static void *act(void *argument)
{
  actor *me = argument;
  char name[16];
  snprintf(name, sizeof name, "rank %d", (int)syscall(SYS_gettid));
  prctl(PR_SET_NAME, name);
  CHECK(nickelCommSetTimeout(NULL, 60));
  if (me->rank == 0)
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) CHECK(ncclGetUniqueId(&ids[i]));
  together();
  if (with_comm) CHECK(ncclCommInitRank(&me->comm, N, ids[0], me->rank));
  current(me);
  together(); /* the maker of the ids lives so long */
  if (me->comm) CHECK(ncclCommDestroy(me->comm));
  together();
  return NULL;
}

void play(const char *name, void (*scene)(actor *), bool comm)
{
  bool plays = !*wanted;
  for (char **at = wanted; *at; at++) plays = plays || strcmp(*at, name) == 0;
  if (!plays) return;
  pthread_t threads[N];
  actor actors[N] = {{0}};
  current = scene;
  with_comm = comm;
  for (int rank = 0; rank < N; rank++) {
    actors[rank].rank = rank;
    threads[rank] = aside(act, &actors[rank]);
  }
  for (int rank = 0; rank < N; rank++) pthread_join(threads[rank], NULL);
  printf("%s ", name);
  fflush(stdout);
}

int main(int argc, char **argv)
{
  if (argc < 2) return 2;
  pthread_barrier_init(&barrier, NULL, N);
  wanted = argv + 2;
  separate = strcmp(argv[1], "processes") == 0;
  if (argc > 2 && strcmp(argv[1], "plant") == 0) plant(argv[2]);
  else {
    play_moves();
    play_lives();
    play_ends();
  }
  puts("played");
  return 0;
}
