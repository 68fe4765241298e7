/* Non-blocking communicators: a thread that runs what they have been given, while the caller polls. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A communicator gets its thread with its first work and keeps it until it is destroyed or aborted. The work of a group over several
 * communicators runs in a thread of its own. While it runs all of them are entered (`busy`) and say ncclInProgress; then each says how
 * its own part ended, is left, and keeps the error's text.
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

/* Signals stay with the caller's threads. */
static bool start(pthread_t *thread, void *(*function)(void *), void *argument)
{
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int failed = pthread_create(thread, NULL, function, argument);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return !failed;
}

static nh_worker *make(void)
{
  nh_worker *worker = calloc(1, sizeof *worker);
  if (!worker) return NULL;
  pthread_mutex_init(&worker->lock, NULL);
  pthread_cond_init(&worker->given, NULL);
  if (start(&worker->thread, work, worker)) return worker;
  free(worker);
  return NULL;
}

static bool several(const nh_task *tasks)
{
  for (const nh_task *task = tasks; task; task = task->next)
    if (task->home != tasks->home) return true;
  return false;
}

static void *work_once(void *argument)
{
  nh_run(argument);
  nh_free_tasks(argument);
  return NULL;
}

/* A thread that nobody waits for: each communicator is left when its own part is over. */
static bool hand_to_new_thread(nh_task *tasks)
{
  pthread_t thread;
  if (!start(&thread, work_once, tasks)) return false;
  pthread_detach(thread);
  return true;
}

static bool hand_over(nh_task *tasks)
{
  ncclComm_t first = tasks->home;
  if (several(tasks)) return hand_to_new_thread(tasks);
  if (!first->worker) first->worker = make();
  nh_worker *worker = first->worker;
  if (!worker) return false;
  pthread_mutex_lock(&worker->lock);
  worker->tasks = tasks;
  pthread_cond_signal(&worker->given);
  pthread_mutex_unlock(&worker->lock);
  return true;
}

/* The tasks' communicators are entered. ncclInProgress, or an error after which nothing will happen. */
ncclResult_t nh_work_later(nh_task *tasks)
{
  for (nh_task *task = tasks; task; task = task->next) nh_comm_set_async(task->home, ncclInProgress);
  if (hand_over(tasks)) return ncclInProgress;
  ncclResult_t result = nh_error(ncclSystemError, nickelKindMemory, "no thread for a non-blocking communicator: raise the limit on threads");
  for (nh_task *task = tasks; task; task = task->next) task->result = result;
  for (nh_task *task = tasks; task; task = task->next) nh_left(tasks, task);
  nh_free_tasks(tasks);
  return result;
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
