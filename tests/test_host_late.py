"""What a rank finds that looks late: what its peers did before they failed or ended counts, and reasons are those the others were told."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from helpers import forks, host_c
from helpers.c import shared_library
from helpers.host_c import REMOTE_ERROR, SYSTEM_ERROR, raised
from helpers.host_more import Comm
from helpers.order import Flag, in_call

# A rank whose `joins` is set opens the segment of a new communicator once joins[0] is. One whose `looks` is set says by looks[0] that it is
# about to look whether a peer has ended, and looks once looks[1] is set.
HELD = """
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
volatile char *joins, *looks;
static void hold(volatile char *until)
{
  struct timespec moment = {.tv_nsec = 1000000};
  for (int turn = 0; turn < 8000 && !*until; turn++) nanosleep(&moment, NULL);
}
int open(const char *path, int flags, ...)
{
  va_list more;
  va_start(more, flags);
  int mode = flags & O_CREAT ? va_arg(more, int) : 0;
  va_end(more);
  if (joins && strncmp(path, "/proc/", 6) == 0 && (flags & O_ACCMODE) == O_RDWR) hold(joins);
  return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}
int stat(const char *path, struct stat *about)
{
  if (looks && strncmp(path, "/proc/", 6) == 0) {
    looks[0] = 1;
    hold(looks + 1);
  }
  return (int)syscall(SYS_newfstatat, AT_FDCWD, path, about, 0);
}
"""


def hold(what: str, flag: Flag) -> None:
    """This rank `joins`, or `looks`, when the flag says so."""
    ctypes.c_void_p.in_dll(ctypes.CDLL(None), what).value = flag.address()


def gives_up(rank: int, nranks: int, ids: list[bytes], told: Flag) -> host_c.HostError:
    """Rank 1 comes to the new communicator of a split when rank 0, which has made its id, has waited in vain for it."""
    comm = Comm(nranks, ids[0], rank)
    comm.barrier()
    comm.set_timeout(1 if rank == 0 else 8)
    if rank == 1:
        hold("joins", told)
    error = raised(comm.split, 0)
    told.set(rank)
    told.wait(2)
    return error


def scene_leader_gives_up() -> None:
    """The late rank is told that the other one could not join."""
    waits, late = forks.values(forks.fork(2, gives_up, Flag()))
    assert waits.kind == "timeout" and waits.ranks == (1,), waits
    assert late.kind == "remote" and late.ranks == (0,) and "could not join" in late.text, late


def cannot_join(rank: int, nranks: int, ids: list[bytes], told: Flag) -> None:
    """Rank 2 has no descriptor for the new communicator of a split, and rank 1 comes to it when rank 0 knows that."""
    host_c.set_timeout(8)
    comm = Comm(nranks, ids[0], rank)
    comm.barrier()
    if rank == 1:
        hold("joins", told)
    if rank == 2:
        forks.no_more_descriptors()
    try:
        comm.split(0)
    finally:
        told.set(rank)
        told.wait(3)


def scene_another_cannot_join() -> None:
    """Both are told of the rank that could not, and the late one not of the rank that knew it first."""
    first, late, fails = forks.fork(3, cannot_join, Flag())
    fails.failed(SYSTEM_ERROR, "memory", "open files")
    for end in (first, late):
        end.failed(REMOTE_ERROR, "remote", "rank 2", "could not join", ranks=[2])


def last_act(rank: int, nranks: int, ids: list[bytes], how: str, looks: Flag) -> None:
    """Rank 1 does what rank 0 waits for, and ends, after rank 0 has found it missing and before it looks whether it lives."""
    host_c.set_timeout(8)
    comm = Comm(nranks, ids[0], rank)
    comm.barrier()
    if rank == 0:
        hold("looks", looks)
    else:
        looks.wait()
    if how == "barrier":
        comm.barrier()
    elif rank == 0:
        comm.wait_signal((1, 1))
    else:
        comm.signal(0)
    if rank == 1:
        os._exit(0)


def scene_last_act() -> None:
    """The wait is over, for a signal and for a barrier."""
    for how in ("signal", "barrier"):
        looks = Flag()
        with forks.Forked(2, last_act, how, looks) as ranks:
            while 1 in ranks.open:
                ranks.listen(8)
            looks.set(1)
            ranks.ends()[0].returned()


@pytest.mark.parametrize("scene", [scene_leader_gives_up, scene_another_cannot_join, scene_last_act])
def test_held(scene: object, tmp_path: Path) -> None:
    """These scenes, whose ranks are held where one is seldom that late."""
    held = shared_library(tmp_path / "held.so", HELD)
    before = [path] if (path := os.environ.get("LD_PRELOAD")) else []
    env = {**os.environ, "LD_PRELOAD": ":".join([*before, str(held)]), "PYTHONPATH": os.pathsep.join(sys.path)}
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
