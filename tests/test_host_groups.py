"""Groups of the CPU library: all ranks in one thread, nesting, errors inside, mixed orders, several communicators."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import numpy as np
import pytest
from helpers import forks, host_c
from helpers.host_c import INVALID_ARGUMENT, INVALID_USAGE, raised
from helpers.ranks import run


def destroy_all(comms: list[host_c.Comm]) -> None:
    for comm in comms:
        comm.destroy()


@forks.nursery()
def test_all_ranks_in_one_thread() -> None:
    """ncclCommInitAll makes all ranks in one thread, device and rank as listed; collectives of all of them in one group are right,
    whatever the order of the calls, and so are several collectives in a row and messages between them."""
    for n in (1, 2, 5):
        comms = host_c.init_all(n, list(range(10, 10 + n)))
        assert [comm.query("CommUserRank") for comm in comms] == list(range(n))
        assert [comm.query("CommCuDevice") for comm in comms] == list(range(10, 10 + n))
        assert {comm.query("CommCount") for comm in comms} == {n}
        for count in (1, 1000, 50_000):
            sums = [np.full(count, rank + 1, np.int32) for rank in range(n)]
            maxima = [np.full(count, rank, np.float64) for rank in range(n)]
            tokens = [np.full(count, rank, np.int32) for rank in range(n)]
            arrived = [np.zeros(count, np.int32) for _ in range(n)]
            with host_c.group():
                for comm in comms[::-1]:
                    comm.all_reduce(sums[comm.rank], sums[comm.rank])
                for comm in comms:
                    comm.all_reduce(maxima[comm.rank], maxima[comm.rank], "max")
                    comm.send(tokens[comm.rank], (comm.rank + 1) % n)
                    comm.recv(arrived[comm.rank], (comm.rank - 1) % n)
            for rank in range(n):
                assert (sums[rank] == n * (n + 1) // 2).all() and (maxima[rank] == n - 1).all()
                assert (arrived[rank] == (rank - 1) % n).all()
        with host_c.group():
            for comm in comms:
                comm.finalize()
        destroy_all(comms)
    assert [comm.query("CommCuDevice") for comm in host_c.init_all(3)] == [0, 1, 2]


@forks.nursery()
def test_devices_are_labels() -> None:
    """Several ranks may name one device; negative devices and no ranks at all are refused."""
    comms = host_c.init_all(2, [3, 3])
    assert [comm.query("CommCuDevice") for comm in comms] == [3, 3]
    destroy_all(comms)
    assert raised(host_c.init_all, 2, [0, -1]).code == INVALID_ARGUMENT
    assert raised(host_c.init_all, 0).code == INVALID_ARGUMENT


def begin(nranks: int, id_: bytes, rank: int) -> host_c.COMM:
    """ncclCommInitRank in an open group: the handle is there, the communicator not yet."""
    handle = host_c.COMM()
    host_c.check(host_c.library().ncclCommInitRank(ctypes.byref(handle), nranks, host_c.UniqueId.from_buffer_copy(id_), rank))
    return handle


@forks.nursery()
def test_several_ranks_in_each_process() -> None:
    """Two processes, in each of which one thread drives two ranks of one communicator by groups: every path and memory, and messages
    between all four."""

    def rank_main(process: int, processes: int, ids: list[bytes]) -> None:
        ranks = (process, process + 2)
        with host_c.group():
            handles = [begin(4, ids[0], rank) for rank in ranks]
        comms = [host_c.Comm.of(handle.value, 4, rank) for handle, rank in zip(handles, ranks, strict=True)]
        for count, arena in itertools.product((1, 700, 20_000, 150_000), ((), (0,), (0, 1, 2, 3))):
            sends = [(host_c.empty if rank in arena else np.empty)(count, np.int32) for rank in ranks]
            for send, rank in zip(sends, ranks, strict=True):
                send[:] = rank + 1
            sums, all_of, left = ([np.zeros(n * count, np.int32) for _ in ranks] for n in (1, 4, 1))
            with host_c.group():
                for comm, send, total, every, got in zip(comms, sends, sums, all_of, left, strict=True):
                    comm.all_reduce(send, total)
                    comm.all_gather(send, every)
                    comm.send(send, (comm.rank + 1) % 4)
                    comm.recv(got, (comm.rank - 1) % 4)
            for comm, total, every, got in zip(comms, sums, all_of, left, strict=True):
                assert (total == 10).all() and (every == np.repeat([1, 2, 3, 4], count)).all()
                assert (got == (comm.rank - 1) % 4 + 1).all()
        destroy_all(comms)

    forks.values(forks.fork(2, rank_main))


@forks.nursery()
def test_init_in_a_group() -> None:
    """Communicators whose init stands in a group can be used after its end, not before; a failed group leaves NULL in their place."""
    id_ = host_c.unique_id()
    with host_c.group():
        handles = [begin(2, id_, rank) for rank in range(2)]
    comms = [host_c.Comm.of(handle.value, 2, rank) for rank, handle in enumerate(handles)]
    ones = [np.ones(1, np.int32) for _ in comms]
    with host_c.group():
        for comm, one in zip(comms, ones, strict=True):
            comm.all_reduce(one, one)
    assert [one[0] for one in ones] == [2, 2]
    destroy_all(comms)
    host_c.group_start()
    handle = begin(2, host_c.unique_id(), 0)
    early = raised(host_c.Comm.of(handle.value, 2, 0).all_reduce, ones[0], ones[0])
    assert early.code == INVALID_ARGUMENT and "ready" in early.text, early
    assert raised(host_c.group_end).code == INVALID_ARGUMENT
    assert handle.value is None


def nesting(rank: int, nranks: int, unique_id: Any) -> None:
    comm = host_c.Comm(nranks, bytes(unique_id), rank)
    number = np.ones(1, np.float32)
    for _ in range(3):
        host_c.group_start()
    comm.all_reduce(number, number)
    host_c.group_end()
    host_c.group_end()
    assert number[0] == 1
    host_c.group_end()
    assert number[0] == nranks
    error = raised(host_c.group_end)
    assert error.code == INVALID_USAGE and "ncclGroupStart" in error.text, error
    host_c.group_start()
    host_c.group_end()
    with host_c.group(), host_c.group():
        pass
    comm.barrier()
    comm.destroy()


def test_nesting() -> None:
    """Work starts at the outermost ncclGroupEnd; one without ncclGroupStart is refused, and empty groups succeed."""
    run(2, nesting, make_comm=False)


def error_inside(rank: int, nranks: int, unique_id: Any) -> None:
    comm = host_c.Comm(nranks, bytes(unique_id), rank)
    number, big = np.ones(1, np.float32), np.ones(60_000, np.float32)
    for levels in (1, 2):
        for _ in range(levels):
            host_c.group_start()
        comm.all_reduce(number, number)
        comm.all_reduce(big, big)
        comm.send(number, (rank + 1) % nranks)
        inside = raised(comm.broadcast, number, number, root=99)
        again = raised(comm.broadcast, number, number, root=98)
        comm.recv(number, (rank - 1) % nranks)
        assert inside.code == again.code == INVALID_ARGUMENT
        for _ in range(levels - 1):
            host_c.group_end()
        end = raised(host_c.group_end)
        assert end.code == INVALID_ARGUMENT and "99" in end.text, end
        assert (number == 1).all() and (big == 1).all()
        assert "ncclGroupStart" in raised(host_c.group_end).text
        comm.barrier()
    comm.destroy()


def test_error_inside() -> None:
    """A refused call makes its group fail: ncclGroupEnd returns the first such error and launches nothing, the depth is 0 afterwards and
    the communicator works."""
    run(2, error_inside, make_comm=False)


def mixed_orders(rank: int, nranks: int, unique_id: Any, rounds: int) -> None:
    a = host_c.Comm(nranks, bytes(unique_id), rank)
    name = np.frombuffer(host_c.unique_id(), np.uint8).copy()
    a.bcast(name, 0)
    b = host_c.Comm(nranks, name.tobytes(), rank)
    random = np.random.default_rng(rank)
    for turn in range(rounds):
        sizes = np.random.default_rng(turn).choice([1, 100, 5000, 40_000], 8)
        peers = [(comm, peer) for comm in (a, b) for peer in range(nranks) if peer != rank]
        outgoing = {(comm, peer): np.full(sizes[0], rank * 10 + peer, np.int32) for comm, peer in peers}
        incoming = {key: np.zeros(sizes[0], np.int32) for key in outgoing}
        sums = {(comm, k): np.full(sizes[k], rank + k, np.int64) for comm in (a, b) for k in range(1, 4)}
        mine = np.full(sizes[4], rank, np.float32)
        gathered = {comm: np.zeros(sizes[4] * nranks, np.float32) for comm in (a, b)}
        lanes = [[(comm.all_reduce, sums[comm, k], sums[comm, k]) for k in range(1, 4)] for comm in (a, b)]
        for comm, lane in zip((a, b), lanes, strict=True):
            lane.insert(int(sizes[5]) % 4, (comm.all_gather, mine, gathered[comm]))
        lanes += [[(comm.send, buffer, peer)] for (comm, peer), buffer in outgoing.items()]
        lanes += [[(comm.recv, buffer, peer)] for (comm, peer), buffer in incoming.items()]
        with host_c.group():  # each lane in its order, the lanes in this rank's own order
            while lanes:
                lane = lanes[random.integers(len(lanes))]
                call, *arguments = lane.pop(0)
                call(*arguments)
                lanes = [lane for lane in lanes if lane]
        for (_, peer), buffer in incoming.items():
            assert (buffer == peer * 10 + rank).all()
        for (_, k), total in sums.items():
            assert (total == sum(peer + k for peer in range(nranks))).all()
        for array in gathered.values():
            assert (array == np.repeat(np.arange(nranks), sizes[4])).all()
    a.barrier()
    b.barrier()
    a.destroy()
    b.destroy()


@pytest.mark.parametrize("kind", ["processes", "threads", "mixed"])
def test_mixed_orders(kind: str) -> None:
    """Collectives and messages of two communicators in one group may be called in another order on each rank, as long as the collectives
    of each communicator, and the messages of each pair, keep theirs."""
    run(3, mixed_orders, 20, kind=kind, make_comm=False, deadline=20)


def crossing(rank: int, nranks: int, unique_id: Any) -> None:
    first = host_c.Comm(nranks, bytes(unique_id), rank)
    name = np.frombuffer(host_c.unique_id(), np.uint8).copy()
    first.bcast(name, 0)
    second = host_c.Comm(nranks, name.tobytes(), rank)
    ones, twos = np.ones(5, np.float32), np.full(70_000, 2, np.float32)
    comms = [first, second] if rank else [second, first]
    with host_c.group():
        for comm in comms:
            buffer = ones if comm is first else twos
            comm.all_reduce(buffer, buffer)
    assert (ones == nranks).all() and (twos == 2 * nranks).all()
    first.destroy()
    second.destroy()


def test_crossing_order() -> None:
    """Two communicators in one group can be named in another order on each rank."""
    run(2, crossing, make_comm=False)


def mismatch_in_a_lane(rank: int, nranks: int, unique_id: Any) -> None:
    comm = host_c.Comm(nranks, bytes(unique_id), rank)
    fine, bad, after = np.ones(5, np.int32), np.ones(5, np.int32), np.ones(5, np.int32)
    message = np.full(5, rank, np.int32)
    host_c.group_start()
    comm.all_reduce(fine, fine)
    comm.all_reduce(bad, bad, "max" if rank else "sum")
    comm.all_reduce(after, after)
    comm.send(message, (rank + 1) % nranks)
    arrived = np.zeros(5, np.int32)
    comm.recv(arrived, (rank - 1) % nranks)
    error = raised(host_c.group_end)
    assert (error.code, error.kind) == (INVALID_USAGE, "mismatch"), error
    assert (fine == nranks).all() and (bad == 1).all() and (after == 1).all() and (arrived == (rank - 1) % nranks).all()
    comm.barrier()
    comm.destroy()


@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_mismatch_in_a_group(kind: str) -> None:
    """A mismatch in the middle of a group ends the collectives after it, on all ranks alike; those before it and the messages are done,
    and the communicator can be used again."""
    run(3, mismatch_in_a_lane, kind=kind, make_comm=False)
