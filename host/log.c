/* Lines in NCCL's form: NCCL_DEBUG says which, NCCL_DEBUG_FILE where to. */
/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host.h"

typedef enum { NOTHING, VERSION, WARN, INFO } nh_level;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct { nh_level level; int fd; } log_to = {.fd = STDERR_FILENO};

/* %h is the host, %p the process, as in NCCL. */
static int open_file(const char *pattern)
{
  char path[1024], host[64] = "";
  size_t used = 0;
  gethostname(host, sizeof host - 1);
  for (; *pattern && used + sizeof host < sizeof path; pattern++) {
    if (pattern[0] == '%' && pattern[1] == 'h') used += (size_t)snprintf(path + used, sizeof path - used, "%s", host);
    else if (pattern[0] == '%' && pattern[1] == 'p') used += (size_t)snprintf(path + used, sizeof path - used, "%d", getpid());
    else {
      path[used++] = *pattern;
      continue;
    }
    pattern++;
  }
  path[used] = 0;
  int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  return fd < 0 ? STDERR_FILENO : fd;
}

static void read_environment(void)
{
  const char *text = getenv("NCCL_DEBUG"), *file = getenv("NCCL_DEBUG_FILE");
  log_to.level = NOTHING;
  if (text && strcasecmp(text, "VERSION") == 0) log_to.level = VERSION;
  if (text && strcasecmp(text, "WARN") == 0) log_to.level = WARN;
  if (text && (strcasecmp(text, "INFO") == 0 || strcasecmp(text, "TRACE") == 0 || strcasecmp(text, "ABORT") == 0)) log_to.level = INFO;
  if (file && *file && log_to.level > VERSION) log_to.fd = open_file(file);
}

/* For ncclResetDebugInit, which is not to be called while other threads are in the library. */
void nh_log_reset(void)
{
  pthread_once(&once, read_environment);
  if (log_to.fd != STDERR_FILENO) close(log_to.fd);
  log_to.fd = STDERR_FILENO;
  read_environment();
}

static nh_level level(void)
{
  pthread_once(&once, read_environment);
  return log_to.level;
}

/* One write per line, so that lines of several ranks stay whole. */
static void line(const char *kind, int device, const char *format, va_list arguments)
{
  char text[4096], host[64] = "";
  gethostname(host, sizeof host - 1);
  int used = snprintf(text, sizeof text, "%s:%d:%d [%d] NCCL %s ", host, getpid(), gettid(), device, kind);
  int more = vsnprintf(text + used, sizeof text - (size_t)used - 1, format, arguments);
  size_t length = (size_t)used + (more < 0 ? 0 : (size_t)more);
  if (length > sizeof text - 2) length = sizeof text - 2;
  text[length++] = '\n';
  ssize_t wrote = write(log_to.fd, text, length);
  (void)wrote; /* there is nowhere to say that a log cannot be written */
}

#define LINE(name, kind, condition)                                                                                                       \
  void name(int device, const char *format, ...)                                                                                          \
  {                                                                                                                                       \
    va_list arguments;                                                                                                                    \
    if (!(condition)) return;                                                                                                             \
    va_start(arguments, format);                                                                                                          \
    line(kind, device, format, arguments);                                                                                                \
    va_end(arguments);                                                                                                                    \
  }

LINE(nh_info, "INFO", level() >= INFO)
LINE(nh_warn, "WARN", level() >= WARN)
LINE(nh_warn_always, "WARN", level() >= NOTHING)
