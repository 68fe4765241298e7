"""What a rank finds that looks late: what its peers did before they failed or ended counts, and reasons are those the others were told."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from helpers import forks, host_c
from helpers.c import shared_library
from helpers.host_c import REMOTE_ERROR, SYSTEM_ERROR, raised
from helpers.host_more import Comm
from helpers.order import Flag, in_call

# A rank that `joins`, or `looks`, is held before it opens what another process has made, or looks whether that has ended: the first place
# of the flag says that it is there, the second lets it go on. `poor`: calloc has no memory for so many numbers, once. `dies`: where it
# tells its deadline.
HELD = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
extern void *__libc_calloc(size_t, size_t);
volatile char *joins, *looks;
volatile int poor, dies;
static void hold(volatile char *flag, const char *path)
{
  struct timespec moment = {.tv_nsec = 1000000};
  if (!flag || strncmp(path, "/proc/", 6) != 0) return;
  flag[0] = 1;
  for (int turn = 0; turn < 8000 && !flag[1]; turn++) nanosleep(&moment, NULL);
}
int open(const char *path, int flags, ...)
{
  va_list more;
  va_start(more, flags);
  int mode = flags & O_CREAT ? va_arg(more, int) : 0;
  va_end(more);
  if ((flags & O_ACCMODE) == O_RDWR) hold(joins, path);
  return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}
int stat(const char *path, struct stat *about)
{
  hold(looks, path);
  return (int)syscall(SYS_newfstatat, AT_FDCWD, path, about, 0);
}
void *calloc(size_t count, size_t size)
{
  if (!poor || count != (size_t)poor || size != sizeof(int)) return __libc_calloc(count, size);
  poor = 0;
  return NULL;
}
ssize_t write(int fd, const void *text, size_t size)
{
  if (dies && memmem(text, size, " waited ", 8)) kill(getpid(), SIGKILL);
  return syscall(SYS_write, fd, text, size);
}
"""


def hold(what: str, flag: Flag) -> None:
    """This rank is held when it `joins`, or `looks`."""
    ctypes.c_void_p.in_dll(ctypes.CDLL(None), what).value = flag.address()


def lacks(what: str, value: int) -> None:
    """This rank is `poor`, or `dies`."""
    ctypes.c_int.in_dll(ctypes.CDLL(None), what).value = value


def gives_up(rank: int, nranks: int, ids: list[bytes], held: Flag, told: Flag) -> host_c.HostError:
    """Rank 1 comes to the new communicator of a split when rank 0, which has made its id, has waited in vain for it."""
    comm = Comm(nranks, ids[0], rank)
    comm.barrier()
    comm.set_timeout(1 if rank == 0 else 8)
    if rank == 1:
        hold("joins", held)
    error = raised(comm.split, 0)
    held.set(1)
    told.set(rank)
    told.wait(2)
    return error


def scene_leader_gives_up() -> None:
    """The late rank is told that the other one could not join."""
    waits, late = forks.values(forks.fork(2, gives_up, Flag(), Flag()))
    assert waits.kind == "timeout" and waits.ranks == (1,), waits
    assert late.kind == "remote" and late.ranks == (0,) and "could not join" in late.text, late


def cannot_join(rank: int, nranks: int, ids: list[bytes], why: str, held: Flag, told: Flag) -> None:
    """Rank 2 cannot join the new communicator of a split, and rank 1 comes to it when rank 0 knows that."""
    host_c.set_timeout(8)
    comm = Comm(nranks, ids[0], rank)
    comm.barrier()
    if rank == 1:
        hold("joins", held)
    if rank == 2 and why == "open files":
        forks.no_more_descriptors()
    if rank == 2 and why == "no memory":
        lacks("poor", nranks)
    try:
        comm.split(0)
    finally:
        if rank == 0:
            held.set(1)
        told.set(rank)
        told.wait(3)


def scene_another_cannot_join() -> None:
    """Both are told of the rank that could not, and the late one not of the rank that knew it first."""
    for why in ("open files", "no memory"):
        first, late, fails = forks.fork(3, cannot_join, why, Flag(), Flag())
        fails.failed(SYSTEM_ERROR, "memory", why)
        for end in (first, late):
            end.failed(REMOTE_ERROR, "remote", "rank 2", "could not join", ranks=[2])


def cannot_map(rank: int, nranks: int, ids: list[bytes], held: Flag) -> host_c.HostError | None:
    """In a group of rank 0 a window cannot be mapped; before that is told, since rank 1 is held, another call fails."""
    host_c.set_timeout(8)
    window = Comm(2, ids[0], rank) if rank < 2 else None
    message = Comm(2, ids[1], min(rank, 1)) if rank != 1 else None
    memory, pair = host_c.empty(1 << 16, np.uint8), np.zeros(2, np.float32)
    if window is None:
        assert message is not None
        held.wait()
        time.sleep(0.2)  # until rank 0 could not; the same is to come if it still can
        error = raised(message.send, pair, 0)
        held.set(1)
        return error
    window.barrier()
    if message is None:
        hold("joins", held)
        return raised(window.window, memory)
    forks.no_more_descriptors()
    host_c.group_start()
    window.window(memory)
    message.recv(pair, 1, count=1)
    return raised(host_c.group_end)


def scene_error_that_is_told_late() -> None:
    """The group's code and text are both those of the window."""
    fails, other, _ = forks.values(forks.fork(3, cannot_map, Flag(), ids=2))
    assert (fails.code, fails.kind) == (SYSTEM_ERROR, "memory") and "open files" in fails.text, fails
    assert other.code == SYSTEM_ERROR and "rank 0 could not map" in other.text, other


def deadline(rank: int, nranks: int, ids: list[bytes], told: Flag) -> host_c.HostError | None:
    """Three ranks wait in vain for two; the first whose deadline comes is killed in telling it."""
    comm = Comm(nranks, ids[0], rank)
    comm.barrier()
    if rank > 2:
        return told.wait(2)
    if rank == 0:
        lacks("dies", 1)
    comm.set_timeout(0.3 + 0.2 * (rank > 0))
    error = raised(comm.barrier)
    told.set(rank)
    told.wait(2)
    return error


def scene_killed_at_its_deadline() -> None:
    """The others end all the same, and name ranks that were missing."""
    first, *others = forks.fork(5, deadline, Flag())
    assert first.signal == signal.SIGKILL, first
    for end in others[:2]:
        error = end.returned()
        assert error.kind == "timeout" and set(error.ranks) <= {3, 4} and 3 in error.ranks, error


def last_act(rank: int, nranks: int, ids: list[bytes], looks: Flag) -> None:
    """Rank 1 does what rank 0 waits for, and ends, after rank 0 has found it missing and before it looks whether it lives."""
    host_c.set_timeout(8)
    comm = Comm(nranks, ids[0], rank)
    comm.barrier()
    if rank == 0:
        hold("looks", looks)
    else:
        looks.wait()
    if rank == 1:
        comm.signal(0)
        os._exit(0)
    comm.wait_signal((1, 1))


def scene_last_act() -> None:
    """The signal that it gave has come."""
    looks = Flag()
    with forks.Forked(2, last_act, looks) as ranks:
        while 1 in ranks.open:
            ranks.listen(8)
        looks.set(1)
        ranks.ends()[0].returned()


SCENES = [
    scene_leader_gives_up, scene_another_cannot_join, scene_error_that_is_told_late, scene_killed_at_its_deadline, scene_last_act,
]  # fmt: skip


@pytest.mark.parametrize("scene", SCENES)
def test_held(scene: object, tmp_path: Path) -> None:
    """These scenes, whose ranks are held where one is seldom that late."""
    held = shared_library(tmp_path / "held.so", HELD)
    before = [path] if (path := os.environ.get("LD_PRELOAD")) else []
    env = {**os.environ, "LD_PRELOAD": ":".join([*before, str(held)]), "PYTHONPATH": os.pathsep.join(sys.path), "NCCL_DEBUG": "WARN"}
    program = f"import test_host_late as t; t.{scene.__name__}()"  # type: ignore[attr-defined]
    ended = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=50)
    assert ended.returncode == 0, ended.stderr


@forks.nursery()
def test_done_before_the_failure() -> None:
    """A rank that sleeps while its peer gives the signal that it waits for, and then revokes the communicator, has it when it wakes."""

    def rank_main(rank: int, nranks: int, ids: list[bytes], go: Flag) -> None:
        host_c.set_timeout(8)
        comm = Comm(nranks, ids[0], rank)
        comm.barrier()
        if rank == 0:
            threading.Thread(target=lambda: (in_call(), forks.say("waits")), daemon=True).start()
            comm.wait_signal((1, 1))
            return
        go.wait()
        comm.signal(0)
        comm.revoke()
        forks.say("done")
        go.wait(2)

    go = Flag()
    with forks.Forked(2, rank_main, go) as ranks:
        ranks.wait_for("waits")
        ranks.stop(0)
        go.set()
        ranks.wait_for("done")
        ranks.kill(0, signal.SIGCONT)
        while 0 in ranks.open:
            ranks.listen(5)
        go.set(1)
        for end in ranks.ends():
            end.returned()
