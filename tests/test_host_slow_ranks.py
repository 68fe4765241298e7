"""Ranks of the CPU library that are slow, stopped or late: never taken for a deadlock."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import random
import signal
import time

import numpy as np
import pytest
from helpers import forks, host_c
from helpers.host_more import Comm


def stopped(rank: int, nranks: int, ids: list[bytes], how: str) -> None:
    """Rank 0 is stopped while it waits for rank 1, which then does what rank 0 waits for, and waits for rank 0 itself."""
    host_c.set_timeout(8)
    comm, one = Comm(nranks, ids[0], rank), np.ones(1, np.float32)
    comm.barrier()
    if how == "signal":
        if rank == 0:
            forks.say("waits")
            comm.wait_signal((1, 1))
            comm.signal(1)
        elif rank == 1:
            time.sleep(0.45)
            comm.signal(0)
            comm.wait_signal((1, 0))
    elif how == "message":
        if rank == 0:
            forks.say("waits")
            comm.recv(one, 1)
            comm.send(one, 1)
        elif rank == 1:
            time.sleep(0.45)
            comm.send(one, 0)
            comm.recv(one, 0)
    elif rank == 0:  # a group in which something can move while something else waits
        forks.say("waits")
        with host_c.group():
            comm.recv(one, 1)
            comm.bcast(one, 2)
            comm.bcast(one, 2)
    else:
        time.sleep(0.45)
        comm.bcast(one, 2)
        comm.bcast(one, 2)
        if rank == 1:
            comm.send(one, 0)
    comm.barrier()


@pytest.mark.parametrize("how", ["signal", "message", "group"])
@forks.nursery()
def test_stopped_rank_is_not_in_a_ring(how: str) -> None:
    """A rank that was stopped in a wait has not seen yet that it is over: its peer, which waits for it meanwhile, does not take that for a
    ring, and all goes on when it does."""
    with forks.Forked(3, stopped, how) as ranks:
        ranks.wait_for("waits")
        time.sleep(0.3)
        ranks.stop(0)
        time.sleep(0.7)
        ranks.kill(0, signal.SIGCONT)
        forks.values(ranks.ends())


def late(rank: int, nranks: int, ids: list[bytes], rounds: int, seed: int) -> None:
    """Messages, collectives, signals and groups in the same random order everywhere, each rank late by its own random time."""
    host_c.set_timeout(20)
    comm, shared, own = Comm(nranks, ids[0], rank), random.Random(seed), random.Random(seed * 100 + rank)
    value, out, back = np.ones(1, np.int64), np.full(3000, rank), np.zeros(3000, np.int64)
    for round in range(rounds):
        kind, first, second = shared.choice("crsgw"), *shared.sample(range(nranks), 2)
        time.sleep(own.choice((0, 0, 0, 0.001, 0.003, 0.11 if round % 50 == 0 else 0.01, 0.26 if round % 100 == 0 else 0)))
        if kind == "c":
            comm.all_reduce(value, value, "max")
        elif kind == "r":  # round the ring, one after the other
            if rank == first:
                comm.send(out, (rank + 1) % nranks)
                comm.recv(back, (rank - 1) % nranks)
            else:
                comm.recv(back, (rank - 1) % nranks)
                comm.send(out, (rank + 1) % nranks)
            assert (back == (rank - 1) % nranks).all()
        elif kind == "s":
            if rank == first:
                comm.send(out, second)
            elif rank == second:
                comm.recv(back, first)
        elif kind == "g":
            with host_c.group():
                comm.recv(back, (rank - 1) % nranks)
                comm.all_reduce(value, value, "max")
                comm.send(out, (rank + 1) % nranks)
                comm.bcast(value, second)
        elif rank == first:
            comm.signal(second)
            comm.wait_signal((1, second))
        elif rank == second:
            comm.wait_signal((1, first))
            comm.signal(first)


@forks.nursery(deadline=50)
def test_late_ranks() -> None:
    """500 rounds in which every rank comes late by a random time, up to several times the time after which rings are looked for, are never
    called a deadlock."""
    forks.values(forks.fork(3, late, 250, 1, deadline=40))
    ends = forks.threads(4, late, 250, 2, deadline=40)
    forks.values(ends)


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.timeout(260)
@forks.nursery(deadline=250)
def test_late_ranks_5000() -> None:
    """The same 5,000 times, with more ranks than cores: four communicators of six ranks, 1,250 times each."""
    with contextlib.ExitStack() as stack:
        several = [stack.enter_context(forks.Forked(6, late, 1250, seed)) for seed in (3, 4, 5, 6)]
        for ranks in several:
            forks.values(ranks.ends(240))
