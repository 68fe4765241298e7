/* Makes the calls of a plan: enters its communicators, opens a group in each library, and starts all or nothing. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "plan.h"
#include <stdlib.h>
#include <string.h>


pn_plan *pn_plan_new(void)
{
  pn_plan *plan = calloc(1, sizeof *plan);
  if (plan != NULL) plan->failed = PN_NONE;
  return plan;
}


void pn_plan_free(pn_plan *plan)
{
  if (plan == NULL) return;
  free(plan->operations);
  free(plan->comms);
  free(plan->parts);
  free(plan);
}


/* acquire and release: what the last thread inside wrote is seen by the next. */
static int enter(pn_plan *plan)
{
  return atomic_exchange_explicit(&plan->busy, 1, memory_order_acquire) == 0 ? 0 : PN_BUSY;
}


static int leave(pn_plan *plan, int code)
{
  atomic_store_explicit(&plan->busy, 0, memory_order_release);
  return code;
}


/* ---- writing down ---- */

static int make_room(pn_plan *plan, int more)
{
  if (more <= plan->room - plan->length) return 0;
  int room = plan->room < 4 ? 8 : 2 * plan->room;
  if (room < plan->length + more) room = plan->length + more;
  pn_operation *operations = realloc(plan->operations, (size_t)room * sizeof *operations);
  if (operations == NULL) return PN_MEMORY;
  plan->operations = operations;
  plan->room = room;
  return 0;
}


static int know_library(pn_plan *plan, pn_table *table)
{
  for (int i = 0; i < plan->nparts; i++)
    if (plan->parts[i].table == table) return 0;
  pn_part *parts = realloc(plan->parts, (size_t)(plan->nparts + 1) * sizeof *parts);
  if (parts == NULL) return PN_MEMORY;
  plan->parts = parts;
  parts[plan->nparts++] = (pn_part){.table = table};
  return 0;
}


/* The last one first: most plans have one communicator, and loops over several come back to each. */
static int know_comm(pn_plan *plan, pn_comm *comm)
{
  for (int i = plan->ncomms - 1; i >= 0; i--)
    if (plan->comms[i] == comm) return 0;
  pn_comm **comms = realloc(plan->comms, (size_t)(plan->ncomms + 1) * sizeof *comms);
  if (comms == NULL) return PN_MEMORY;
  plan->comms = comms;
  comms[plan->ncomms++] = comm;
  return know_library(plan, comm->table);
}


static int add(pn_plan *plan, const pn_operation *operation)
{
  int code = make_room(plan, 1);
  if (code == 0) code = know_comm(plan, operation->comm);
  if (code == 0) plan->operations[plan->length++] = *operation;
  return code;
}


int pn_plan_add(pn_plan *plan, const pn_operation *operation)
{
  if (enter(plan) != 0) return PN_BUSY;
  return leave(plan, add(plan, operation));
}


int pn_plan_extend(pn_plan *plan, pn_plan *other)
{
  if (plan == other || enter(plan) != 0) return PN_BUSY;
  if (enter(other) != 0) return leave(plan, PN_BUSY);
  int length = plan->length, code = make_room(plan, other->length);
  for (int i = 0; i < other->length && code == 0; i++) code = add(plan, &other->operations[i]);
  if (code != 0) plan->length = length;
  leave(other, 0);
  return leave(plan, code);
}


int pn_plan_clear(pn_plan *plan)
{
  if (enter(plan) != 0) return PN_BUSY;
  plan->length = plan->ncomms = plan->nparts = 0;
  return leave(plan, 0);
}


/* ---- launching ---- */

static int is_fine(int code)
{
  return code == 0 || code == PN_IN_PROGRESS;
}


static void leave_comms(pn_plan *plan, int entered)
{
  for (int i = 0; i < entered; i++) pn_leave(plan->comms[i]);
}


static int enter_comms(pn_plan *plan)
{
  for (int i = 0; i < plan->ncomms; i++) {
    int code = pn_enter(plan->comms[i]);
    if (code == 0) continue;
    leave_comms(plan, i);
    return code;
  }
  return 0;
}


/* Another call may change the library's last words, so they are copied at once. */
static void keep_text(pn_plan *plan, const pn_table *table)
{
  const char *text = table->last_error != NULL ? table->last_error(NULL) : NULL;
  plan->text[0] = '\0';
  if (text == NULL) return;
  strncpy(plan->text, text, PN_TEXT - 1);
  plan->text[PN_TEXT - 1] = '\0';
}


/* An error inside a group is remembered, and the group's end then starts nothing: so a call with a type that does not exist undoes
   what the group has taken. */
static void spoil(const pn_part *part)
{
  const int no_type = -1;
  if (part->taken != NULL && part->table->broadcast != NULL)
    part->table->broadcast(NULL, NULL, 1, no_type, 0, part->taken->comm, NULL);
}


static int end_groups(pn_plan *plan, int opened, ncclSimInfo_t *info)
{
  int first = 0;
  for (int i = 0; i < opened; i++) {
    pn_part *part = &plan->parts[i];
    part->result = info != NULL ? part->table->simulate_end(info) : part->table->group_end();
    if (first == 0 || (is_fine(first) && !is_fine(part->result))) first = part->result != 0 ? part->result : first;
  }
  return first;
}


static int start_groups(pn_plan *plan, int *opened, int simulate)
{
  for (*opened = 0; *opened < plan->nparts; ++*opened) {
    pn_part *part = &plan->parts[*opened];
    part->taken = NULL;
    part->result = 0;
    if (part->table->group_start == NULL || (simulate && part->table->simulate_end == NULL)) return PN_MISSING;
    int code = part->table->group_start();
    if (code != 0) return code;
  }
  return 0;
}


static void taken(pn_plan *plan, int length)
{
  for (int i = 0; i < length; i++)
    for (int k = 0; k < plan->nparts; k++)
      if (plan->parts[k].table == plan->operations[i].comm->table) plan->parts[k].taken = plan->operations[i].comm;
}


static int make_calls(pn_plan *plan, const uintptr_t *stream)
{
  const pn_operation *operation = plan->operations;
  for (int i = 0; i < plan->length; i++, operation++) {
    const pn_comm *comm = operation->comm;
    int code = operation->call(comm->table, comm->comm, stream != NULL ? *stream : operation->stream, operation->argument);
    if (is_fine(code)) continue;
    plan->failed = i;
    keep_text(plan, comm->table);
    taken(plan, i);
    return code;
  }
  return 0;
}


static int launch(pn_plan *plan, const uintptr_t *stream, ncclSimInfo_t *info)
{
  int opened;
  if (enter(plan) != 0) return PN_BUSY;
  int code = enter_comms(plan);
  if (code != 0) return leave(plan, code);
  plan->failed = PN_NONE;
  code = start_groups(plan, &opened, info != NULL);
  if (code != 0) plan->failed = PN_AT_START;
  else code = make_calls(plan, stream);
  for (int i = 0; i < opened && code != 0; i++) spoil(&plan->parts[i]);
  int ended = end_groups(plan, opened, code == 0 ? info : NULL);
  leave_comms(plan, plan->ncomms);
  return leave(plan, code != 0 ? code : ended);
}


int pn_plan_launch(pn_plan *plan)
{
  return launch(plan, NULL, NULL);
}


int pn_plan_launch_on(pn_plan *plan, uintptr_t stream)
{
  return launch(plan, &stream, NULL);
}


int pn_plan_simulate(pn_plan *plan, ncclSimInfo_t *info)
{
  return launch(plan, NULL, info);
}


int pn_plan_result(const pn_plan *plan, const pn_table *table)
{
  for (int i = 0; i < plan->nparts; i++)
    if (plan->parts[i].table == table) return plan->parts[i].result;
  return 0;
}
