"""Communicators of the CPU library that get more ranks, and init from several unique ids."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
import time
from ctypes import byref

import numpy as np
from helpers import forks, host_c
from helpers.host_c import COMM, INVALID_ARGUMENT, INVALID_USAGE, TIMEOUT, UniqueId, raised
from helpers.host_more import Comm, both_ways, grow
from helpers.host_structs import library
from helpers.order import SOON, waits


def numbers(comm: Comm) -> list[int]:
    """What the ranks of a communicator think their numbers are, in order."""
    everybody = np.full(comm.nranks, -1, np.int32)
    comm.all_gather(np.array([comm.rank], np.int32), everybody)
    return [int(one) for one in everybody]


@forks.nursery()
def test_grow() -> None:
    """Two ranks grow to five: members keep their numbers and pass -1, one of them the id; new ranks pass no communicator and the id. The
    parent works until it is closed, and the grown one can grow again."""

    def rank_main(rank: int, nranks: int, ids: list[bytes], giver: int) -> None:
        bigger = bytearray(256)
        comm = Comm(3, ids[0], rank) if rank < 3 else None
        if rank == giver:
            bigger[:] = comm.unique_id() + comm.unique_id()
        helper = Comm(nranks, ids[1], rank)  # as a store would, it takes the ids to all
        arrived = np.frombuffer(bigger, np.uint8)
        helper.bcast(arrived, giver)
        first, second = bytes(bigger[:128]), bytes(bigger[128:])
        grown = None
        if rank < 4:
            grown = (comm.grow(4, first if rank == giver else None) if comm else grow(None, 4, first, rank)).learn()
            assert (grown.nranks, grown.rank) == (4, rank) and numbers(grown) == [0, 1, 2, 3]
        again = (grown.grow(5, second if rank == giver else None) if grown else grow(None, 5, second, rank)).learn()
        assert numbers(again) == [0, 1, 2, 3, 4]
        for one in (comm, grown, again, helper):
            if one:
                one.barrier()
                one.destroy()

    for giver in (0, 2):
        forks.values(forks.fork(5, rank_main, giver, ids=2))


@forks.nursery()
def test_grow_arguments() -> None:
    """A number of ranks that is not above the parent's, a member with a rank, a new rank without an id or with a number outside, and a
    NULL place for the handle are ncclInvalidArgument at once; the communicator works afterwards."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm = Comm(nranks, ids[0], rank)
        one = comm.unique_id()
        wrong = ((2, one, -1, "above"), (1, one, -1, "above"), (0, None, -1, "above"), (3, one, 0, "-1"), (3, one, 2, "-1"))
        for size, id, number, word in wrong:
            error = both_ways(lambda size=size, id=id, number=number: comm.grow(size, id, number))
            assert error.code == INVALID_ARGUMENT and word in error.text, error
        for size, id, number in ((3, None, 2), (3, one, 3), (3, one, -1), (0, one, 0)):
            error = both_ways(lambda size=size, id=id, number=number: grow(None, size, id, number))
            assert error.code == INVALID_ARGUMENT and "ncclCommGrow" in error.text, error
        assert library().ncclCommGrow(comm.handle, 3, None, -1, None, None) == INVALID_ARGUMENT
        assert library().ncclCommGetUniqueId(comm.handle, None) == INVALID_ARGUMENT
        assert library().ncclCommGetUniqueId(None, byref(UniqueId())) == INVALID_ARGUMENT
        error = raised(comm.grow, 3)  # no member brings an id: all of them hear it
        assert error.code == INVALID_ARGUMENT and "ncclCommGetUniqueId" in error.text, error
        comm.barrier()
        comm.destroy()

    forks.values(forks.fork(2, rank_main))


@forks.nursery()
def test_grow_without_the_new_rank() -> None:
    """Members whose new rank does not come are told at the deadline which number is missing, and keep their communicator."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> tuple[float, float]:
        comm = Comm(nranks, ids[0], rank)
        one = comm.unique_id() if rank == 0 else None
        comm.barrier()
        if rank == 0:
            waits(1)  # or this one could give up before it has come
        comm.set_timeout(1.0 if rank == 0 else 20)
        begun = time.monotonic()
        error = raised(comm.grow, 3, one)
        told = time.monotonic()
        assert error.code == TIMEOUT and error.kind == "timeout", error
        if error.ranks == (2,):
            assert "rank 2" in error.text, error
        comm.set_timeout(5)
        comm.barrier()
        comm.destroy()
        return begun, told

    (begun, first), (_, second) = forks.values(forks.fork(2, rank_main))
    assert max(first, second) - begun < 1.0 + SOON


@forks.nursery()
def test_grow_against_another_size() -> None:
    """Members that grow to different sizes, and a new rank with a number that a member has, are told so; nobody waits for the deadline, and
    who comes after the others have given up hears that the id has been used."""

    def rank_main(rank: int, nranks: int, ids: list[bytes], how: str) -> str:
        host_c.set_timeout(20)
        comm, one = (Comm(2, ids[0], rank) if rank < 2 else None), bytearray(128)
        helper = Comm(nranks, ids[1], rank)
        if rank == 0:
            one[:] = comm.unique_id()
        helper.bcast(np.frombuffer(one, np.uint8))
        begun, size, number = time.monotonic(), 3 + rank if how == "world size" else 3, 2 if how == "world size" else 1
        error = raised(comm.grow, size, bytes(one)) if comm else raised(grow, None, 3, bytes(one), number)
        assert error.code == INVALID_USAGE and time.monotonic() - begun < SOON, error
        if comm:
            comm.barrier()
        helper.barrier()  # the maker of the id lives until all have used it
        return error.kind

    for how in ("world size", "duplicate rank"):
        kinds = forks.values(forks.fork(3, rank_main, how, ids=2))
        assert how in kinds and set(kinds) <= {how, "id reused"}, kinds


def scalable(nranks: int, rank: int, ids: list[bytes], count: int | None = None) -> Comm:
    """ncclCommInitRankScalable."""
    slot = COMM()
    array = (UniqueId * max(1, len(ids)))(*map(UniqueId.from_buffer_copy, ids))
    number = len(ids) if count is None else count
    code = library().ncclCommInitRankScalable(byref(slot), nranks, rank, number, ctypes.addressof(array) if ids else None, None)
    return Comm.born(slot, code, nranks, rank)


@forks.nursery()
def test_init_from_several_ids() -> None:
    """ncclCommInitRankScalable makes one communicator of any number of ids from 1 to the number of ranks; other numbers and NULL are
    ncclInvalidArgument, and the ids that were not needed leave nothing."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        for count in (1, 2, 3):
            comm = scalable(nranks, rank, [ids.pop() for _ in range(count)])
            comm.barrier()
            comm.destroy()
        for given, count in ((ids[:1], 0), (ids[:1], -1), (ids[:4], 4), ([], 1)):
            assert raised(scalable, nranks, rank, given, count).code == INVALID_ARGUMENT
        assert forks.holds()["memfds"] == (len(ids) if rank == 0 else 0), forks.holds()

    forks.values(forks.fork(3, rank_main, ids=10))
