"""Several threads and the CPU library: abort from another thread, peers that are threads, a communicator that is busy."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import forks, host_c
from helpers.host_c import INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, raised
from helpers.order import SOON, Flag, in_call


def in_thread(function: Callable[[], Any]) -> Callable[[], forks.End]:
    """Start a thread; the returned function waits for its end."""
    ends: list[forks.End] = []
    begun = time.monotonic()

    def body() -> None:
        value, error, trace = forks.outcome(function)
        ends.append(forks.End(0, value, error, trace, seconds=time.monotonic() - begun))

    worker = threading.Thread(target=body, daemon=True)
    worker.start()

    def join() -> forks.End:
        worker.join(8)
        return ends[0] if ends else forks.End(0, late=True)

    return join


@pytest.mark.parametrize("blocked_in", ["all_reduce", "recv", "group"])
@forks.nursery()
def test_abort(blocked_in: str) -> None:
    """ncclCommAbort from another thread ends the call that waits for a peer within a second, and returns; the peer hears that the rank has
    aborted, and the handle is gone."""

    aborted, told = Flag(), Flag()

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        host_c.set_timeout(20)
        comm, buffer = host_c.Comm(nranks, ids[0], rank), np.ones(50_000, np.float32)
        comm.barrier()
        if rank == 1:
            aborted.wait()
            error = raised(comm.all_reduce, buffer, buffer)
            assert (error.code, error.kind, error.ranks) == (REMOTE_ERROR, "remote", (0,)) and "aborted" in error.text, error
            return told.set()

        def call() -> None:
            if blocked_in == "group":
                with host_c.group():
                    comm.all_reduce(buffer, buffer)
                    comm.recv(np.empty_like(buffer), 1)
            elif blocked_in == "recv":
                comm.recv(buffer, 1)
            else:
                comm.all_reduce(buffer, buffer)

        join = in_thread(call)
        in_call()
        begun = time.monotonic()
        comm.abort()
        join().failed(INVALID_USAGE, "aborted", "ncclCommAbort")
        assert time.monotonic() - begun < SOON
        assert raised(comm.all_reduce, buffer, buffer).code == INVALID_ARGUMENT
        aborted.set()
        told.wait()

    forks.values(forks.fork(2, rank_main))


@forks.nursery()
def test_abort_of_several_in_one_group() -> None:
    """A thread waits in a group over two communicators; another thread aborts one after the other, and neither abort waits for the other
    communicator's peers."""

    aborted = Flag()

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        host_c.set_timeout(20)
        first, second = (host_c.Comm(nranks, id_, rank) for id_ in ids)
        if rank == 1:
            return aborted.wait()
        buffers = [np.ones(5, np.float32) for _ in range(2)]

        def call() -> None:
            with host_c.group():
                first.all_reduce(buffers[0], buffers[0])
                second.all_reduce(buffers[1], buffers[1])

        join = in_thread(call)
        in_call()
        for comm in (first, second):
            begun = time.monotonic()
            comm.abort()
            assert time.monotonic() - begun < SOON
        join().failed(INVALID_USAGE, "aborted")
        aborted.set()

    forks.values(forks.fork(2, rank_main, ids=2))


def hammer(rounds: int, seed: int) -> None:
    """Threads reduce arrays directly in each other's memory, and one of them is aborted at a random moment."""
    choose = random.Random(seed)

    def rank_main(rank: int, nranks: int, ids: list[bytes], comms: list[host_c.Comm | None], size: int) -> None:
        comms[rank] = comm = host_c.Comm(nranks, ids[0], rank)
        buffers = [np.ones(size, np.float32) for _ in range(3)]
        try:
            for _ in range(10_000):
                with host_c.group():
                    comm.all_reduce(buffers[0], buffers[1])
                    comm.send(buffers[0], (rank + 1) % nranks)
                    comm.recv(buffers[2], (rank - 1) % nranks)
        except host_c.HostError:
            for buffer in buffers:
                buffer[:] = 7
            time.sleep(0.003)
            assert all((buffer == 7).all() for buffer in buffers), "memory was written after the call had returned"
            raise

    for turn in range(rounds):
        comms: list[host_c.Comm | None] = [None] * 3
        victim, size = choose.randrange(3), choose.choice((10, 9000, 200_000, 1_000_000))

        def abort(comms: list[host_c.Comm | None] = comms, victim: int = victim, pause: float = choose.random() * 0.003) -> None:
            until = time.monotonic() + 5
            while not all(comms) and time.monotonic() < until:
                time.sleep(0.0001)
            time.sleep(pause)
            comms[victim].abort()  # type: ignore[union-attr]

        join = in_thread(abort)
        ends = forks.threads(3, rank_main, comms, size, ids=1, deadline=8)
        join().returned()
        for end in ends:
            kinds = ("aborted", "closed") if end.rank == victim else ("remote",)
            if end.error is None or end.error.kind not in kinds:
                raise AssertionError(f"round {turn}, aborted {victim}: {end}")
        for rank, comm in enumerate(comms):
            if rank != victim:
                comm.abort()  # type: ignore[union-attr]


@forks.nursery(deadline=30)
def test_abort_hammered() -> None:
    """200 aborts at random moments, while threads of one process work in each other's memory: each ends the call, nobody crashes though
    all free their arrays at once, and the peers name the rank."""
    hammer(200, 11)


@pytest.mark.parametrize("how", ["destroy", "abort"])
@forks.nursery()
def test_peer_thread_leaves(how: str) -> None:
    """Ranks as threads of one process hear at once, too, that a peer has closed or aborted, in a collective and for a message."""

    def rank_main(rank: int, nranks: int, ids: list[bytes], message: bool) -> float:
        host_c.set_timeout(6)
        comm, buffer = host_c.Comm(nranks, ids[0], rank), np.ones(9000)
        comm.barrier()
        if rank == 1:
            time.sleep(0.2)
            getattr(comm, how)()
            return 0.0
        begun = time.monotonic()
        error = raised(comm.recv, buffer, 1) if message else raised(comm.all_reduce, buffer, buffer)
        assert (error.code, error.kind, error.ranks) == (REMOTE_ERROR, "remote", (1,)) and "rank 1" in error.text, error
        comm.abort()
        return time.monotonic() - begun

    for message in (False, True):
        assert max(forks.values(forks.threads(3, rank_main, message))) < SOON


@forks.nursery()
def test_aborts_at_once() -> None:
    """Two threads that abort one communicator at the same time end it once; later communicators have handles of their own."""

    def rank_main(rank: int, nranks: int, ids: list[bytes], comm: host_c.Comm, how: tuple[str, str], barrier: threading.Barrier) -> None:
        barrier.wait(5)
        try:
            getattr(comm, how[rank])()
        except host_c.HostError as error:
            assert error.code in (INVALID_ARGUMENT, INVALID_USAGE), error

    for turn in range(120):
        how = (("abort", "abort"), ("destroy", "destroy"), ("abort", "destroy"))[turn % 3]
        comm = host_c.Comm(1, host_c.unique_id(), 0)
        forks.values(forks.threads(2, rank_main, comm, how, threading.Barrier(2)))
        pair = [host_c.Comm(1, host_c.unique_id(), 0) for _ in range(2)]
        assert pair[0].handle != pair[1].handle
        for comm in pair:
            comm.barrier()
            comm.destroy()


@forks.nursery()
def test_busy() -> None:
    """A second thread is refused at once in a communicator that another thread waits in: calls, finalize and destroy; the wait goes on and
    ends well."""

    refused = Flag()

    def rank_main(rank: int, nranks: int, ids: list[bytes]) -> None:
        comm, one = host_c.Comm(nranks, ids[0], rank), np.ones(1, np.float32)
        if rank == 1:
            refused.wait()
            comm.all_reduce(one, one)
            return
        join = in_thread(lambda: comm.all_reduce(one, one))
        in_call()
        other = np.ones(1, np.float32)
        for call, arguments in ((comm.all_reduce, (other, other)), (comm.send, (other, 1)), (comm.finalize, ()), (comm.destroy, ())):
            error = raised(call, *arguments)  # at once: what it would wait for comes after it
            assert (error.code, error.kind) == (INVALID_USAGE, "busy"), error
        refused.set()
        join().returned()
        assert one[0] == 2 and other[0] == 1
        comm.destroy()

    forks.values(forks.fork(2, rank_main))
