"""What the ranks of a communicator are told when one of them fails: its own reason, in the same words on all, whoever sees it first."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from helpers import forks, host_c
from helpers.host_c import INVALID_USAGE, REMOTE_ERROR, SYSTEM_ERROR, raised
from helpers.host_more import ABORT, Comm, polled
from helpers.order import SOON, Flag, in_call


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
