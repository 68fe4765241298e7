"""What the ranks of a communicator are told when one of them fails: its own reason, in the same words on all, whoever sees it first."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers import forks, host_c
from helpers.c import shared_library
from helpers.host_c import INVALID_USAGE, REMOTE_ERROR, SYSTEM_ERROR, raised
from helpers.host_more import ABORT, Comm, polled
from helpers.order import SOON, Flag, in_call

# The next look that the main thread takes at another process's descriptors comes so many milliseconds late.
LATE_LOOK = """
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>
volatile int late;
int stat(const char *path, struct stat *about)
{
  if (late && strncmp(path, "/proc/", 6) == 0) {
    struct timespec pause = {late / 1000, late % 1000 * 1000000L};
    late = 0;
    nanosleep(&pause, NULL);
  }
  return (int)syscall(SYS_newfstatat, AT_FDCWD, path, about, 0);
}
"""


def poor(rank: int, nranks: int, ids: list[bytes], which: int, stay: int, make: Callable[[Comm], object], told: Flag) -> None:
    """Make a communicator from one in which rank `which` has no descriptor left; stay until so many ranks know what came of it."""
    host_c.set_timeout(8)
    comm = Comm(nranks, ids[0], rank)
    comm.barrier()
    if rank == which:
        forks.no_more_descriptors()
    try:
        make(comm)
    finally:
        told.set(rank)
        told.wait(stay)


@pytest.mark.parametrize("stay", [0, 2])
@forks.nursery()
def test_rank_that_cannot_join_a_split(stay: int) -> None:
    """A rank that has no descriptor left for the new communicator says so, and the others do not wait for it until the deadline; they are
    told the same if it has ended since."""
    waits, fails = forks.fork(2, poor, 1, stay, lambda comm: comm.split(0), Flag())
    fails.failed(SYSTEM_ERROR, "memory", "open files")
    waits.failed(REMOTE_ERROR, "remote", "rank 1", "could not join", ranks=[1])
    assert waits.seconds < 1 + SOON, waits


@pytest.mark.parametrize("keys", [(0, 0, 0), (0, 2, 1)])
@forks.nursery()
def test_all_are_told_who_could_not_join(keys: tuple[int, int, int]) -> None:
    """When one rank of a split has no descriptor left for the new communicator both others name it, by its rank in the old one."""
    first, second, fails = forks.fork(3, poor, 2, 3, lambda comm: comm.split(0, keys[comm.rank]), Flag())
    fails.failed(SYSTEM_ERROR, "memory", "open files")
    for end in (first, second):
        error = end.failed(REMOTE_ERROR, "remote", "rank 2", "could not join", ranks=[2]).error
        assert error is not None and 0 not in error.pids and end.seconds < SOON, end


@pytest.mark.parametrize("how", ["split", "shrink"])
@forks.nursery()
def test_leader_that_cannot_make_the_id(how: str) -> None:
    """A first rank of a new communicator that has no descriptor left for its id tells the others, who do not wait until the deadline."""

    def make(comm: Comm) -> object:
        if how == "split":
            return comm.split(0)
        return comm.shrink([2]) if comm.rank < 2 else None

    fails, *others = forks.fork(3, poor, 0, 3, make, Flag())
    fails.failed(SYSTEM_ERROR, "memory", "open files")
    for end in others[: 2 if how == "split" else 1]:
        end.failed(REMOTE_ERROR, "remote", "rank 0", "could not make its unique id", ranks=[0])
        assert end.seconds < SOON, end


def late_to_join(rank: int, nranks: int, ids: list[bytes]) -> host_c.HostError:
    """Rank 1 finds the id of a split when rank 0, which has made it, has waited in vain for it."""
    comm = Comm(nranks, ids[0], rank)
    comm.barrier()
    comm.set_timeout(1)
    if rank == 1:
        ctypes.c_int.in_dll(ctypes.CDLL(None), "late").value = 2000
    error = raised(comm.split, 0)
    if rank == 0:
        time.sleep(3)
    return error


def late_to_join_all() -> None:
    """What both are told."""
    waits, late = forks.values(forks.fork(2, late_to_join))
    assert waits.kind == "timeout" and waits.ranks == (1,), waits
    assert late.kind == "remote" and late.ranks == (0,) and "could not join" in late.text, late


def test_late_to_a_split_that_was_given_up(tmp_path: Path) -> None:
    """A rank that comes to a split's new communicator when its first rank has given up is told that, not that the id was used before."""
    look = shared_library(tmp_path / "look.so", LATE_LOOK)
    before = [path] if (path := os.environ.get("LD_PRELOAD")) else []
    env = {**os.environ, "LD_PRELOAD": ":".join([*before, str(look)]), "PYTHONPATH": os.pathsep.join(sys.path)}
    program = "import test_host_reasons as t; t.late_to_join_all()"
    ended = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=50)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("how", ["abort", "shrink"])
@forks.nursery()
def test_abort_is_told_as_one(how: str) -> None:
    """A rank whose call is ended by its own other thread has aborted, for its peers, also while it is still there."""

    def rank_main(rank: int, nranks: int, ids: list[bytes], told: Flag) -> host_c.HostError | None:
        host_c.set_timeout(8)
        comm, one = Comm(nranks, ids[0], rank), np.ones(1, np.int32)
        comm.barrier()
        if rank == 2:
            return told.wait(2)

        def ends_it() -> None:
            in_call()
            if how == "abort":
                comm.abort()
            else:
                raised(comm.shrink, [2], ABORT)  # it is alone with this

        if rank == 1:
            threading.Thread(target=ends_it, daemon=True).start()
        error = raised(comm.all_reduce, one, one)
        told.set(rank)
        told.wait(2)
        return error

    waits, ends, _ = forks.values(forks.fork(3, rank_main, Flag()))
    assert waits.code == REMOTE_ERROR and waits.ranks == (1,) and "has aborted" in waits.text, waits
    assert ends.code == INVALID_USAGE and ends.kind == "aborted", ends


@forks.nursery()
def test_stopped_in_an_init_that_failed() -> None:
    """A rank that was stopped while others found that they were told different numbers of ranks is told that, too, and no peer's end."""

    def rank_main(rank: int, nranks: int, ids: list[bytes], goes: Flag) -> None:
        host_c.set_timeout(8)
        if rank == 2:
            goes.wait()
        forks.say("joins")
        host_c.Comm(4 if rank == 2 else 3, ids[0], rank)

    goes = Flag()
    with forks.Forked(3, rank_main, goes) as ranks:
        ranks.wait_for("joins", 2)
        time.sleep(0.5)  # until both wait; the same is to come if one does not
        ranks.stop(0)
        goes.set()
        while ranks.open - {0}:
            ranks.listen(5)
        ranks.kill(0, signal.SIGCONT)
        for end in ranks.ends():
            end.failed(INVALID_USAGE, "world size", "3", "4")


@pytest.mark.parametrize("then", ["shrink", "shrink and abort", "revoke and split"])
@forks.nursery()
def test_nothing_comes_of_a_failed_init(then: str) -> None:
    """A communicator whose init has failed, for an id that is none or as its place was taken, cannot be shrunk or split: it says why."""

    def refused(comm: Comm) -> host_c.HostError:
        if then == "revoke and split":
            comm.revoke()
            return raised(comm.split, 0)
        return raised(comm.shrink, [1], ABORT if "abort" in then else 0)

    none = Comm(2, b"x" * host_c.ID_BYTES, 0, polled())
    assert raised(none.wait).kind == refused(none).kind == "id invalid"
    unique_id = host_c.unique_id()
    taken = [Comm(2, unique_id, 0, polled()) for _ in range(2)]
    for comm in taken:
        assert raised(comm.wait).kind == refused(comm).kind == "duplicate rank"
    for comm in (none, *taken):
        comm.abort()


@forks.nursery()
def test_shrink_in_the_group_of_its_init() -> None:
    """A communicator whose init is only queued cannot be shrunk yet."""
    host_c.group_start()
    comm = Comm(2, host_c.unique_id(), 0)
    refused = raised(comm.shrink, [1], ABORT)
    assert refused.kind == "busy" and "not ready" in refused.text, refused
    assert raised(host_c.group_end).code == refused.code
