"""Init of the CPU library: ranks that do not agree, ranks that are missing, many at once, kill -9, fork."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import functools
import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from helpers import forks, host_c
from helpers.host_c import INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, TIMEOUT, raised
from helpers.order import SOON, Flag, comes
from helpers.rounds import Rounds


def join(rank: int, nranks: int, ids: list[bytes], timeout: float = 5.0) -> host_c.Comm:
    """Init with a deadline, and one all-reduce."""
    host_c.set_timeout(timeout)
    comm = host_c.Comm(nranks, ids[0], rank)
    comm.barrier()
    return comm


@forks.nursery()
def test_ranks_that_do_not_agree() -> None:
    """Two ranks of one number, and different numbers of ranks, are told to every rank that has come, within a second; who comes later
    hears that, or that the id is used up; a rank outside of the range is refused on the spot."""

    def claims(rank: int, nranks: int, ids: list[bytes], claimed: list[tuple[int, int]], pause: float, told: Flag) -> None:
        host_c.set_timeout(20)
        time.sleep(rank * pause)
        error = raised(host_c.Comm, claimed[rank][1], ids[0], claimed[rank][0])
        told.set(rank)
        told.wait(nranks)  # the maker of the id must live until all have come
        raise error

    for pause in (0.0, 0.15):
        for claimed, kind, words in (
            ([(0, 3), (1, 3), (1, 3)], "duplicate rank", ("rank 1",)),
            ([(0, 2), (1, 3), (2, 3)], "world size", ("2", "3")),
        ):
            ends = forks.fork(3, claims, claimed, pause, Flag())
            late = [end for end in ends if end.error and end.error.kind == "id reused"]
            assert len(late) <= 1, ends
            for end in ends:
                if end not in late:
                    end.failed(INVALID_USAGE, kind, *words)
                assert end.seconds < SOON, end
    for rank, nranks in ((2, 2), (-1, 2), (0, 0), (0, -1)):
        assert raised(host_c.Comm, nranks, host_c.unique_id(), rank).code == INVALID_ARGUMENT


@forks.nursery()
def test_missing_rank() -> None:
    """When a rank does not come, those who wait are told at their deadline who is missing, other threads run meanwhile, and nothing of the
    attempt is left."""

    def rank_main(rank: int, nranks: int, ids: list[bytes], over: Flag) -> tuple[float, float]:
        before = forks.holds()
        if rank == 0:
            comes(1)  # or it could be missing, too
        host_c.set_timeout(1 if rank == 0 else 20)
        begun = time.monotonic()
        error = raised(host_c.Comm, nranks + 2, ids[0], rank)
        told = time.monotonic()
        assert (error.code, error.kind) == (TIMEOUT, "timeout") and "rank 2" in error.text and error.ranks[0] == 2, error
        after = forks.holds(before)
        assert after["mappings"] <= before["mappings"] and after["threads"] == before["threads"]
        assert after["memfds"] == 0, after
        over.set() if rank else over.wait()  # the maker of the id lives until all are told
        return begun, told

    (begun, first), (_, second) = forks.values(forks.fork(2, rank_main, Flag()))
    assert 1 <= first - begun < 1 + SOON and second - begun < 1 + SOON, (begun, first, second)


@forks.nursery()
def test_deadline_names_all_missing() -> None:
    """The rank whose deadline passes names all that are missing, as numbers too."""
    host_c.set_timeout(0.3)
    error = raised(host_c.Comm, 4, host_c.unique_id(), 1)
    assert error.ranks == (0, 2, 3) and all(f"rank {rank}" in error.text for rank in error.ranks), error


@forks.nursery()
def test_one_rank() -> None:
    """A communicator of one rank is ready at once and every collective on it is a copy."""
    comm = host_c.Comm(1, host_c.unique_id(), 0)
    comm.barrier()
    send, recv = np.arange(5.0), np.zeros(5)
    comm.all_reduce(send, recv, "avg")
    assert (recv == send).all() and comm.query("CommCount") == 1 and comm.query("CommGetAsyncError") == 0
    comm.finalize()
    comm.destroy()


@forks.nursery()
def test_many_at_once() -> None:
    """50 communicators of 4 ranks, made at once by 4 threads in random order, each in a thread of its own, all work."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        order = random.Random(rank).sample(range(50), 50)
        ends = forks.threads(50, lambda turn, n, own: join(rank, nranks, [ids[order[turn]]], 15), deadline=18)
        for comm in forks.values(ends):
            comm.destroy()

    forks.values(forks.threads(4, rank_main, ids=50, deadline=19))


@forks.nursery()
def test_many_ranks() -> None:
    """40 threads join one communicator, and 12 processes another, within seconds."""
    for comm in forks.values(forks.threads(40, join)):
        comm.destroy()

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        join(rank, nranks, ids).destroy()

    forks.values(forks.fork(12, rank_main))


@forks.nursery(30)
def test_failing_inits() -> None:
    """Two of three threads name the same rank, at slightly different moments, 300 times: all are told so, nobody crashes, and the next
    init is right."""

    def rank_main(rank: int, nranks: int, ids: list[bytes], pause: float) -> None:
        host_c.set_timeout(5)
        time.sleep(pause if rank == 2 else 0)
        host_c.Comm(3, ids[0], min(rank, 1))

    choose = random.Random(4)
    for _ in range(300):
        for end in forks.threads(3, rank_main, choose.random() * 0.002):
            assert end.error is not None and end.error.kind in ("duplicate rank", "id reused"), end
    forks.values(forks.threads(3, lambda rank, nranks, ids: join(rank, nranks, ids).destroy()))


def kill_in_init(moments: int, seed: int) -> None:
    """Kill a random rank (sometimes two) at a random moment of init; survivors are told, and nothing is left."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        forks.say("begins")
        host_c.set_timeout(0.8)
        comm = host_c.Comm(nranks, ids[0], rank)
        host_c.check(host_c.library().ncclCommAbort(comm.handle))

    before = forks.holds()
    choose = random.Random(seed)
    with Rounds() as rounds:
        for moment in range(moments):
            ranks = rounds.begin(3, rank_main)
            ranks.wait_for("begins", choose.randint(1, 3))
            time.sleep(choose.random() ** 2 * 0.002)
            for rank in choose.sample(range(3), choose.choice((1, 1, 2))):
                ranks.kill(rank)
            rounds.leave(ranks, 5, functools.partial(told, moment))
    after = forks.holds(before)
    assert all(after[what] <= before[what] for what in before) and children() == [], (before, after)


def told(moment: int, ends: list[forks.End]) -> None:
    """Killed, or finished, or a named error within the deadline."""
    named = {"remote": REMOTE_ERROR, "timeout": TIMEOUT, "id stale": INVALID_USAGE, "id reused": INVALID_USAGE}
    for end in ends:
        if end.late or (end.error and named.get(end.error.kind) != end.error.code) or end.signal not in (0, signal.SIGKILL):
            raise AssertionError(f"moment {moment}: {end}")
        if end.trace and "EOFError" not in end.trace and "without a word" not in end.trace:
            raise AssertionError(f"moment {moment}: {end}")


def children() -> list[str]:
    return Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()


@forks.nursery()
def test_kill_in_init() -> None:
    """kill -9 of ranks at 20 random moments of init: the others get an error that names why, within their deadline, and no process,
    descriptor, mapping or thread is left."""
    kill_in_init(20, 1)


@pytest.mark.slow
@pytest.mark.timeout(150)
@forks.nursery(deadline=140)
def test_kill_in_init_200() -> None:
    """The same at 200 moments."""
    kill_in_init(200, 2)


@forks.nursery()
def test_fork() -> None:
    """A forked child is told at once that the communicator is its parent's, whatever it calls; it can make its own; the parent's next call
    is right and the peers notice nothing, though the child closes, aborts or just ends."""

    def child_main(comm: host_c.Comm) -> None:
        one, begun = np.ones(1, np.float32), time.monotonic()
        for call, arguments in (
            (comm.all_reduce, (one, one)),
            (comm.send, (one, 1)),
            (comm.query, ("CommCount",)),
            (comm.finalize, ()),
            (comm.destroy, ()),
            (comm.abort, ()),
        ):
            error = raised(call, *arguments)
            assert (error.code, error.kind) == (INVALID_USAGE, "forked"), error
        assert time.monotonic() - begun < SOON and one[0] == 1
        assert forks.holds()["memfds"] == 0 and forks.holds()["mappings"] == 0
        own = host_c.Comm(1, host_c.unique_id(), 0)
        own.barrier()
        own.destroy()

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm = join(rank, nranks, ids)
        for _ in range(3):
            child = os.fork() if rank == 0 else None
            if child == 0:
                _, error, trace = forks.outcome(lambda: child_main(comm))
                os.write(2, f"{error or ''}{trace}".encode())
                os._exit(1 if error or trace else 0)
            if child:
                assert os.waitpid(child, 0)[1] == 0
            comm.barrier()
        big = np.ones(50_000, np.float32)
        comm.all_reduce(big, big)
        assert (big == nranks).all()
        comm.destroy()

    forks.values(forks.fork(2, rank_main))
