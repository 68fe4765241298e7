"""What the ranks of the CPU library put into each other's windows: order, signals, refusals, peers that do not come."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
import os
import time
from ctypes import byref

import numpy as np
import pytest
from helpers import forks, host_c
from helpers.host_c import INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, SUCCESS, TIMEOUT, raised
from helpers.host_more import IN_PROGRESS, Comm, group_end, init_all
from helpers.host_structs import Config, library
from helpers.order import SOON, Flag


def many(signals: int, **fields: int) -> Config:
    """A configuration with so many signals."""
    return Config.new(numRmaSig=signals, **fields)


def ring(rank: int, nranks: int, ids: list[bytes], rounds: int = 50) -> None:
    """Each rank puts into the window of the next, waits for the one before, and answers with a signal that the place is free again."""
    comm = Comm(nranks, ids[0], rank, many(2))
    size = 5000
    memory, local = host_c.empty(2 * size, np.int64), np.empty(size, np.int64)
    window = comm.window(memory)
    assert window is not None
    after, before = (rank + 1) % nranks, (rank - 1) % nranks
    for round in range(rounds):
        local[:] = np.arange(size) * (rank + 1) + round
        comm.put(local, after, window, offset=8 * size * (round % 2), count=size - round)
        local[:] = -1
        comm.wait_signal((1, before, 0, 0))
        arrived = memory[size * (round % 2) :][: size - round]
        assert (arrived == np.arange(size - round) * (before + 1) + round).all(), round
        comm.signal(before, 1)
        comm.wait_signal((1, after, 1, 0))
    comm.on("CommWindowDeregister", window)
    comm.barrier()
    comm.destroy()


@pytest.mark.parametrize("kind", ["processes", "threads"])
@forks.nursery()
def test_ring(kind: str) -> None:
    """Whoever has waited for a signal finds what was put before it, in time and in order; between processes and between threads."""
    forks.values(forks.fork(3, ring) if kind == "processes" else forks.threads(3, ring))


@forks.nursery()
def test_put_arguments() -> None:
    """A put outside of the peer's window, from or into NULL, to a rank that there is not, of an unknown type, with a signal index or
    context above what there is, or with flags, is ncclInvalidArgument and writes nothing; so are the same of signal and wait."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm = Comm(nranks, ids[0], rank, many(2))
        memory, local = host_c.empty(4096, np.uint8), np.ones(200, np.uint8)
        memory[:] = 7
        window = comm.window(memory, 100 if rank else 60)  # of rank 0 and 1: different sizes
        room = 100 if rank == 0 else 60
        peer, lib = 1 - rank, library()
        put = {"count": 1, "type": 1, "peer": peer, "window": window, "offset": 0, "signal": 0, "context": 0, "flags": 0}
        wrong = [
            {"count": room + 1}, {"offset": room}, {"offset": room + 1}, {"offset": 2**64 - 1}, {"count": 2**61},
            {"count": room // 2, "type": 7}, {"count": 1, "offset": room - 1, "type": 2}, {"peer": 2}, {"peer": -1}, {"type": 12},
            {"type": -1}, {"signal": 2}, {"signal": -1}, {"context": 1}, {"context": -1}, {"flags": 1}, {"window": None},
            {"window": 12345}, {"local": None},
        ]  # fmt: skip
        for change in wrong:
            values = {"local": local.ctypes.data, **put, **change}
            assert lib.ncclPutSignal(*values.values(), comm.handle, None) == INVALID_ARGUMENT, change
        for peer_, signal, context, flags in ((2, 0, 0, 0), (-1, 0, 0, 0), (0, 2, 0, 0), (0, -1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)):
            assert lib.ncclSignal(peer_, signal, context, flags, comm.handle, None) == INVALID_ARGUMENT
            if not flags:
                assert raised(comm.wait_signal, (1, peer_, signal, context)).code == INVALID_ARGUMENT
        for count in (0, -1):
            assert raised(comm.wait_signal, (count, peer, 0, 0)).code == INVALID_ARGUMENT
        assert raised(comm.wait_signal).code == INVALID_ARGUMENT
        for number, array in ((1, None), (0, byref(ctypes.c_int())), (-1, byref(ctypes.c_int()))):
            assert lib.ncclWaitSignal(number, array, comm.handle, None) == INVALID_ARGUMENT
        comm.barrier()
        assert (memory == 7).all()
        comm.barrier()
        comm.put(local, peer, window, count=room)  # all of it fits
        comm.wait_signal((1, peer))
        assert (memory[: 160 - room] == 1).all() and (memory[160 - room :] == 7).all()

    forks.values(forks.fork(2, rank_main))


@forks.nursery()
def test_signals() -> None:
    """Signals are counted per sender and index: a wait takes as many as it says, from several senders in one call; some may come before
    it; a put of nothing only signals; a rank can put into its own window."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm = Comm(nranks, ids[0], rank, many(3))
        memory, local = host_c.empty(64, np.int32), np.full(64, rank, np.int32)
        memory[:] = -1
        window = comm.window(memory)
        if rank:
            for _ in range(5):
                comm.signal(0, 1)
            comm.put(local, 0, window, 16 * rank, 2, count=4)
            comm.put(None, 0, None, 0, 0, count=0)
            comm.barrier()
            comm.signal(0, 1)
            comm.barrier()
            return
        comm.wait_signal((2, 1, 1, 0), (5, 2, 1, 0), (1, 1, 2, 0), (1, 2, 2, 0), (3, 1, 1, 0), (1, 2, 0, 0), (1, 1, 0, 0))
        assert memory.tolist()[:12] == [-1] * 4 + [1] * 4 + [2] * 4 and (memory[12:] == -1).all()
        comm.barrier()
        comm.wait_signal((1, 1, 1), (1, 2, 1))
        comm.put(np.full(3, 9, np.int32), 0, window, 4, 2)
        comm.wait_signal((1, 0, 2))
        assert memory.tolist()[:5] == [-1, 9, 9, 9, 1]
        comm.barrier()
        comm.set_timeout(0.4)
        error = raised(comm.wait_signal, (1, 2, 2))  # that has been taken
        assert (error.code, error.kind, error.ranks) == (REMOTE_ERROR, "remote", (2,)) or error.code == TIMEOUT, error

    forks.values(forks.fork(3, rank_main))


@forks.nursery()
def test_signals_that_do_not_come() -> None:
    """A wait for a signal ends at the deadline with the rank that did not give it, and at once when that rank dies or closes; the signals
    that have come are not lost before that."""

    def rank_main(rank: int, nranks: int, ids: list[bytes], how: str, told: Flag) -> None:
        comm = Comm(nranks, ids[0], rank)
        comm.barrier()
        if rank == 1:
            comm.signal(0)
            time.sleep(0.1)
            if how == "dies":
                os._exit(0)
            if how == "closes":
                comm.destroy()
        if rank == 0:
            comm.set_timeout(0.3 if how == "absent" else 20)
            try:
                comm.wait_signal((2, 1))
            finally:
                told.set()
        told.wait()

    for how in ("absent", "dies", "closes"):
        end = forks.fork(3, rank_main, how, Flag())[0]
        code, kind = (TIMEOUT, "timeout") if how == "absent" else (REMOTE_ERROR, "remote")
        end.failed(code, kind, "ncclWaitSignal", "rank 1", ranks=[1])
        assert end.seconds < SOON


@forks.nursery()
def test_number_of_signals() -> None:
    """Without a configuration there is one signal index; a configuration of 2.31 or later sets their number, 0 is none; that of an older
    version has not meant it."""
    comm = Comm(1, host_c.unique_id(), 0)
    comm.signal(0, 0)
    assert raised(comm.signal, 0, 1).code == INVALID_ARGUMENT
    for number, version, top in ((4, 23203, 3), (1, 23102, 0), (16, 23203, 15), (0, 23203, -1), (4, 23007, 0)):
        comm = Comm(1, host_c.unique_id(), 0, Config.new(numRmaSig=number, version=version))
        for index in range(top + 1):
            comm.signal(0, index)
            comm.wait_signal((1, 0, index))
        assert raised(comm.signal, 0, top + 1).code == INVALID_ARGUMENT, (number, version)


@forks.nursery()
def test_groups() -> None:
    """Puts, signals and waits of a group start at its end, all together, in a blocking communicator and in a non-blocking one; an error
    inside it writes nothing."""

    def rank_main(rank: int, nranks: int, ids: list[bytes], blocking: int) -> None:
        comm = Comm(nranks, ids[0], rank, many(2, blocking=blocking))
        comm.wait()
        memory, peer, first = host_c.empty(8, np.float64), 1 - rank, ctypes.c_void_p(0)
        memory[:] = 0
        host_c.group_start()
        host_c.check(library().ncclCommWindowRegister(comm.handle, memory.ctypes.data, 64, byref(first), 0))
        assert not first.value
        assert group_end() == (SUCCESS if blocking else IN_PROGRESS)
        comm.wait()
        comm.barrier()
        for round in range(20):
            local = np.full(8, rank + round, np.float64)
            host_c.group_start()
            comm.wait_signal((2, peer), (1, peer, 1))
            comm.put(local, peer, first.value, 0, count=4)
            comm.put(local, peer, first.value, 32, count=4)
            comm.signal(peer, 1)
            local[:] = rank + round + 10  # what counts is what is there at the end of the group
            assert group_end() == (SUCCESS if blocking else IN_PROGRESS)
            comm.wait()
            assert (memory == peer + round + 10).all(), (round, memory)
            comm.barrier()
        host_c.group_start()
        comm.put(np.zeros(8), peer, first.value)
        assert raised(comm.put, np.zeros(9), peer, first.value).code == INVALID_ARGUMENT
        assert raised(group_end).code == INVALID_ARGUMENT
        comm.barrier()
        assert (memory == peer + 29).all()
        comm.destroy()

    for blocking in (1, 0):
        forks.values(forks.fork(2, rank_main, blocking))


@forks.nursery()
def test_one_thread_with_all_ranks() -> None:
    """One thread registers a window on all of its ranks in a group, puts from each to each, and waits."""
    comms = init_all(3)
    memory = [host_c.empty(12, np.int32) for _ in comms]
    slots = [ctypes.c_void_p(1) for _ in comms]
    with host_c.group():
        for comm, array, slot in zip(comms, memory, slots, strict=True):
            host_c.check(library().ncclCommWindowRegister(comm.handle, array.ctypes.data, array.nbytes, byref(slot), 0))
    for comm, slot in zip(comms, slots, strict=True):
        for peer in range(3):
            comm.put(np.full(4, comm.rank + 10 * peer, np.int32), peer, slot.value, 16 * comm.rank)
    for comm in comms:
        comm.wait_signal(*((1, peer) for peer in range(3)))
    assert [array.tolist() for array in memory] == [[10 * peer + rank for rank in range(3) for _ in range(4)] for peer in range(3)]
    for comm in comms:
        comm.destroy()


@forks.nursery()
def test_states_that_refuse() -> None:
    """One-sided calls on a NULL or closed communicator are ncclInvalidArgument, on a revoked one ncclInvalidUsage, on a failed one its
    error."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        lib, comm = library(), Comm(nranks, ids[0], rank)
        memory = host_c.empty(8, np.float64)
        window = comm.window(memory)
        calls = (lambda: comm.put(memory, 0, window), lambda: comm.signal(0), lambda: comm.wait_signal((1, 0)), lambda: comm.window(memory))
        comm.barrier()
        if rank == 0:
            comm.revoke()
            assert all(raised(call).code == INVALID_USAGE for call in calls)
            time.sleep(0.2)
        else:
            comm.set_timeout(3)
            assert raised(comm.barrier).code == REMOTE_ERROR
            assert all(raised(call).code == REMOTE_ERROR for call in calls)
        comm.destroy()
        assert all(raised(call).code == INVALID_ARGUMENT for call in calls)
        assert lib.ncclSignal(0, 0, 0, 0, None, None) == INVALID_ARGUMENT

    forks.values(forks.fork(2, rank_main))
