"""Communicators of the CPU library without some of their ranks: after a death, by order, while another thread waits."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
import threading
import time

import numpy as np
import pytest
from helpers import forks, host_c
from helpers.host_c import INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, TIMEOUT, raised
from helpers.host_more import ABORT, Comm, both_ways
from helpers.host_structs import library
from helpers.order import SOON, Flag, in_call, waits


def numbers(comm: Comm, name: int) -> list[int]:
    """What the ranks of a communicator are called, in their order."""
    everybody = np.full(comm.nranks, -1, np.int32)
    comm.all_gather(np.array([name], np.int32), everybody)
    return [int(one) for one in everybody]


@pytest.mark.parametrize("flags", [0, ABORT])
@forks.nursery()
def test_shrink_after_a_death(flags: int) -> None:
    """Survivors of killed ranks make a communicator of those that are left, with either flag: numbered without gaps in the old order. It
    works, it can be shrunk again, and the old one can be closed."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        host_c.set_timeout(5)
        comm, buffer = Comm(nranks, ids[0], rank), np.ones(50_000, np.float32)
        comm.barrier()
        if rank in (1, 3):
            forks.say("dies")
            time.sleep(9)
        error = raised(comm.all_reduce, buffer, buffer)
        assert error.code == REMOTE_ERROR and error.ranks[0] in (1, 3), error
        child = comm.shrink([3, 1], flags).learn()
        assert (child.nranks, child.rank) == (3, [0, 2, 4].index(rank)) and numbers(child, rank) == [0, 2, 4]
        comm.abort() if rank == 2 else comm.destroy()
        if rank == 2:
            return
        time.sleep(0.05)
        pair = child.shrink([1], flags).learn()
        assert numbers(pair, rank) == [0, 4]

    with forks.Forked(5, rank_main) as ranks:
        ranks.wait_for("dies", 2)
        for rank in (1, 3):
            ranks.kill(rank)
        for end in ranks.ends():
            if end.rank not in (1, 3):
                end.returned()


@forks.nursery()
def test_shrink_of_a_working_communicator() -> None:
    """Without a death shrink leaves the parent as it was: it does collectives, other ranks can be left out next time, down to one."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        host_c.set_timeout(3)
        comm = Comm(nranks, ids[0], rank)
        for excluded in ([3], [2], [0], [1, 2, 3], [0, 3], [2, 3], [1, 2, 3]):
            left = [one for one in range(nranks) if one not in excluded]
            if rank in left:
                child = comm.shrink(excluded).learn()
                assert numbers(child, rank) == left
                child.barrier()
                child.destroy()
            comm.barrier()
        comm.destroy()

    forks.values(forks.fork(4, rank_main))


@forks.nursery()
def test_shrink_with_different_ranks_each_time() -> None:
    """The same without a barrier in between: every shrink finds the ranks that take part in it, whatever the others do."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        host_c.set_timeout(3)
        comm = Comm(nranks, ids[0], rank)
        for excluded in ([2], [1], [0], [1], [2], [0], [0]):
            if rank not in excluded:
                child = comm.shrink(excluded).learn()
                assert numbers(child, rank) == [one for one in range(nranks) if one not in excluded]
                child.destroy()
        comm.barrier()
        comm.destroy()

    forks.values(forks.fork(3, rank_main))


@forks.nursery()
def test_shrink_sorts_the_list() -> None:
    """The caller's list of ranks is sorted in place, as NCCL does, and may name a rank twice."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm = Comm(nranks, ids[0], rank)
        if rank in (0, 4):
            excluded = (ctypes.c_int * 4)(3, 1, 2, 1)
            child = comm.shrink(excluded).learn()
            assert list(excluded) == [1, 1, 2, 3] and numbers(child, rank) == [0, 4]
        comm.barrier()

    forks.values(forks.fork(5, rank_main))


@forks.nursery()
def test_shrink_arguments() -> None:
    """No list, an empty one, one with the caller's own rank or a rank that there is not, unknown flags, and a NULL place for the handle
    are ncclInvalidArgument at once; the list is left as it was, and the communicator works afterwards."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm = Comm(nranks, ids[0], rank)
        other = 1 - rank
        wrong = (([], 0), ([rank], 0), ([other, rank], 0), ([2], 0), ([-1], 0), ([other], 2), ([other], -1), ([rank], ABORT))
        for excluded, flags in wrong:
            error = both_ways(lambda excluded=excluded, flags=flags: comm.shrink(excluded, flags))
            assert error.code == INVALID_ARGUMENT and "ncclCommShrink" in error.text, error
        place = host_c.COMM()
        shrink = library().ncclCommShrink
        one = (ctypes.c_int * 2)(other, rank)
        assert shrink(comm.handle, None, 1, ctypes.byref(place), None, 0) == INVALID_ARGUMENT
        assert shrink(comm.handle, one, -1, ctypes.byref(place), None, 0) == INVALID_ARGUMENT
        assert shrink(comm.handle, one, 1, None, None, 0) == INVALID_ARGUMENT
        assert shrink(None, one, 1, ctypes.byref(place), None, 0) == INVALID_ARGUMENT
        assert list(one) == [other, rank]
        comm.barrier()
        comm.destroy()

    forks.values(forks.fork(2, rank_main))


@forks.nursery()
def test_shrink_ends_what_another_thread_waits_in() -> None:
    """The abort flag ends the call in which another thread waits for a stopped rank; then the survivors go on without it."""
    ready = Flag()

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        host_c.set_timeout(8)
        comm, buffer, ends = Comm(nranks, ids[0], rank), np.ones(50_000, np.float32), []
        comm.barrier()
        if rank == 2:
            forks.say("ready")
            time.sleep(9)
        worker = threading.Thread(target=lambda: ends.append(raised(comm.all_reduce, buffer, buffer)), daemon=True)
        worker.start()
        forks.say("ready")
        in_call()
        ready.set(rank)
        ready.wait(3)  # for the others' calls, too, which shrink ends as well, and for rank 2 to be stopped
        begun = time.monotonic()
        child = comm.shrink([2], ABORT).learn()
        assert time.monotonic() - begun < SOON
        worker.join(5)
        assert ends[0].code in (INVALID_USAGE, REMOTE_ERROR) and ends[0].kind in ("aborted", "remote"), ends
        assert numbers(child, rank) == [0, 1]
        assert raised(comm.all_reduce, buffer, buffer).code == ends[0].code
        comm.abort()
        child.barrier()

    with forks.Forked(3, rank_main) as ranks:
        ranks.wait_for("ready", 3)
        ranks.stop(2)
        ready.set(2)
        while ranks.open != {2}:
            ranks.listen(8)
        for end in ranks.result[:2]:
            end.returned()


@forks.nursery()
def test_shrink_that_one_survivor_does_not_call() -> None:
    """At its deadline shrink names the survivor that did not come; one that dies meanwhile is named at once."""

    def rank_main(rank: int, nranks: int, ids: list[bytes], dies: bool, told: Flag) -> None:
        comm = Comm(nranks, ids[0], rank)
        comm.barrier()
        if rank == 1 and dies:
            return time.sleep(0.1)
        if rank > 0:
            return told.wait()
        comm.set_timeout(20 if dies else 0.4)
        try:
            comm.shrink([2])
        finally:
            told.set()

    ranks = forks.fork(3, rank_main, False, Flag())
    ranks[0].failed(TIMEOUT, "timeout", "ncclCommShrink", "rank 1", ranks=[1])
    ranks = forks.fork(3, rank_main, True, Flag())
    ranks[0].failed(REMOTE_ERROR, "remote", "ncclCommShrink", "rank 1", ranks=[1])
    assert ranks[0].seconds < SOON


@forks.nursery()
def test_shrink_again_after_a_deadline() -> None:
    """A survivor whose shrink ended at its deadline can try again, and finds the one that was late, which tries for the first time."""
    tried, shrunk = Flag(), Flag()

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm = Comm(nranks, ids[0], rank)
        comm.barrier()
        if rank == 2:
            return shrunk.wait(2)
        for _ in range(2 if rank == 0 else 0):
            comm.set_timeout(0.2)
            assert raised(comm.shrink, [2]).code == TIMEOUT
        if rank == 0:
            tried.set()
        tried.wait()
        comm.set_timeout(20)
        child = comm.shrink([2]).learn()
        assert numbers(child, rank) == [0, 1]
        shrunk.set(rank)

    forks.values(forks.fork(3, rank_main))


@forks.nursery()
def test_shrink_of_a_revoked_communicator() -> None:
    """A communicator that its ranks have revoked can be shrunk, with either flag, and what comes of it works."""

    def rank_main(rank: int, nranks: int, ids: list[bytes], flags: int) -> None:
        comm, one = Comm(nranks, ids[0], rank), np.ones(1, np.float32)
        comm.barrier()
        comm.revoke()
        if rank == 1:
            return time.sleep(0.4)
        child = comm.shrink([1], flags).learn()
        assert numbers(child, rank) == [0, 2]
        assert raised(comm.all_reduce, one, one).code == INVALID_USAGE
        comm.destroy()
        child.barrier()

    for flags in (0, ABORT):
        forks.values(forks.fork(3, rank_main, flags))


@forks.nursery()
def test_shrink_with_different_lists() -> None:
    """Survivors that leave out different ranks get an error, each by its deadline at the latest, and no communicator."""
    told = Flag()

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm = Comm(nranks, ids[0], rank)
        comm.barrier()
        comm.set_timeout(0.3)
        error = raised(comm.shrink, [[3], [2], [3], [2]][rank])
        assert error.code in (INVALID_USAGE, TIMEOUT, INVALID_ARGUMENT), error
        told.set(rank)
        told.wait(nranks)  # its end is not to be what the others hear of

    for end in forks.fork(4, rank_main):
        end.returned()
        assert end.seconds < 0.3 + SOON


@pytest.mark.parametrize("before", [False, True], ids=["", "after a shrink that was given up"])
@forks.nursery()
def test_reasons_after_a_shrink_that_was_given_up(before: bool) -> None:
    """A shrink that reached its deadline named ranks, and leaves nothing of that: a deadlock is found, a later deadline names its own."""

    def rank_main(rank: int, nranks: int, ids: list[bytes], how: str, told: Flag) -> host_c.HostError | None:
        host_c.set_timeout(8)
        comm, one = Comm(nranks, ids[0], rank), np.ones(1, np.float32)
        comm.barrier()
        if before and rank == 0:
            comm.set_timeout(0.3)
            error = raised(comm.shrink, [3])
            assert error.kind == "timeout" and error.ranks == (1, 2), error
            comm.set_timeout(8)
        comm.barrier()
        try:
            if rank == 3:
                told.wait(3)
                return None
            if how == "deadline" and rank == 0:
                waits(1)
                waits(2)
                comm.set_timeout(0.3)
            if how == "deadline":
                return raised(comm.barrier)
            return raised(comm.recv, one, (rank + 1) % 3)
        finally:
            told.set(rank)

    for how, kind in (("deadlock", "deadlock"), ("deadline", "timeout")):
        for error in forks.values(forks.fork(4, rank_main, how, Flag()))[:3]:
            assert error.kind == kind, error
            assert how == "deadlock" or error.ranks == (3,), error
