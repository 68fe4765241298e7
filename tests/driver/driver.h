/* Ranks as threads of one C program, for the sanitizers: what its files share. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DRIVER_H
#define DRIVER_H
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "all.h"
#include "nickel.h"

enum { N = 4, SMALL = 7, MIDDLE = 3000, LARGE = 150000 }; /* ranks; elements that go inline, in one piece, in several */

extern int separate;            /* every thread counts as a process of its own: what only processes do is done by threads */
extern ncclUniqueId ids[8];     /* fresh for every scene */

typedef struct {
  int rank;
  ncclComm_t comm;              /* of all ranks, blocking, for scenes that begin with one */
} actor;

void check(int line, const char *call, ncclResult_t result, ncclResult_t expected, ncclComm_t comm);
#define CHECK(call) check(__LINE__, #call, call, ncclSuccess, NULL)
#define EXPECT(expected, call) check(__LINE__, #call, call, expected, NULL)
#define ENSURE(what) \
  do \
    if (!(what)) check(__LINE__, #what, ncclInternalError, ncclSuccess, NULL); \
  while (0)

void play(const char *name, void (*scene)(actor *), bool with_comm);
void together(void);                                    /* a barrier of all actors, beside the library */
void rest(int milliseconds);
void until(_Atomic int *come, int count);               /* so many have come, in 20 seconds at most */
void in_call(int rank);                                 /* until this rank waits in a call for another one, as long at most */
pthread_t aside(void *(*function)(void *), void *argument);
ncclResult_t polled(ncclComm_t comm);                   /* what a non-blocking communicator says in the end */
float *numbers(size_t count, int from, bool arena);     /* from, from + 1, ... of small numbers */
void drop(float *memory, bool arena);

void play_moves(void);
void play_lives(void);
void play_ends(void);
void plant(const char *what);                           /* a fault that the sanitizer must report */
#endif
