/* What the files of the CPU library offer each other. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NH_HOST_H
#define NH_HOST_H
#include "task.h"

/* error.c: results, texts, the last error of a thread */
ncclResult_t nh_error(ncclResult_t code, int kind, const char *format, ...) __attribute__((format(printf, 3, 4)));
ncclResult_t nh_error_failure(ncclComm_t comm, nh_failure failure, const char *doing);
ncclResult_t nh_error_again(ncclComm_t comm);   /* what made this communicator fail */
void nh_error_rank(ncclComm_t comm, int rank);  /* names one more rank in the last error */
const char *nh_last_error(void);
int nh_last_kind(void);
int nh_error_kind(void);        /* of what nh_error has just said, though the thread's last error may be held before it */
int nh_last_ranks(int *ranks, int *pids, int capacity);
nh_record *nh_error_keep(void);  /* what nh_error has just said, for an error that is returned later, when others may have come; owned, NULL: no memory */
ncclResult_t nh_error_told(ncclResult_t code, const nh_record *kept); /* says it again */
void nh_error_hold(bool hold);                  /* keeps the first of several errors */
void nh_error_prefer(void);                     /* but takes the last one after all */
const char *nh_result_text(int code);
void nh_comm_failed(ncclComm_t comm, ncclResult_t code); /* final: keeps the last error as the communicator's own */
void nh_record_error(ncclComm_t comm);          /* keeps the last error as the communicator's own */
ncclResult_t nh_recall_error(ncclComm_t comm);  /* makes the communicator's own the last error of this thread; its code */
const char *nh_recorded_text(ncclComm_t comm);
const char *nh_op_name(int op);
const char *nh_type_name(int type);
const char *nh_redop_name(int redop);

/* memory.c: pages and descriptors */
ncclResult_t nh_reserve(int fd, size_t offset, size_t size, const char *what);
const char *nh_descriptor_text(int failed, char *text, size_t room);
ncclResult_t nh_descriptor_error(const char *what);
uint64_t nh_start_time(int pid);      /* 0: there is no such process, or it is a zombie; or errno says EMFILE or ENFILE */

/* segment.c and drawing.c: the memfd, this process's list, what lies where */
ncclResult_t nh_segment_make(ncclUniqueId *id);
void nh_segment_unneeded(const uint8_t *id);                      /* an id of this process that nobody will join */
ncclResult_t nh_segment_open(const uint8_t *id, int nranks, int rank, nh_segment **segment);
void nh_segment_drop(nh_segment *segment);
size_t nh_segment_size(int nranks);
nh_rank *nh_rank_at(nh_header *head, int rank);
char *nh_inline_slot(nh_header *head, int nranks, int rank, uint64_t round);
char *nh_slot(nh_header *head, int nranks, int rank, uint64_t piece);
nh_pair *nh_pair_at(nh_header *head, int nranks, int from, int to);
char *nh_pair_slot(nh_header *head, int nranks, int from, int to, uint64_t piece);
ncclResult_t nh_segment_reserve_rank(nh_segment *segment, int nranks, int rank);
ncclResult_t nh_segment_reserve_pair(nh_segment *segment, int nranks, int from, int to);
void nh_segments_forked(void);

/* arena.c: ncclMemAlloc memory, and peers' arenas mapped here */
ncclResult_t nh_arena_make(void **pointer, size_t size);
ncclResult_t nh_arena_free(void *pointer);
void nh_arena_place(const void *buffer, size_t size, nh_place *place);
ncclResult_t nh_arena_reach(ncclComm_t comm, int rank, const nh_place *place, size_t size, char **pointer, const char *call);
void nh_arenas_forked(void);
void nh_arena_forget(void);      /* unmaps all peers' arenas: the last communicator of the process is gone */

/* process.c: this process */
void nh_lock(void);
void nh_unlock(void);
unsigned nh_generation(void);         /* changes in a forked child */

/* sync.c: every shared word */
bool nh_join_size(nh_header *head, int nranks);                   /* false: another number was set */
int nh_join_sizes(nh_header *head, int *other);                   /* the number that was set, and one that was not it (0: none) */
bool nh_join_claim(nh_header *head, int rank, int fd);
bool nh_join_arrive(nh_header *head, int nranks, int rank, int fd); /* true: complete */
uint64_t nh_state(nh_header *head);
uint64_t nh_state_set(nh_header *head, uint64_t value);           /* the value in force afterwards */
nh_life nh_rank_life(nh_header *head, int rank, int *pid, int *fd);
void nh_rank_leave(ncclComm_t comm, nh_life life);
void nh_note_core(ncclComm_t comm, int core);
int nh_core_of(ncclComm_t comm, int rank);                        /* where it was last seen to run */
void nh_post(ncclComm_t comm, uint64_t round, bool *last);
bool nh_posted(ncclComm_t comm, int rank, uint64_t round);
void nh_set_come(ncclComm_t comm, uint64_t calls);
bool nh_has_come(ncclComm_t comm, int rank);
uint64_t nh_last_round(ncclComm_t comm, int rank);
void nh_post_zero(ncclComm_t comm, uint64_t seq);
bool nh_passed_zero(ncclComm_t comm, int rank, uint64_t seq, uint64_t round);
nh_verdict nh_verdict_of(ncclComm_t comm, uint64_t round);
nh_verdict nh_decide(ncclComm_t comm, uint64_t round, nh_verdict verdict);
void nh_finish_direct(ncclComm_t comm, uint64_t direct, bool spoiled);
bool nh_spoiled(ncclComm_t comm, uint64_t direct);
bool nh_finished(ncclComm_t comm, uint64_t direct);
bool nh_finished_rank(ncclComm_t comm, int rank, uint64_t direct);
void nh_advance(ncclComm_t comm, nh_counter which, uint64_t value);
bool nh_reached(ncclComm_t comm, int rank, nh_counter which, uint64_t value);
nh_failure nh_failed_with(ncclComm_t comm);                       /* kind 0: nothing */
nh_failure nh_fail(ncclComm_t comm, nh_failure failure);          /* the failure in force */
uint64_t nh_failure_pack(nh_failure failure);
nh_failure nh_failure_unpack(uint64_t word);
void nh_pair_post(ncclComm_t comm, nh_pair *pair, bool sender, uint64_t message);
bool nh_pair_posted(nh_pair *pair, bool sender, uint64_t message);
nh_verdict nh_pair_verdict(nh_pair *pair, uint64_t message);
nh_verdict nh_pair_decide(ncclComm_t comm, nh_pair *pair, uint64_t message, nh_verdict verdict);
void nh_pair_advance(ncclComm_t comm, nh_pair *pair, bool sender, uint64_t pieces);
uint64_t nh_pair_pieces(nh_pair *pair, bool sender);
void nh_pair_copied(ncclComm_t comm, nh_pair *pair, bool sender, uint64_t message, bool spoiled);
bool nh_pair_is_spoiled(nh_pair *pair, uint64_t message);
bool nh_pair_has_copied(nh_pair *pair, bool sender, uint64_t message);
void nh_meet(ncclComm_t comm, uint64_t name, const void *data, size_t size);
bool nh_met(ncclComm_t comm, int rank, uint64_t name, void *data, size_t size); /* has the rank come, and what it brought; data NULL: just asks */
void nh_signal(ncclComm_t comm, nh_pair *pair, int index);
uint64_t nh_signals(nh_pair *pair, int index);
void nh_set_waits(ncclComm_t comm, nh_wait wait);
nh_wait nh_waits(ncclComm_t comm, int rank);
double nh_waits_since(ncclComm_t comm, int rank);                 /* seconds of nh_now; only while nh_waits tells of one */
void nh_set_doing(ncclComm_t comm, const char text[NH_DOING]);
void nh_doing(ncclComm_t comm, int rank, char text[NH_DOING]);
void nh_set_not_joined(ncclComm_t comm, uint64_t mark, int by);    /* by: whose fault it is */
uint64_t nh_not_joined(ncclComm_t comm, int rank, int *by);
bool nh_reason_claim(ncclComm_t comm);                            /* false: another rank explains its failure */
void nh_reason_drop(ncclComm_t comm);
bool nh_reason_is_by(ncclComm_t comm, int rank);
void nh_sleep(ncclComm_t comm, int await, bool (*still)(void *), void *argument, long nanoseconds);
void nh_wake(ncclComm_t comm, int await);                         /* ranks that sleep for this, and for anything; NH_ON_ANY: all */
void nh_set_interrupt(int (*check)(void));
int (*nh_interrupt(void))(void);
bool nh_comm_valid(ncclComm_t comm);
void nh_comm_guard(ncclComm_t comm, bool valid);
bool nh_comm_enter(ncclComm_t comm, const void *token);           /* false: another thread is inside */
void nh_comm_use(ncclComm_t comm);                                /* this thread is the last one inside; entering does it, too */
bool nh_comm_mine(ncclComm_t comm);                               /* this thread was the last one inside */
void nh_comm_leave(ncclComm_t comm, const void *token);
bool nh_comm_inside(ncclComm_t comm);
void nh_comm_set_aborted(ncclComm_t comm, bool aborted);
bool nh_comm_aborted(ncclComm_t comm);
uint64_t nh_comm_count_call(ncclComm_t comm);
void nh_comm_set_condition(ncclComm_t comm, nh_condition condition, bool is);
bool nh_comm_is(ncclComm_t comm, nh_condition condition);
void nh_comm_set_code(ncclComm_t comm, ncclResult_t failed);       /* whose text has been recorded */
ncclResult_t nh_comm_code(ncclComm_t comm);                       /* ncclSuccess: it has not failed */
void nh_comm_set_revoked(ncclComm_t comm, bool revoked);
bool nh_comm_revoked(ncclComm_t comm);
void nh_comm_set_async(ncclComm_t comm, ncclResult_t state);
ncclResult_t nh_comm_async(ncclComm_t comm);

/* step.c: the loop over steps */
void nh_sleep_early(ncclComm_t comm);   /* for a while: others use the cores */
static inline void nh_relax(void)
{
#if defined __x86_64__
  __builtin_ia32_pause();
#endif
}
ncclResult_t nh_run(nh_task *tasks);                              /* the first error */
ncclResult_t nh_wait_for(nh_task *task, int await);               /* notes what the task waits for; returns ncclInProgress */
bool nh_end_after_this(ncclComm_t comm);                          /* false: no call of this thread is inside it; else that call aborts it at its end */
void nh_set_timeout(double seconds);                              /* of this thread, for what it makes from now on */
double nh_timeout_here(void);
double nh_timeout_everywhere(void);                                /* by NICKEL_TIMEOUT, which is read each time */

/* look.c: each returns the error that the task ends with, or ncclSuccess */
ncclResult_t nh_look(nh_task *task);                              /* at what shared memory shows */
ncclResult_t nh_look_around(nh_task *task, double waited, bool interrupted); /* with system calls */
ncclResult_t nh_look_for_cycle(nh_task *task);
void nh_look_warn(nh_task *task, double seconds);
bool nh_alive(ncclComm_t comm, int rank);
ncclResult_t nh_round_failed(nh_task *task);

/* deadlock.c: cycles of blocked ranks, and what a thread waits for, told to all its communicators */
void nh_wait_begins(nh_task *task);
void nh_wait_over(nh_task *task);
bool nh_in_cycle(ncclComm_t comm);                                /* and nobody else has found it: the text is in head->cycle */
int nh_held_up_by(ncclComm_t comm, int rank);                     /* a missing rank: itself, or who it waits for in the end */
size_t nh_describe_wait(ncclComm_t comm, int rank, char *text, size_t room);

/* cores.c */
void nh_tell_cores(nh_rank *mine);
int nh_cores(ncclComm_t comm);                                    /* that its ranks have together */
void nh_move_on(ncclComm_t comm);                                 /* to an idle core, if there is one */

/* come.c */
ncclResult_t nh_come(ncclComm_t comm, int wait, int *all);        /* *all: also where there is one rank; never in a group */
void nh_come_over(ncclComm_t comm);                               /* the call has been made by the thread that found all there */
void nh_come_slept(ncclComm_t comm);                              /* while it waited */
void nh_stay(ncclComm_t comm);                                    /* takes it back */

/* join.c */
void nh_join_prepare(nh_task *task);
ncclResult_t nh_join_failed(nh_task *task, nh_failure failure);   /* in the words of an init */

/* comm.c: the life of a communicator */
ncclResult_t nh_comm_new(nh_task *task, ncclComm_t *out, int nranks, const uint8_t *id, int rank, int device, nh_settings settings);
void nh_comm_dispose(ncclComm_t comm);                            /* of one that nobody knows */
void nh_comm_detach(ncclComm_t comm);                             /* from its segment */
void nh_comm_each(void (*visit)(ncclComm_t, void *), void *argument); /* all of this process, under nh_lock */
ncclResult_t nh_comm_check_end(ncclComm_t comm, const char *function); /* for what a failed communicator allows, too */
ncclResult_t nh_comm_check_ready(ncclComm_t comm, const char *function); /* its init has ended well, whether or not it has failed since */
ncclResult_t nh_comm_revoke(ncclComm_t comm);
void nh_comm_interrupt(ncclComm_t comm);
ncclResult_t nh_comm_check(ncclComm_t comm, const char *function);  /* valid, not forked, ready, not failed, not finalized */
ncclResult_t nh_comm_exists(ncclComm_t comm, const char *function); /* valid, not forked */
ncclResult_t nh_comm_busy(ncclComm_t comm);                         /* for who could not enter: used, or aborted, by another thread */
ncclResult_t nh_comm_destroy(ncclComm_t comm);
ncclResult_t nh_comm_abort(ncclComm_t comm);

/* group.c */
bool nh_grouped(void);
ncclResult_t nh_group_drop(double *seconds);                      /* ends the group, launches nothing, estimates the time */
void nh_left(nh_task *tasks, nh_task *task);                      /* a task is over: if it was the last of its communicator, that is left */
void nh_free_tasks(nh_task *tasks);
void nh_group_forked(void);
ncclResult_t nh_submit(nh_task *task);                            /* runs it, or queues a copy in the open group */
ncclResult_t nh_group_start(void);
ncclResult_t nh_group_end(void);
ncclResult_t nh_group_note(ncclResult_t code);                    /* an error inside a group is the group's; returns code */

/* collective.c, direct.c, staged.c, p2p.c */
void nh_collective_prepare(nh_task *task);
const uint64_t *nh_scalars(const nh_task *task, uint64_t *scalars);   /* of all ranks, from their calls; NULL: not a PreMulSum */
bool nh_direct_possible(const nh_task *task);
void nh_direct_run(nh_task *task);
void nh_staged_start(nh_task *task);
ncclResult_t nh_staged_step(nh_task *task);
bool nh_staged_missing(nh_task *task, int rank, nh_counter *which, uint64_t *pieces);
void nh_p2p_prepare(nh_task *task);
ncclResult_t nh_copy_to_self(nh_task *send, nh_task *recv);

/* copy.c: memcpy for large buffers; `beyond`: all that is moved is more than the caches hold */
bool nh_beyond_caches(size_t bytes, int nranks);                  /* each of them has so many bytes in its buffers */
void nh_copy(void *target, const void *source, size_t size, bool beyond);

/* worker.c: non-blocking communicators */
ncclResult_t nh_work_later(nh_task *tasks);                       /* copies on the heap; their communicators have been entered */
void nh_worker_end(ncclComm_t comm);

/* family.c, window.c, redop.c, register.c, config.c */
ncclResult_t nh_family_lost(nh_task *task, int rank);              /* an error if that rank of a new communicator will never join it */
ncclResult_t nh_split(ncclComm_t comm, int color, int key, ncclComm_t *out, nh_settings settings);
ncclResult_t nh_shrink(ncclComm_t comm, const bool *excluded, ncclComm_t *out, nh_settings settings);
ncclResult_t nh_grow(ncclComm_t comm, int nranks, const ncclUniqueId *id, ncclComm_t *out, nh_settings settings);
ncclResult_t nh_window_register(ncclComm_t comm, void *buffer, size_t size, ncclWindow_t *out);
ncclResult_t nh_window_deregister(ncclComm_t comm, ncclWindow_t window);
void *nh_window_pointer(ncclComm_t comm, ncclWindow_t window);
void nh_windows_free(ncclComm_t comm);
ncclResult_t nh_put(ncclComm_t comm, const void *local, size_t bytes, int peer, ncclWindow_t window, size_t offset, int signal);
uint64_t nh_signal_number(int index, uint64_t signals);
ncclResult_t nh_wait_signals(ncclComm_t comm, int n, const ncclWaitSignalDesc_t *descriptions);
ncclResult_t nh_op_create(ncclComm_t comm, ncclRedOp_t *op, const void *scalar, int type, bool immediate);
ncclResult_t nh_op_destroy(ncclComm_t comm, ncclRedOp_t op);
const nh_user_op *nh_op_find(ncclComm_t comm, int op);            /* NULL: not made on this communicator, or destroyed */
void nh_ops_free(ncclComm_t comm);
ncclResult_t nh_register(ncclComm_t comm, void *buffer, size_t size, void **handle);
ncclResult_t nh_deregister(ncclComm_t comm, void *handle);
void nh_registrations_free(ncclComm_t comm);
ncclResult_t nh_settings_from(const ncclConfig_t *config, const nh_settings *parent, nh_settings *settings, const char *function);
ncclResult_t nh_check_call_config(const ncclCollConfig_t *config, const char *function);

/* trace.c, fault.c, log.c: NICKEL_TRACE, NICKEL_FAULT, NCCL_DEBUG */
bool nh_tracing(void);
void nh_trace(nh_task *task);
ncclResult_t nh_fault(ncclComm_t comm, const char *call, bool *corrupt);  /* may wait, may not return; sets *corrupt if the result is to be wrong */
void nh_fault_corrupt(nh_task *task);    /* makes it so, after the call */
void nh_log_reset(void);                                           /* reads NCCL_DEBUG anew */
void nh_info(int device, const char *format, ...) __attribute__((format(printf, 2, 3)));
void nh_warn(int device, const char *format, ...) __attribute__((format(printf, 2, 3)));
void nh_refuse_value(const char *name, const char *value, const char *expected, const char *instead); /* one line for each value of an environment variable */
void nh_warn_always(int device, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* check.c */
bool nh_calls_match(ncclComm_t comm, uint64_t round);
ncclResult_t nh_mismatch(nh_task *task);
bool nh_pair_matches(const nh_call *send, const nh_call *recv);
ncclResult_t nh_pair_mismatch(nh_task *task, const nh_call *send, const nh_call *recv);
void nh_describe(nh_task *task, nh_call *call);                   /* the call as it is posted, without data and places */

/* reduce.c */
size_t nh_type_size(int type);
/* Left fold in rank order of n sources into target (which may be one of the sources), rounded to the type after each step. */
void nh_fold(void *target, const char *const *sources, int n, size_t count, int type, int redop, const uint64_t *scalars);
/* The same into two targets at once, or twice the same. */
void nh_fold_both(void *target, void *also, const char *const *sources, int n, size_t count, int type, int redop, const uint64_t *scalars);
/* target = source times scalar, which holds the bits of one element. */
void nh_scale(void *target, const void *source, size_t count, int type, uint64_t scalar);

double nh_now(void);
#endif
