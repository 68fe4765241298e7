/* A communicator seen from outside: a process that is no rank of it reads who its ranks are and what they wait in. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The segment is copied, not mapped: whoever owns it may cut it off at any time, and a page of a mapping that is gone would end this process. What
 * its ranks write meanwhile may be seen half: each word is right for itself, and nothing is concluded from two of them.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host.h"
#include "api.h"

typedef struct { char *text; size_t size, used; } nh_page;

static void say(nh_page *page, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void say(nh_page *page, const char *format, ...)
{
  va_list arguments;
  va_start(arguments, format);
  bool room = page->used < page->size;
  int wrote = vsnprintf(room ? page->text + page->used : NULL, room ? page->size - page->used : 0, format, arguments);
  va_end(arguments);
  page->used += wrote > 0 ? (size_t)wrote : 0;
}

static const char *life_name(nh_life life)
{
  static const char *const NAMES[] = {"missing", "joining", "joined", "closed", "aborted"};
  return life <= NH_ABORTED ? NAMES[life] : "unknown";
}

static void say_rank(nh_page *page, ncclComm_t view, int rank)
{
  int pid, fd;
  nh_life life = nh_rank_life(view->head, rank, &pid, &fd);
  const nh_rank *about = nh_rank_at(view->head, rank);
  say(page, "%s{\"rank\": %d, \"pid\": %d, \"life\": \"%s\"", rank ? ", " : "", rank, life == NH_EMPTY ? 0 : pid, life_name(life));
  if (life < NH_JOINED) {
    say(page, "}");
    return;
  }
  uint64_t round = nh_last_round(view, rank);
  say(page, ", \"device\": %d, \"rounds\": %lu", about->device, (unsigned long)round);
  if (round) {
    nh_call call = about->call[round & 1];
    say(page, ", \"last\": {\"operation\": \"%s\", \"call\": %lu, \"count\": %lu, \"type\": \"%s\", \"root\": %d}", nh_op_name(call.op),
        (unsigned long)call.seq + 1, (unsigned long)call.count, nh_type_name(call.type), call.root);
  }
  nh_wait wait = nh_waits(view, rank);
  if (wait.kind)
    say(page, ", \"waits\": {\"operation\": \"%s\", \"peer\": %d, \"seconds\": %.3f}", nh_op_name(wait.kind - 1), wait.peer,
        nh_now() - nh_waits_since(view, rank));
  say(page, "}");
}

static void describe(nh_header *head, int nranks, nh_page *page)
{
  struct ncclComm view = {.head = head, .nranks = nranks};
  uint64_t state = nh_state(head);
  const char *condition = state == NH_OPEN ? "starting" : state == NH_COMPLETE && !nh_failed_with(&view).kind ? "complete" : "failed";
  say(page, "{\"communicator\": \"");
  for (size_t i = 0; i < 8; i++) say(page, "%02x", head->nonce[i]);
  say(page, "\", \"maker\": %d, \"nranks\": %d, \"state\": \"%s\", \"ranks\": [", head->maker, nranks, condition);
  for (int rank = 0; rank < nranks; rank++) say_rank(page, &view, rank);
  say(page, "]}");
}

/* The first bytes of a file; NULL with errno if there are fewer, or there is no room for them. */
static nh_header *copied(int fd, size_t size)
{
  char *copy = aligned_alloc(NH_PAGE, (size + NH_PAGE - 1) / NH_PAGE * NH_PAGE);
  size_t done = 0;
  while (copy && done < size) {
    ssize_t got = pread(fd, copy + done, size - done, (off_t)done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      if (!got) errno = EIO;
      free(copy);
      return NULL;
    }
    done += (size_t)got;
  }
  return (nh_header *)copy;
}

/* The first page says how many ranks there are, and so how much is to be copied. Both may be anything: the owner can write what he likes. */
static ncclResult_t inspect(int fd, nh_page *page, const char *path)
{
  struct stat about;
  if (fstat(fd, &about) || !S_ISREG(about.st_mode) || about.st_size < NH_PAGE)
    return nh_error(ncclInvalidArgument, nickelKindNone, "nickelInspect: %s is no segment", path);
  size_t size = NH_PAGE;
  int nranks = 0, other;
  for (int look = 0; look < 2; look++) {
    nh_header *head = copied(fd, size);
    if (!head && errno == EIO) return nh_error(ncclInvalidArgument, nickelKindNone, "nickelInspect: %s was cut short while it was read", path);
    if (!head) return nh_descriptor_error("the segment of another process cannot be read");
    bool ours = head->magic == NH_MAGIC && head->layout == NH_LAYOUT;
    if (ours && look) describe(head, nranks, page);
    if (!look) nranks = nh_join_sizes(head, &other);
    free(head);
    if (!ours) return nh_error(ncclInvalidArgument, nickelKindNone, "nickelInspect: %s is no segment of this version of the library", path);
    size = NH_RANKS_AT + (size_t)nranks * NH_PAGE;
    if (nranks < 0 || nranks > NH_MAX_RANKS || (uint64_t)about.st_size < size)
      return nh_error(ncclInvalidArgument, nickelKindNone, "nickelInspect: %s is still being made", path);
  }
  return ncclSuccess;
}

EXPORT ncclResult_t nickelInspect(int pid, int fd, char *text, size_t size, size_t *length)
{
  ENSURE(text && size && length, "nickelInspect: a pointer is NULL, or there is no room for a text");
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* whatever has got that number meanwhile, nobody waits for it */
  if (file < 0) return nh_descriptor_error("the segment of another process cannot be opened");
  nh_page page = {text, size, 0};
  ncclResult_t result = inspect(file, &page, path);
  close(file);
  *length = page.used;
  return result;
}
