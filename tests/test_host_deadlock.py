"""Ranks of the CPU library that wait for each other: rings are named, and what is only slow is never taken for one."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import forks, host_c
from helpers.host_c import INVALID_USAGE, REMOTE_ERROR, TIMEOUT, raised
from helpers.host_more import Comm
from helpers.order import SOON, Flag, waits


def in_ring(ends: list[forks.End], *words: str) -> None:
    """Every rank was told of a deadlock, soon, with these words."""
    for end in ends:
        end.failed(INVALID_USAGE, "deadlock", *words)
        assert end.seconds < SOON, end


@pytest.mark.parametrize("nranks", [2, 3, 5])
@forks.nursery()
def test_send_ring(nranks: int) -> None:
    """Ranks that all send to the next one before they receive are a deadlock, of small messages too; each is told the whole ring."""

    def rank_main(rank: int, nranks: int, ids: list[bytes], size: int) -> None:
        host_c.set_timeout(8)
        comm, out, back = Comm(nranks, ids[0], rank), np.ones(size, np.uint8), np.zeros(size, np.uint8)
        comm.barrier()
        comm.send(out, (rank + 1) % nranks)
        comm.recv(back, (rank - 1) % nranks)

    names = [f"rank {rank} in ncclSend for rank {(rank + 1) % nranks}" for rank in range(nranks)]
    for size in (1, 4 << 20):
        in_ring(forks.fork(nranks, rank_main, size), *names)
        in_ring(forks.threads(nranks, rank_main, size), *names)


@forks.nursery()
def test_send_ring_in_groups() -> None:
    """The same in groups is no deadlock: 16 ranks as threads, 50 rounds; nor is it if one of them receives first."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        host_c.set_timeout(8)
        comm, out, back = Comm(nranks, ids[0], rank), np.full(5000, rank, np.int32), np.zeros(5000, np.int32)
        for _ in range(50):
            with host_c.group():
                comm.send(out, (rank + 1) % nranks)
                comm.recv(back, (rank - 1) % nranks)
            assert (back == (rank - 1) % nranks).all()
        for call in ("recv", "send") if rank == 0 else ("send", "recv"):
            comm.recv(back, (rank - 1) % nranks) if call == "recv" else comm.send(out, (rank + 1) % nranks)

    for end in forks.threads(16, rank_main):
        end.returned()


def wait_for_each_other(calls: list[Callable[[Comm, np.ndarray], Any]], prepare: bool = True) -> list[forks.End]:
    """How ranks end that make these calls."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        host_c.set_timeout(8)
        comm, buffer = Comm(nranks, ids[0], rank), np.ones(3, np.float32)
        if prepare:
            comm.barrier()
        calls[rank](comm, buffer)

    return forks.fork(len(calls), rank_main)


@forks.nursery()
def test_different_calls() -> None:
    """A rank in a collective against one that receives from it, two that receive from each other, a ring through three kinds of calls,
    grouped and not, and ranks that wait for each other's signals: all are told, also those that only wait for a rank in the ring."""
    all_reduce = lambda comm, buffer: comm.all_reduce(buffer, buffer)  # noqa: E731

    def recv(peer: int) -> Callable[[Comm, np.ndarray], Any]:
        return lambda comm, buffer: comm.recv(buffer, peer)

    def send(peer: int) -> Callable[[Comm, np.ndarray], Any]:
        return lambda comm, buffer: comm.send(buffer, peer)

    def both(comm: Comm, buffer: np.ndarray) -> None:
        with host_c.group():
            comm.recv(buffer, 1)
            comm.send(buffer, 2)

    in_ring(wait_for_each_other([all_reduce, recv(0)]), "ncclAllReduce", "ncclRecv")
    in_ring(wait_for_each_other([recv(1), recv(0)]), "rank 0 in ncclRecv for rank 1", "rank 1 in ncclRecv for rank 0")
    in_ring(wait_for_each_other([recv(1), send(2), all_reduce]), "ncclRecv", "ncclSend", "ncclAllReduce")
    in_ring(wait_for_each_other([recv(1), recv(0), all_reduce]), "rank 0", "rank 1")
    in_ring(wait_for_each_other([both, recv(2), recv(1)]), "rank 1 in ncclRecv for rank 2", "rank 2 in ncclRecv for rank 1")
    in_ring(wait_for_each_other([lambda comm, _: comm.split(0), recv(0)]), "ncclCommSplit", "ncclRecv")


@forks.nursery()
def test_signals() -> None:
    """Ranks that wait for each other's signals are a deadlock, as those are that wait for a message meanwhile."""
    signals = [lambda comm, _, peer=peer: comm.wait_signal((1, peer)) for peer in (1, 0)]
    in_ring(wait_for_each_other(signals), "rank 0 in ncclWaitSignal for rank 1", "rank 1 in ncclWaitSignal for rank 0")
    in_ring(wait_for_each_other([signals[0], lambda comm, buffer: comm.recv(buffer, 0)]), "ncclWaitSignal", "ncclRecv")


@forks.nursery()
def test_ring_beside_another_communicator() -> None:
    """A ring inside one communicator is found although a rank of it waits in another one, too, in the same group."""

    def rank_main(rank: int, nranks: int, ids: list[bytes], first: int) -> None:
        host_c.set_timeout(8)
        comms = [Comm(nranks, one, rank) for one in ids]
        buffer = np.ones(4, np.float32)
        if rank == 1:
            return comms[1].recv(buffer, 0)
        with host_c.group():
            for place in (first, 1 - first):
                if place == 0:
                    comms[0].recv(buffer[:1], 1)
                else:
                    comms[1].all_reduce(buffer[1:], buffer[1:], count=1)

    for first in (0, 1):
        in_ring(forks.fork(2, rank_main, first, ids=2)[1:], "rank 0 in ncclAllReduce for rank 1", "rank 1 in ncclRecv for rank 0")


@forks.nursery()
def test_afterwards() -> None:
    """After a deadlock the communicator has failed with that reason on every rank, and a new one works."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm, one = Comm(nranks, ids[0], rank), np.ones(1, np.float32)
        assert raised(comm.recv, one, 1 - rank).kind == "deadlock"
        again = raised(comm.all_reduce, one, one)
        assert (again.code, again.kind) == (INVALID_USAGE, "deadlock") and "ncclRecv" in again.text, again
        assert comm.query("CommGetAsyncError") == INVALID_USAGE
        comm.abort()
        Comm(nranks, ids[1], rank).barrier()

    forks.values(forks.fork(2, rank_main, ids=2))


@forks.nursery()
def test_non_blocking_ring() -> None:
    """A ring of non-blocking communicators comes out of polling."""

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm, one = Comm.ready(nranks, ids[0], rank), np.ones(1, np.float32)
        comm.send(one, 1 - rank)
        comm.wait()

    in_ring(forks.fork(2, rank_main), "ncclSend")


@forks.nursery()
def test_crossing_order() -> None:
    """Two ranks that use two communicators in opposite order wait until the deadline, whose text says that the missing rank is blocked in
    another communicator, in which call and for whom; in one group the order does not matter."""

    def rank_main(rank: int, nranks: int, ids: list[bytes], grouped: bool) -> None:
        first, second = (Comm(nranks, one, rank) for one in ids)
        one = np.ones(2, np.float32)
        first.barrier()
        if rank == 0 and not grouped:
            waits(1)  # or this one's deadline could pass before it
            first.set_timeout(0.5)
        order = (first, second) if rank == 0 else (second, first)
        if grouped:
            with host_c.group():
                for i, comm in enumerate(order):
                    comm.all_reduce(one[i:], one[i:], count=1)
        else:
            for comm in order:
                comm.all_reduce(one, one) if comm is first else comm.bcast(one, 1)
        assert (one == 2).all()

    forks.values(forks.fork(2, rank_main, True, ids=2))
    ends = forks.fork(2, rank_main, False, ids=2)
    assert [end.error.code if end.error else 0 for end in ends] in ([TIMEOUT] * 2, [TIMEOUT, REMOTE_ERROR], [REMOTE_ERROR, TIMEOUT]), ends
    texts = [end.error.text for end in ends if end.error and end.error.code == TIMEOUT]
    assert any("blocked in nccl" in text and "another communicator" in text for text in texts), texts
    assert any("ncclBroadcast" in text and "ncclAllReduce" in text for text in texts), texts


@forks.nursery()
def test_whose_thread_is_blocked() -> None:
    """A thread that is blocked says so in its other communicators, also in one that it has not used yet, with ranks as processes and as
    threads; not in those of other threads of its process."""

    told = Flag()

    def own(rank: int, nranks: int, ids: list[bytes]) -> host_c.HostError:
        parent = Comm(nranks, ids[0], rank)
        parent.set_timeout(6)
        child = parent.split(0).learn()
        if rank == 0:
            waits(1)
        child.set_timeout(0.5)
        return raised((parent if rank else child).barrier)

    def another(rank: int, nranks: int, ids: list[bytes]) -> host_c.HostError | None:
        first, errors = Comm(nranks, ids[0], rank), []

        def helper() -> None:
            second = Comm(nranks, ids[1], rank)
            second.barrier()
            second.set_timeout(0.6)
            if rank == 0:
                waits(1)
                errors.append(raised(second.barrier))
                told.set()
            told.wait()

        thread = threading.Thread(target=helper)
        thread.start()
        first.set_timeout(6)
        if rank == 1:
            raised(first.barrier)
        thread.join()
        return errors[0] if errors else None

    for ends in (forks.fork(2, own), forks.threads(2, own)):
        error = ends[0].returned()
        assert error.kind == "timeout" and error.ranks == (1,) and "blocked in ncclAllReduce of another communicator" in error.text, error
    error = forks.fork(2, another, ids=2)[0].returned()
    assert error.kind == "timeout" and error.ranks == (1,) and "blocked" not in error.text, error


@forks.nursery()
def test_no_longer_elsewhere() -> None:
    """A rank that was blocked in another communicator and is not any more is not said to be."""
    told = Flag()

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        first, second = (Comm(nranks, one, rank) for one in ids)
        if rank == 0:
            time.sleep(0.3)
            second.barrier()
            first.set_timeout(1.0)
            try:
                first.barrier()
            finally:
                told.set()
        second.barrier()
        told.wait()

    error = forks.fork(2, rank_main, ids=2)[0].failed(TIMEOUT, "timeout", ranks=[1]).error
    assert error is not None and "blocked" not in error.text, error


@forks.nursery()
def test_dead_rank_in_a_ring() -> None:
    """A rank that is killed while it waits in a ring which is not closed yet is reported as dead, not as part of one."""
    killed = Flag()

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm, one = Comm(nranks, ids[0], rank), np.ones(1, np.float32)
        comm.barrier()
        if rank == 0:
            forks.say("waits")
            comm.recv(one, 1)
        killed.wait()
        comm.recv(one, 0)

    with forks.Forked(2, rank_main) as ranks:
        ranks.wait_for("waits")
        time.sleep(0.4)
        os.kill(ranks.pids[0], signal.SIGKILL)
        killed.set()
        ranks.ends()[1].failed(REMOTE_ERROR, "remote", ranks=[0])
