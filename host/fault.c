/* NICKEL_FAULT: faults on order, to see how a program takes them. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One or more of these, with ; between them. Calls are counted from 1, on each communicator of the rank.
 *   kill:rank=2,call=17             the process gets SIGKILL
 *   delay:rank=1,call=3,ms=500      the call starts so much later
 *   refuse:rank=0,call=5,result=3   the call returns that result at once
 *   corrupt:rank=1,call=4           a bit of what the call received is turned over when it is done
 */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "host.h"

typedef enum { KILL, DELAY, REFUSE, CORRUPT } nh_fault_kind;
typedef struct { nh_fault_kind kind; int rank, extra; uint64_t call; } nh_fault_order;

static const char EXPECTED[] = "it must be kill:rank=R,call=K or delay:rank=R,call=K,ms=M or refuse:rank=R,call=K,result=C or corrupt:rank=R,call=K, "
                               "with ranks from 0 and calls from 1";
enum { MOST = 64 };
static pthread_once_t once = PTHREAD_ONCE_INIT;
static nh_fault_order orders[MOST];
static int norders;

static bool parse(const char *text, nh_fault_order *order)
{
  unsigned long call;
  int end = -1;
  order->extra = 0;
  if (sscanf(text, "kill:rank=%d,call=%lu%n", &order->rank, &call, &end) == 2 && end > 0) order->kind = KILL;
  else if (sscanf(text, "delay:rank=%d,call=%lu,ms=%d%n", &order->rank, &call, &order->extra, &end) == 3 && end > 0) order->kind = DELAY;
  else if (sscanf(text, "refuse:rank=%d,call=%lu,result=%d%n", &order->rank, &call, &order->extra, &end) == 3 && end > 0) order->kind = REFUSE;
  else if (sscanf(text, "corrupt:rank=%d,call=%lu%n", &order->rank, &call, &end) == 2 && end > 0) order->kind = CORRUPT;
  else return false;
  order->call = call;
  return text[end] == 0 && order->rank >= 0 && call >= 1 && call <= LONG_MAX && order->extra >= 0;
}

static void read_orders(void)
{
  const char *text = getenv("NICKEL_FAULT");
  char *copy = text ? strdup(text) : NULL, *rest = NULL;
  if (!copy) return; /* not set, or no memory: no faults */
  for (char *one = strtok_r(copy, "; ", &rest); one; one = strtok_r(NULL, "; ", &rest)) {
    if (norders < MOST && parse(one, &orders[norders])) norders++;
    else nh_warn_always(0, "NICKEL_FAULT: '%s' is left out: %s", one, norders == MOST ? "there are 64 before it" : EXPECTED);
  }
  free(copy);
}

ncclResult_t nh_fault(ncclComm_t comm, const char *call, bool *corrupt)
{
  pthread_once(&once, read_orders);
  uint64_t number = nh_comm_count_call(comm);
  for (int i = 0; i < norders; i++) {
    const nh_fault_order *order = &orders[i];
    if (order->rank != comm->rank || order->call != number) continue;
    if (order->kind == KILL) raise(SIGKILL);
    if (order->kind == CORRUPT) {
      *corrupt = true;
      continue;
    }
    if (order->kind == REFUSE)
      return nh_error(order->extra, nickelKindNone, "%s on rank %d, call %lu: refused, as NICKEL_FAULT says", call, comm->rank, (unsigned long)number);
    struct timespec time = {.tv_sec = order->extra / 1000, .tv_nsec = order->extra % 1000 * 1000000L};
    while (nanosleep(&time, &time) && errno == EINTR) continue;
  }
  return ncclSuccess;
}

void nh_fault_corrupt(nh_task *task)
{
  char *received = task->recv;
  if (received && task->count) *received ^= 1;
}
