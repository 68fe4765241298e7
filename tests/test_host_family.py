"""Communicators of the CPU library that are made from communicators: split, grow, and init from several ids."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import functools
import random
import threading
import time

import numpy as np
import pytest
from helpers import forks, host_c
from helpers.host_c import INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, TIMEOUT, raised
from helpers.host_more import NO_COLOR, Comm, both_ways, init_all
from helpers.host_structs import library
from helpers.order import SOON, Flag, waits
from helpers.rounds import Rounds


def members(comm: Comm, name: int) -> list[int]:
    """What the ranks of a communicator are called, in their order."""
    everybody = np.full(comm.nranks, -1, np.int32)
    comm.all_gather(np.array([name], np.int32), everybody)
    return [int(one) for one in everybody]


@forks.nursery()
def test_split() -> None:
    """Ranks of one color get one communicator, in the order of their keys, equal keys in the parent's order; no color gets NULL, and the
    parent goes on."""
    layouts = {
        "keys": ([0, 0, 1, NO_COLOR, 1], [5, 3, 0, 0, -2], {0: [1, 0], 1: [4, 2]}),
        "equal keys": ([7, 7, 2, 2, 7], [4, 4, 4, 4, 4], {7: [0, 1, 4], 2: [2, 3]}),
        "reversed keys": ([0] * 5, [5, 4, 3, 2, 1], {0: [4, 3, 2, 1, 0]}),
        "far keys": ([2**31 - 1] * 5, [2**31 - 1, -(2**31), 0, 2**31 - 1, -(2**31)], {2**31 - 1: [1, 4, 2, 0, 3]}),
        "alone": ([4, 3, 2, 1, 0], [0] * 5, {color: [4 - color] for color in range(5)}),
        "nobody": ([NO_COLOR] * 5, [0] * 5, {}),
    }

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm = Comm(nranks, ids[0], rank)
        for name, (colors, keys, expected) in layouts.items():
            child = comm.split(colors[rank], keys[rank])
            if colors[rank] == NO_COLOR:
                assert child.handle is None, name
            else:
                order = expected[colors[rank]]
                child.learn()
                assert (child.nranks, child.rank) == (len(order), order.index(rank)), name
                assert members(child, rank) == order, name
                child.barrier()
                child.destroy()
            comm.barrier()
        comm.destroy()

    forks.values(forks.fork(5, rank_main))


@forks.nursery()
def test_split_arguments() -> None:
    """A negative color other than no color and a NULL place for the handle are ncclInvalidArgument, alone and in a group; they leave no
    trace."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm = Comm(nranks, ids[0], rank)
        for color in (-2, -(2**31)):
            error = both_ways(lambda color=color: comm.split(color))
            assert error.code == INVALID_ARGUMENT and str(color) in error.text and "color" in error.text, error
        assert library().ncclCommSplit(comm.handle, 0, 0, None, None) == INVALID_ARGUMENT
        assert raised(Comm.of(None, 2, 0).split, 0).code == INVALID_ARGUMENT
        child = comm.split(0).learn()
        child.barrier()
        comm.barrier()
        child.destroy()
        comm.destroy()

    forks.values(forks.fork(2, rank_main))


@forks.nursery()
def test_split_and_the_order_of_ends() -> None:
    """Children work after their parent was closed and parents after their children, a split can be split again, and nothing is left."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm = Comm(nranks, ids[0], rank)
        before = forks.holds()
        for _ in range(20):
            half = comm.split(rank % 2, -rank).learn()
            pair = half.split(0, half.rank).learn()
            assert members(pair, rank) == ([2, 0] if rank % 2 == 0 else [3, 1])
            half.destroy()
            pair.barrier()
            comm.barrier()
            pair.destroy()
        assert forks.holds(before) == before
        child = comm.split(0).learn()
        comm.destroy()
        grandchild = child.split(0).learn()
        child.barrier()
        child.destroy()
        grandchild.barrier()
        grandchild.destroy()
        assert forks.holds()["memfds"] == forks.holds()["mappings"] == 0

    forks.values(forks.fork(4, rank_main))


@forks.nursery()
def test_split_that_one_rank_does_not_call() -> None:
    """At the deadline those who split are told which rank did not; a rank that makes another call instead is in the table of a mismatch,
    and the communicator can be used again."""

    def rank_main(rank: int, nranks: int, ids: list[bytes], how: str, told: Flag) -> host_c.HostError | None:
        comm, one = Comm(nranks, ids[0], rank), np.ones(1, np.float32)
        comm.barrier()
        if how == "other":
            error = raised(comm.all_reduce, one, one) if rank == 2 else raised(comm.split, 0)
            assert (error.code, error.kind, error.ranks) == (INVALID_USAGE, "mismatch", (2,)), error
            assert "ncclCommSplit" in error.text and "ncclAllReduce" in error.text, error
            child = comm.split(0).learn()
            child.barrier()
            return None
        if rank == 2:
            return told.wait(2)
        if rank == 0:
            waits(1)  # or it could be the one that is missing
        comm.set_timeout(0.4 if rank == 0 else 20)
        error = raised(comm.split, 0)
        told.set(rank)
        return error

    forks.values(forks.fork(3, rank_main, "other", Flag()))
    first, second, _ = (end.returned() for end in forks.fork(3, rank_main, "absent", Flag()))
    assert {first.code, second.code} == {TIMEOUT}, (first, second)
    assert any(error.ranks == (2,) and "ncclCommSplit" in error.text and "rank 2" in error.text for error in (first, second))


@forks.nursery()
def test_split_of_a_revoked_communicator() -> None:
    """A communicator that all ranks have revoked cannot do collectives any more, but it can be split, and split again."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm, one = Comm(nranks, ids[0], rank), np.ones(1, np.float32)
        comm.barrier()
        comm.revoke()
        assert raised(comm.all_reduce, one, one).code == INVALID_USAGE
        for _ in range(3):
            child = comm.split(rank % 2, -rank)
            child.learn()
            assert members(child, rank) == [one for one in reversed(range(nranks)) if one % 2 == rank % 2]
            child.destroy()
        assert comm.split(NO_COLOR).handle is None
        comm.destroy()

    forks.values(forks.fork(4, rank_main))


@forks.nursery()
def test_split_by_threads() -> None:
    """Ranks that are threads split as processes do, and one thread can split all its ranks in one group."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm = Comm(nranks, ids[0], rank)
        for round in range(10):
            child = comm.split((rank + round) % 2, -rank).learn()
            assert members(child, rank) == [one for one in reversed(range(nranks)) if (one - rank) % 2 == 0]
            child.destroy()
        comm.destroy()

    forks.values(forks.threads(4, rank_main))
    comms = init_all(4)
    with host_c.group():
        children = [comm.split(comm.rank // 2 if comm.rank < 3 else NO_COLOR) for comm in comms]
    assert children[3].handle is None
    values = [np.full(1, rank + 1, np.int32) for rank in range(3)]
    with host_c.group():
        for child, value in zip(children, values, strict=False):
            child.all_reduce(value, value)
    assert [value[0] for value in values] == [3, 3, 3]
    for comm in (*children[:3], *comms):
        comm.destroy()


@forks.nursery()
def test_splits_of_two_communicators_in_one_group() -> None:
    """A group may split several communicators, and one communicator twice; all of it is there at the group's end."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        first, second = (Comm(nranks, one, rank) for one in ids)
        with host_c.group():
            made = [first.split(0, -rank), second.split(rank), first.split(0, rank)]
            assert all(one.handle is None for one in made)
        for one, size in zip(made, (3, 1, 3), strict=True):
            assert one.learn().nranks == size
            one.barrier()
        assert members(made[0], rank) == [2, 1, 0] and members(made[2], rank) == [0, 1, 2]

    forks.values(forks.fork(3, rank_main, ids=2))


def splits(rank: int, nranks: int, ids: list[bytes]) -> None:
    """Split, use and close for ever."""
    host_c.set_timeout(8)
    comm = Comm(nranks, ids[0], rank)
    comm.barrier()
    forks.say("works")
    while True:
        child = comm.split(0).learn()
        child.barrier()
        child.destroy()


def kill_in_splits(rounds: int, seed: int) -> None:
    """Kill a rank at some moment of its splits, many times."""
    choose = random.Random(seed)

    def judge(victim: int, killed: float, ends: list[forks.End]) -> None:
        for end in ends:
            if end.rank != victim:
                end.failed(REMOTE_ERROR, "remote")
                assert end.seconds - killed < SOON, end

    with Rounds() as ending:
        for _ in range(rounds):
            ranks = ending.begin(3, splits)
            ranks.wait_for("works", 3)
            time.sleep(choose.random() * 0.01)
            killed = time.monotonic() - ranks.begun
            victim = choose.randrange(3)
            ranks.kill(victim)
            ending.leave(ranks, 6, functools.partial(judge, victim, killed))


@forks.nursery(deadline=40)
def test_peer_is_killed_in_a_split() -> None:
    """A rank that is killed at any instant of a split is noticed by the others, as in any call."""
    kill_in_splits(12, 2)


@pytest.mark.slow
@pytest.mark.timeout(130)
@forks.nursery(deadline=120)
def test_peer_is_killed_in_a_split_200() -> None:
    """The same 200 times."""
    kill_in_splits(200, 3)


@forks.nursery()
def test_abort_in_a_split() -> None:
    """ncclCommAbort of the parent from another thread ends a split that waits for a rank which is stopped, whatever part it is in."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        host_c.set_timeout(6)
        comm, ends = Comm(nranks, ids[0], rank), []
        comm.barrier()
        forks.say("works")

        def endless() -> None:
            while True:
                comm.split(0).learn().destroy()

        if rank == 1:
            endless()
        worker = threading.Thread(target=lambda: ends.append(raised(endless)), daemon=True)
        worker.start()
        time.sleep(0.15)
        begun = time.monotonic()
        comm.abort()
        assert time.monotonic() - begun < SOON
        worker.join(2)
        assert ends[0].code in (INVALID_USAGE, INVALID_ARGUMENT) and ends[0].kind in ("aborted", "closed"), ends

    for pause in (0.0, 0.003, 0.006):
        with forks.Forked(2, rank_main) as ranks:
            ranks.wait_for("works", 2)
            time.sleep(0.05 + pause)
            ranks.stop(1)
            while 0 in ranks.open:
                ranks.listen(8)
            ranks.result[0].returned()
