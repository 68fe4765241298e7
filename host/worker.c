/* Non-blocking communicators: a thread that runs what they have been given, while the caller polls. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A communicator gets its thread with its first work and keeps it until it is destroyed or aborted. The work of a group over several
 * communicators runs in the thread of the first. While it runs all of them are entered (`busy`) and say ncclInProgress; then each says how
 * its own part ended, is left, and keeps the error's text. Signals stay with the caller's threads.
 */
#include <signal.h>
#include <stdlib.h>

#include "host.h"

struct nh_worker {
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t given;
  nh_task *tasks;
  bool quit;
};

static void *work(void *argument)
{
  nh_worker *worker = argument;
  pthread_mutex_lock(&worker->lock);
  for (;;) {
    while (!worker->tasks && !worker->quit) pthread_cond_wait(&worker->given, &worker->lock);
    nh_task *tasks = worker->tasks;
    worker->tasks = NULL;
    if (!tasks) break;
    pthread_mutex_unlock(&worker->lock);
    nh_run(tasks);
    nh_free_tasks(tasks);
    pthread_mutex_lock(&worker->lock);
  }
  pthread_mutex_unlock(&worker->lock);
  return NULL;
}

static nh_worker *make(void)
{
  nh_worker *worker = calloc(1, sizeof *worker);
  sigset_t all, before;
  if (!worker) return NULL;
  pthread_mutex_init(&worker->lock, NULL);
  pthread_cond_init(&worker->given, NULL);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int failed = pthread_create(&worker->thread, NULL, work, worker);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (!failed) return worker;
  free(worker);
  return NULL;
}

/* The tasks' communicators are entered. ncclInProgress, or an error after which nothing will happen. */
ncclResult_t nh_work_later(nh_task *tasks)
{
  ncclComm_t first = tasks->home;
  if (!first->worker) first->worker = make();
  nh_worker *worker = first->worker;
  if (!worker) {
    ncclResult_t result = nh_error(ncclSystemError, nickelKindMemory, "no thread for a non-blocking communicator: raise the limit on threads");
    for (nh_task *task = tasks; task; task = task->next) task->result = result;
    for (nh_task *task = tasks; task; task = task->next) nh_left(tasks, task);
    nh_free_tasks(tasks);
    return result;
  }
  for (nh_task *task = tasks; task; task = task->next) nh_comm_set_async(task->home, ncclInProgress);
  pthread_mutex_lock(&worker->lock);
  worker->tasks = tasks;
  pthread_cond_signal(&worker->given);
  pthread_mutex_unlock(&worker->lock);
  return ncclInProgress;
}

/* The communicator has been entered by who ends it, so its thread has nothing to do. */
void nh_worker_end(ncclComm_t comm)
{
  nh_worker *worker = comm->worker;
  if (!worker) return;
  comm->worker = NULL;
  pthread_mutex_lock(&worker->lock);
  worker->quit = true;
  pthread_cond_signal(&worker->given);
  pthread_mutex_unlock(&worker->lock);
  pthread_join(worker->thread, NULL);
  pthread_mutex_destroy(&worker->lock);
  pthread_cond_destroy(&worker->given);
  free(worker);
}
