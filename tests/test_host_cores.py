"""Where ranks of the CPU library run: two do not stay on one core while another is idle, and none is moved where it may not be."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

import numpy as np
import pytest
from helpers import forks, host_c
from helpers.host_more import Comm

STEP = 0.0003  # seconds of computing


def compute(seconds: float) -> None:
    """Keep this core busy."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def together(rank: int, nranks: int, ids: list[bytes], allowed: list[int], steps: int) -> tuple[float, bool]:
    """Ranks that begin on one core and may use these; how long they took, and whether they may still use the same."""
    os.sched_setaffinity(0, {min(allowed)})
    os.sched_setaffinity(0, allowed)
    host_c.set_timeout(20)
    comm, one = Comm(nranks, ids[0], rank), np.ones(1000, np.float32)
    comm.barrier()
    begun = time.perf_counter()
    for _ in range(steps):
        compute(STEP)
        comm.all_reduce(one, one, "max")
    return time.perf_counter() - begun, os.sched_getaffinity(0) == set(allowed)


@pytest.mark.parametrize("cores", [1, 2])
@forks.nursery()
def test_affinity_is_left_as_it_was(cores: int) -> None:
    """Whether ranks share their only core or may leave it, the cores that a rank may use are the same afterwards, and it goes on."""
    allowed = sorted(os.sched_getaffinity(0))[:cores]
    for seconds, same in forks.values(forks.fork(2, together, allowed, 500)):
        assert same and seconds < 8


def others(cores: list[int]) -> float:
    """Seconds, by now, that these cores have worked for others than this process and the children that it has collected."""
    names = [f"cpu{core}" for core in cores]
    rows = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    busy = sum(int(ticks) for row in rows if row[0] in names for ticks in (*row[1:4], *row[6:9]))
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return busy / os.sysconf("SC_CLK_TCK") - sum(used.ru_utime + used.ru_stime for used in own)


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="this machine has one core")
@forks.nursery(deadline=50)
def test_ranks_leave_a_core_that_they_share() -> None:
    """Two ranks that begin on one core of an idle machine do not stay there: steps of computing and an all-reduce take little more than the
    computing, in nearly every start, and not the time of both. On a busy machine the quietest starts of 20 seconds count, and each may take
    longer by what the cores did for others."""
    allowed, until = sorted(os.sched_getaffinity(0)), time.monotonic() + 20
    starts: list[tuple[float, float]] = []
    while len(starts) < 10 or (sorted(starts)[9][0] > 0.05 and time.monotonic() < until):
        before = others(allowed)
        seconds = max(seconds for seconds, _ in forks.values(forks.fork(2, together, allowed, 1000)))
        starts.append((others(allowed) - before, seconds))
    quietest = sorted(starts)[:10]
    late = [seconds for foreign, seconds in quietest if seconds > 1000 * STEP * 1.5 + max(foreign, 0.0)]
    assert len(late) <= 1, quietest
