"""The CPU library on a core that many others want: a wait gives the core away, and is still over in time."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator

import numpy as np
import pytest
from helpers import forks, host_c
from helpers.host_c import raised

OTHERS = 12
SOON = 1.2  # seconds; a wait that yields its core time and again to so many gets to nothing for several


@contextlib.contextmanager
def busy_core(others: int = OTHERS) -> Iterator[int]:
    """A core of this machine on which other processes count in loops."""
    core, pids = min(os.sched_getaffinity(0)), []
    for _ in range(others):
        pid = os.fork()
        if pid == 0:
            os.sched_setaffinity(0, {core})
            signal.alarm(30)
            while True:
                pass
        pids.append(pid)
    try:
        yield core
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def rank_main(rank: int, nranks: int, ids: list[bytes], core: int, timeout: float) -> tuple[host_c.HostError, float, float]:
    """Wait for a rank that does not come; the error, when the wait began and when it was over."""
    comm, one = host_c.Comm(nranks, ids[0], rank), np.ones(1, np.float32)
    comm.barrier()
    comm.set_timeout(timeout)
    if rank == 1:
        forks.say("stays away")
        time.sleep(20)
    os.sched_setaffinity(0, {core})
    begun = time.monotonic()
    forks.say("waits")
    return raised(comm.all_reduce, one, one), begun, time.monotonic()


@pytest.mark.alone
@pytest.mark.slow
@forks.nursery(deadline=40)
def test_in_time() -> None:
    """With twelve others on its core a rank learns of its peer's end, and of its deadline, as soon as on an idle machine."""
    with busy_core() as core:
        for killed, timeout in ((True, 20.0), (False, 0.4)):
            with forks.Forked(2, rank_main, core, timeout) as ranks:
                ranks.wait_for("waits")
                struck = time.monotonic()
                if killed:
                    ranks.kill(1)
                while 0 in ranks.open:
                    ranks.listen(5)
                error, begun, over = ranks.result[0].returned()
                assert error.kind == ("remote" if killed else "timeout") and error.ranks == (1,), error
                assert over - (struck if killed else begun + timeout) < SOON, (error, begun, struck, over)


def rounds(rank: int, nranks: int, ids: list[bytes], cores: list[int]) -> list[float]:
    """Seconds of all-reduces in pieces, each rank on a core of its own where there are two."""
    comm, many = host_c.Comm(nranks, ids[0], rank), np.ones(1 << 20, np.float32)
    comm.set_timeout(20.0)
    comm.barrier()
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    times = []
    for _ in range(30):
        begun = time.perf_counter()
        comm.all_reduce(many, many)
        times.append(time.perf_counter() - begun)
    return times


@pytest.mark.alone
@pytest.mark.slow
@forks.nursery(deadline=60)
def test_no_slice_for_each_piece() -> None:
    """A rank whose core another program uses does not give that program a time slice with each wait for a piece.

    So the median of 4 MiB is well under the 28 ms and more that yielding takes, slices being some milliseconds.
    """
    with busy_core(1) as core:
        others = sorted(os.sched_getaffinity(0) - {core})
        if not others:
            pytest.skip("the ranks need two cores, and this process may use one")
        with forks.Forked(2, rounds, [core, *others]) as ranks:
            times = sorted(ranks.ends(40)[0].returned())
    assert times[len(times) // 2] < 0.01, times
