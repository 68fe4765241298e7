/* The drawing of shared.h as addresses. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "host.h"

static size_t inline_at(int nranks)
{
  return NH_RANKS_AT + (size_t)nranks * NH_PAGE;
}

static size_t slots_at(int nranks)
{
  return inline_at(nranks) + (size_t)nranks * 2 * NH_INLINE;
}

static size_t pairs_at(int nranks)
{
  return slots_at(nranks) + (size_t)nranks * NH_SLOTS * NH_SLOT;
}

static size_t pair_slots_at(int nranks)
{
  size_t end = pairs_at(nranks) + (size_t)nranks * (size_t)nranks * sizeof(nh_pair);
  return (end + NH_PAGE - 1) / NH_PAGE * NH_PAGE;
}

size_t nh_segment_size(int nranks)
{
  return pair_slots_at(nranks) + (size_t)nranks * (size_t)nranks * NH_PAIR_SLOTS * NH_PAIR_SLOT;
}

nh_rank *nh_rank_at(nh_header *head, int rank)
{
  return (nh_rank *)((char *)head + NH_RANKS_AT + (size_t)rank * NH_PAGE);
}

char *nh_inline_slot(nh_header *head, int nranks, int rank, uint64_t round)
{
  return (char *)head + inline_at(nranks) + ((size_t)rank * 2 + (round & 1)) * NH_INLINE;
}

char *nh_slot(nh_header *head, int nranks, int rank, uint64_t piece)
{
  return (char *)head + slots_at(nranks) + ((size_t)rank * NH_SLOTS + piece % NH_SLOTS) * NH_SLOT;
}

static size_t pair_index(int nranks, int from, int to)
{
  return (size_t)from * (size_t)nranks + (size_t)to;
}

nh_pair *nh_pair_at(nh_header *head, int nranks, int from, int to)
{
  return (nh_pair *)((char *)head + pairs_at(nranks)) + pair_index(nranks, from, to);
}

char *nh_pair_slot(nh_header *head, int nranks, int from, int to, uint64_t piece)
{
  return (char *)head + pair_slots_at(nranks) + (pair_index(nranks, from, to) * NH_PAIR_SLOTS + piece % NH_PAIR_SLOTS) * NH_PAIR_SLOT;
}
