/* Opens NCCL libraries side by side, each by one handle, and guards communicators against misuse before the library is entered. */
/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "loader.h"
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static pthread_mutex_t tables_lock = PTHREAD_MUTEX_INITIALIZER;
static pn_table *tables; /* every table ever made, newest first; guarded by tables_lock */

/* Grows in a forked child, which has one thread then; read without order: it never changes under a running thread. */
static atomic_uint generation;


static void after_fork_in_child(void)
{
  atomic_fetch_add_explicit(&generation, 1, memory_order_relaxed);
  /* A thread of the parent may have held the lock; that thread does not exist here. */
  tables_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}


__attribute__((constructor)) static void watch_forks(void)
{
  pthread_atfork(NULL, NULL, after_fork_in_child);
}


unsigned pn_generation(void)
{
  return atomic_load_explicit(&generation, memory_order_relaxed);
}


/* The size that the file must have so that all its segments can be mapped; 0 when its headers cannot be read. */
static off_t mapped_size(int fd)
{
  ElfW(Ehdr) header;
  if (pread(fd, &header, sizeof header, 0) != (ssize_t)sizeof header) return 0;
  if (memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_phentsize != sizeof(ElfW(Phdr))) return 0;
  off_t needed = 0;
  for (int i = 0; i < header.e_phnum; i++) {
    ElfW(Phdr) segment;
    off_t at = (off_t)header.e_phoff + i * (off_t)sizeof segment;
    if (pread(fd, &segment, sizeof segment, at) != (ssize_t)sizeof segment) return 0;
    off_t end = (off_t)(segment.p_offset + segment.p_filesz);
    if (segment.p_type == PT_LOAD && end > needed) needed = end;
  }
  return needed;
}


/* Finds what dlopen would crash or block on: a cut file faults when its missing pages are touched, a pipe waits for a writer. */
static int can_be_mapped(const char *path, char *error, size_t size)
{
  struct stat status;
  if (strchr(path, '/') == NULL || stat(path, &status) != 0) return 1; /* the loader's search, or its own message */
  if (S_ISDIR(status.st_mode)) {
    snprintf(error, size, "%s: is a directory; the path of a library file is needed", path);
    return 0;
  }
  if (!S_ISREG(status.st_mode)) {
    snprintf(error, size, "%s: is not a regular file", path);
    return 0;
  }
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 1;
  off_t needed = mapped_size(fd);
  close(fd);
  if (needed <= status.st_size) return 1;
  snprintf(error, size, "%s: is truncated: %lld bytes of at least %lld; install it again", path,
           (long long)status.st_size, (long long)needed);
  return 0;
}


/* The library's own symbol: one that merely comes along with a dependency would mix two libraries in a table. */
static void *own_symbol(void *handle, const struct link_map *map, const char *name)
{
  void *address = dlsym(handle, name);
  struct link_map *owner = NULL;
  Dl_info info;
  if (address == NULL || dladdr1(address, &info, (void **)&owner, RTLD_DL_LINKMAP) == 0) return NULL;
  return owner == map ? address : NULL;
}


static void *named(const pn_table *table, const char *name)
{
  for (int i = 0; i < pn_symbols_length; i++)
    if (strcmp(pn_symbols[i].name, name) == 0) return table->address[i];
  return NULL;
}


static pn_table *new_table(void *handle, const struct link_map *map)
{
  pn_table *table = calloc(1, sizeof *table + (size_t)pn_symbols_length * sizeof(void *));
  if (table == NULL) return NULL;
  table->handle = handle;
  table->path = realpath(map->l_name, NULL);
  if (table->path == NULL) table->path = strdup(map->l_name);
  if (table->path == NULL) {
    free(table);
    return NULL;
  }
  for (int i = 0; i < pn_symbols_length; i++) table->address[i] = own_symbol(handle, map, pn_symbols[i].name);
  table->group_start = (__typeof__(table->group_start))named(table, "ncclGroupStart");
  table->group_end = (__typeof__(table->group_end))named(table, "ncclGroupEnd");
  table->simulate_end = (__typeof__(table->simulate_end))named(table, "ncclGroupSimulateEnd");
  table->broadcast = (__typeof__(table->broadcast))named(table, "ncclBroadcast");
  table->last_error = (__typeof__(table->last_error))named(table, "ncclGetLastError");
  table->next = tables;
  tables = table;
  return table;
}


/* The table of the library at path, which may be a bare name for the loader's search; NULL and a text in error[size] on failure.
   The loader gives one handle for one file, so a file opened twice has one table; its second handle is given back. */
static pn_table *open_locked(const char *path, char *error, size_t size)
{
  struct link_map *map = NULL;
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (handle == NULL || dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0) {
    const char *text = dlerror();
    snprintf(error, size, "%s", text != NULL ? text : "the dynamic loader gave no reason");
    return NULL;
  }
  pn_table *table = tables;
  while (table != NULL && table->handle != handle) table = table->next;
  if (table != NULL) {
    dlclose(handle);
    return table;
  }
  if (own_symbol(handle, map, "ncclCommInitRank") == NULL) {
    snprintf(error, size, "%s: exports no ncclCommInitRank; it is not an NCCL library", map->l_name);
    dlclose(handle);
    return NULL;
  }
  table = new_table(handle, map);
  if (table == NULL) {
    snprintf(error, size, "%s: out of memory", path);
    dlclose(handle);
  }
  return table;
}


pn_table *pn_open(const char *path, char *error, size_t size)
{
  if (path == NULL || path[0] == '\0') {
    snprintf(error, size, "the path of the library is empty");
    return NULL;
  }
  if (!can_be_mapped(path, error, size)) return NULL;
  pthread_mutex_lock(&tables_lock);
  pn_table *table = open_locked(path, error, size);
  pthread_mutex_unlock(&tables_lock);
  return table;
}


const char *pn_path(const pn_table *table)
{
  return table->path;
}


void *pn_address(const pn_table *table, int index)
{
  return index >= 0 && index < pn_symbols_length ? table->address[index] : NULL;
}


int pn_symbol_count(void)
{
  return pn_symbols_length;
}


const pn_symbol *pn_symbol_at(int index)
{
  return index >= 0 && index < pn_symbols_length ? &pn_symbols[index] : NULL;
}


const char *pn_field_since(const char *struct_name, const char *field)
{
  for (const pn_field *f = pn_fields; f->name != NULL; f++)
    if (strcmp(f->owner, struct_name) == 0 && strcmp(f->name, field) == 0) return f->since;
  return NULL;
}


const char *pn_constant_since(const char *name)
{
  for (const pn_symbol *c = pn_constants; c->name != NULL; c++)
    if (strcmp(c->name, name) == 0) return c->since;
  return NULL;
}


pn_comm *pn_comm_new(pn_table *table)
{
  pn_comm *comm = calloc(1, sizeof *comm);
  if (comm == NULL) return NULL;
  comm->table = table;
  comm->generation = pn_generation();
  return comm;
}


void pn_comm_free(pn_comm *comm)
{
  free(comm);
}


/* State is looked at twice: first so that a closed communicator says "closed" even while its last call still runs, and again
   inside, because the thread that was in it may have closed it before it left. */
int pn_enter_at(pn_comm *comm, int state, int *inside)
{
  if (comm->generation != pn_generation()) return PN_FORKED;
  if (__atomic_load_n(&comm->state, __ATOMIC_RELAXED) != state) return PN_CLOSED;
  /* acquire: pairs with the release in pn_leave, so that what the last thread wrote to comm and state is seen here. */
  if (atomic_exchange_explicit(&comm->busy, 1, memory_order_acquire) != 0) return PN_BUSY;
  if (__atomic_load_n(&comm->state, __ATOMIC_RELAXED) != state) {
    pn_leave(comm);
    return PN_CLOSED;
  }
  *inside = 1;
  return 0;
}


int pn_enter(pn_comm *comm)
{
  int inside;
  return pn_enter_at(comm, 0, &inside);
}


void pn_leave(pn_comm *comm)
{
  atomic_store_explicit(&comm->busy, 0, memory_order_release);
}


/* Python runs signal handlers on the main thread only; elsewhere there is nothing to ask. */
static int interrupt_check(void)
{
  return syscall(SYS_gettid) == getpid() ? pn_check_signals() : 0;
}


int pn_install_interrupt(pn_table *table)
{
  void (*install)(int (*)(void)) = (void (*)(int (*)(void)))named(table, "nickelSetInterruptCheck");
  if (install == NULL) return 0;
  install(interrupt_check);
  return 1;
}
