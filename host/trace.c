/* NICKEL_TRACE=FILE: every call of every rank as one line of JSON, appended whole. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times are of the monotonic clock, which all processes of a machine share: `start` when the call was made (or queued in a group), `end` when
 * it was over. Ranks of several processes may name one file.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "host.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int fd = -1;

static void open_trace(void)
{
  const char *path = getenv("NICKEL_TRACE");
  if (!path || !*path) return;
  fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0) nh_warn_always(0, "NICKEL_TRACE: %s cannot be opened for writing, nothing is traced", path);
}

bool nh_tracing(void)
{
  pthread_once(&once, open_trace);
  return fd >= 0;
}

static uint64_t name_of(ncclComm_t comm)
{
  uint64_t name = 0;
  for (size_t i = 0; comm->segment && i < sizeof name; i++) name = name << 8 | comm->segment->nonce[i];
  return name;
}

void nh_trace(nh_task *task)
{
  char text[1024];
  nh_call call;
  if (!nh_tracing()) return;
  ncclComm_t comm = task->home ? task->home : task->comm;
  nh_describe(task, &call); /* says what the call has no operation or root for */
  int root = task->called >= NH_SEND && task->called <= NH_WAIT ? task->root : call.root;
  int length = snprintf(text, sizeof text,
                        "{\"start\": %.9f, \"end\": %.9f, \"pid\": %d, \"tid\": %d, \"comm\": \"%016lx\", \"rank\": %d, \"nranks\": %d, \"call\": %lu, "
                        "\"operation\": \"%s\", \"count\": %zu, \"type\": \"%s\", \"op\": \"%s\", \"root\": %d, \"bytes\": %zu, \"path\": \"%s\", \"result\": %d}\n",
                        task->started, nh_now(), getpid(), gettid(), (unsigned long)name_of(comm), comm->rank, comm->nranks, (unsigned long)task->seq + 1,
                        nh_op_name(task->called), task->count, nh_type_name(task->type), nh_redop_name(call.redop), root, task->count * nh_type_size(task->type),
                        task->path ? task->path : "", task->result);
  ssize_t wrote = length > 0 ? write(fd, text, (size_t)length) : 0;
  (void)wrote; /* a full disk must not end the program */
}
