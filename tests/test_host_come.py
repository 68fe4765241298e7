"""Coming to a collective before it is called: who has promised is seen, old promises are not, and nobody waits for long."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from helpers import forks, host_c
from helpers.c import shared_library
from helpers.host_c import INVALID_ARGUMENT
from helpers.host_more import Comm
from helpers.order import SOON, Flag


def come(comm: Comm, wait: int = 0) -> bool:
    """nickelCommCome."""
    function, all_come = host_c.library().nickelCommCome, ctypes.c_int(-1)
    function.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_int)]
    host_c.check(function(comm.handle, wait, ctypes.byref(all_come)), comm.handle)
    assert all_come.value in (0, 1)
    return bool(all_come.value)


def ready(nranks: int, unique_id: bytes, rank: int) -> Comm:
    """A communicator of ranks that share one core, so that none has another to spare."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    host_c.set_timeout(20)
    return Comm(nranks, unique_id, rank)


def sees_promises(rank: int, nranks: int, ids: list[bytes], flags: list[Flag]) -> None:
    comm, other, one = ready(nranks, ids[0], rank), Comm(nranks, ids[1], rank), np.ones(4, np.float32)

    def first(number: int) -> bool:
        """Whether this is rank 0, which does something while the other waits for the flag of that number."""
        if rank:
            flags[number].wait()
        return rank == 0

    for turn in range(3):
        for _ in range(2):
            assert not come(comm), "who only looks tells nothing"
            other.barrier()
        if first(4 * turn):
            assert not come(comm, 1), "nobody else has"
            flags[4 * turn].set()
        else:
            assert come(comm), "the other one has, and this one is the last"
        comm.all_reduce(one, one, "max")
        assert not come(comm, -1)
        other.barrier()
        if first(4 * turn + 1):
            assert not come(comm, 1) and not come(comm, -1)  # what was promised is taken back
            flags[4 * turn + 1].set()
        else:
            assert not come(comm)
        other.barrier()
        assert not come(comm, -1)
        if first(4 * turn + 2):
            comm.all_reduce(one[:0], one[:0], "max")  # nobody has to come for no elements
            assert not come(comm, 1)
            flags[4 * turn + 2].set()
        else:
            comm.all_reduce(one[:0], one[:0], "max")
            assert come(comm)
        other.barrier()
        with host_c.group():  # a message instead takes it back
            comm.send(one, rank ^ 1)
            comm.recv(np.empty_like(one), rank ^ 1)
        other.barrier()
        if first(4 * turn + 3):
            flags[4 * turn + 3].set()
        else:
            assert not come(comm), "the promise was for a call that did not follow"
        other.barrier()
        comm.barrier()
    other.destroy()
    comm.destroy()


@forks.nursery()
def test_promises() -> None:
    """A rank that has said it is about to call is seen by the one that comes after it; an old promise, or one taken back, is not."""
    forks.values(forks.fork(2, sees_promises, [Flag() for _ in range(12)], ids=2))


def in_call_is_there(rank: int, nranks: int, ids: list[bytes]) -> None:
    comm, one = ready(nranks, ids[0], rank), np.ones(4, np.float32)
    if rank == 1:
        end = time.monotonic() + 10
        while not come(comm):
            assert time.monotonic() < end, "rank 0 is in the call"
    comm.all_reduce(one, one)
    assert (one == 2).all()
    comm.destroy()


@forks.nursery()
def test_in_the_call() -> None:
    """A rank that is in the call has come to it, whether it has said so or not."""
    forks.values(forks.fork(2, in_call_is_there))


def counts(rank: int, nranks: int, ids: list[bytes]) -> int:
    comm, met = ready(nranks, ids[0], rank), 0
    one = np.empty(1, np.int64)
    for turn in range(300):
        met += come(comm, 1)
        one[0] = turn + rank
        comm.all_reduce(one, one)
        assert one[0] == nranks * turn + sum(range(nranks))
    comm.destroy()
    return met


@forks.nursery(deadline=40)
def test_short_waits_end_when_all_have_come() -> None:
    """2 or 5 ranks on one core, which wait for each other asleep, find each other nearly always, and the results are right."""
    for nranks in (2, 5):
        assert all(met > 150 for met in forks.values(forks.fork(nranks, counts, deadline=18)))


def alone(rank: int, nranks: int, ids: list[bytes], flag: Flag) -> None:
    comm = ready(nranks, ids[0], rank)
    if rank == 0:
        begun = time.monotonic()
        assert not come(comm, 1)
        assert 0.009 < time.monotonic() - begun < SOON, "10 ms are the most"
        flag.set()
    flag.wait()
    comm.barrier()
    comm.destroy()


@forks.nursery()
def test_longest_wait() -> None:
    """A wait is over soon though the other one does not come, and the call can be made."""
    forks.values(forks.fork(2, alone, Flag()))


def late_peer(rank: int, nranks: int, ids: list[bytes]) -> None:
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    host_c.set_timeout(20)
    comm, met, over = Comm(nranks, ids[0], rank), [], np.zeros(1, np.int32)
    began = time.monotonic()

    def works() -> None:
        while time.monotonic() < began + 0.3:
            pass

    thread = threading.Thread(target=works)  # on this rank's core
    if rank == 0:
        thread.start()
    while not over[0]:
        if rank == 1:
            time.sleep(0.005)
        met.append(come(comm, 1))
        over[0] = rank == 0 and time.monotonic() > began + 1 and sum(met[-20:]) < 10
        assert time.monotonic() < began + 15, "rank 0 waits for 5 ms, though it has its core for itself again"
        comm.all_reduce(over, over, "max")
    if rank == 0:
        thread.join()
    comm.destroy()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two ranks need a core each")
@forks.nursery(deadline=30)
def test_sleeps_for_a_while_only() -> None:
    """A rank that waits longer, as others have had its core, does so for as long as they do: its own sleep is not taken for theirs."""
    forks.values(forks.fork(2, late_peer, deadline=25))


@forks.nursery()
def test_one_rank() -> None:
    """One rank is always there."""
    one = host_c.init_all(1)[0]
    assert come(one) and come(one, 1)
    one.destroy()


SEVEN_CORES = """
#define _GNU_SOURCE
#include <sched.h>
#include <string.h>
int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set)
{
  (void)pid;
  memset(set, 0, size);
  for (int core = 0; core < 7; core++) CPU_SET(core, set);
  return 0;
}
"""


def on_seven_cores(nranks: int) -> list[bool]:
    """What each of so many ranks finds, one after the other, where the kernel says that there are seven cores."""
    comms = host_c.init_all(nranks)
    found = [come(comm, 1) for comm in comms]
    for comm in comms:
        comm.abort()
    return found


def test_spare_cores(tmp_path: Path) -> None:
    """Where each rank has a core to spare, as 2 and 3 ranks on 7 cores have and 4 have not, none is looked for: a thread makes the call."""
    stub = shared_library(tmp_path / "seven.so", SEVEN_CORES)
    program = "import json, test_host_come as t; print(json.dumps([t.on_seven_cores(n) for n in (2, 3, 4)]))"
    before = [path] if (path := os.environ.get("LD_PRELOAD")) else []
    env = {**os.environ, "LD_PRELOAD": ":".join([*before, str(stub)]), "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=20, check=False)
    assert ended.returncode == 0, ended.stderr
    quota = Path("/sys/fs/cgroup/cpu.max")
    limited = quota.exists() and not quota.read_text().startswith("max")  # then the cores that the cgroup allows are fewer
    assert json.loads(ended.stdout)[2] == [False, False, False, True]
    assert limited or json.loads(ended.stdout)[:2] == [[False] * 2, [False] * 3]


@forks.nursery()
def test_arguments() -> None:
    """Another way to wait, no place for the answer, and no communicator, are refused."""
    comm = host_c.init_all(1)[0]
    lib, answer = host_c.library(), ctypes.c_int()
    come(comm)
    for wait in (-2, 2):
        assert lib.nickelCommCome(comm.handle, wait, ctypes.byref(answer)) == INVALID_ARGUMENT
    assert lib.nickelCommCome(comm.handle, 0, None) == INVALID_ARGUMENT
    assert lib.nickelCommCome(None, 0, ctypes.byref(answer)) == INVALID_ARGUMENT
    comm.destroy()


@forks.nursery()
def test_abort_meanwhile() -> None:
    """abort() by another thread ends the wait, and nothing is touched afterwards."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    for _ in range(20):
        comms, ended = host_c.init_all(2), threading.Event()

        def waits(comm: Comm = comms[0], ended: threading.Event = ended) -> None:
            try:
                while True:
                    come(comm, 1)
            except host_c.HostError as error:
                if error.kind in ("aborted", "closed", "remote"):
                    ended.set()

        handle = comms[0].handle
        thread = threading.Thread(target=waits)
        thread.start()
        time.sleep(0.005)
        host_c.check(host_c.library().ncclCommAbort(handle))
        assert ended.wait(5)
        thread.join()
        comms[1].abort()
