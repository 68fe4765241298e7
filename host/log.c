/* Lines in NCCL's form: NCCL_DEBUG says which, NCCL_DEBUG_FILE where to. And the line about a variable that cannot be read. */
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
  return open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
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

__attribute__((format(printf, 1, 2))) static void warn(const char *format, ...)
{
  va_list arguments;
  va_start(arguments, format);
  line("WARN", 0, format, arguments);
  va_end(arguments);
}

/* Whether this value of this variable comes for the first time. Names are literals, of which few exist. */
static bool is_new(const char *name, const char *value)
{
  static struct { const char *name; uint64_t value; } seen[8];
  uint64_t hash = 14695981039346656037u; /* FNV-1a */
  for (const char *c = value; *c; c++) hash = (hash ^ (unsigned char)*c) * 1099511628211u;
  size_t i = 0;
  nh_lock();
  while (i < sizeof seen / sizeof seen[0] - 1 && seen[i].name && strcmp(seen[i].name, name) != 0) i++;
  bool first = !seen[i].name || seen[i].value != hash;
  seen[i].name = name;
  seen[i].value = hash;
  nh_unlock();
  return first;
}

static void refuse(const char *name, const char *value, const char *expected, const char *instead)
{
  if (is_new(name, value)) warn("%s is '%.200s', but must be %s; %s", name, value, expected, instead);
}

static const struct { const char *word; nh_level level; } WORDS[] = {
  {"NONE", NOTHING}, {"VERSION", VERSION}, {"WARN", WARN}, {"INFO", INFO}, {"ABORT", INFO}, {"TRACE", INFO},
};
enum { NWORDS = sizeof WORDS / sizeof WORDS[0] };

static void read_environment(void)
{
  const char *text = getenv("NCCL_DEBUG"), *file = getenv("NCCL_DEBUG_FILE");
  int word = 0;
  while (text && *text && word < NWORDS && strcasecmp(text, WORDS[word].word) != 0) word++;
  log_to.level = word < NWORDS ? WORDS[word].level : NOTHING;
  int fd = file && *file && log_to.level > VERSION ? open_file(file) : STDERR_FILENO;
  if (fd >= 0) log_to.fd = fd;
  if (fd < 0) refuse("NCCL_DEBUG_FILE", file, "a file that can be opened for writing", "the lines go to stderr");
  if (word == NWORDS) refuse("NCCL_DEBUG", text, "VERSION, WARN, INFO, TRACE or ABORT", "nothing is logged");
}

void nh_refuse_value(const char *name, const char *value, const char *expected, const char *instead)
{
  pthread_once(&once, read_environment); /* which tells where to */
  refuse(name, value, expected, instead);
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
